"""What dpreport is made of.

    environment   a Python that has h5py, pandas and matplotlib
    read_log      one run log -> Run, and what is wrong with it
    run           Run: what a log says, and what follows from it alone
    compare       what runs differ in; which run on one rank another is compared with
    units, table  numbers and tables as text, Markdown, HTML and CSV
    tables_*      the tables, by subject
    advice        one sentence a run: what to do
    svg, plots_*  the plots
    page          the HTML page
    output        which files may be written, and writing them
    command       the command line
"""
