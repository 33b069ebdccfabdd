"""What dpreport is made of.

    environment   a Python that has h5py, pandas and matplotlib
    read_log      one run log -> Run, and what is wrong with it
    read_hdf5     attributes and tables, and no more of them than their file can justify
    odd_values    values of a log that no run has
    missing_rows  which epochs lack rows in a table
    run           Run: what a log says, and what follows from this log alone
    compare       the differences between runs; the run on one rank with which another is compared
    chance        which accuracies are called different, and the Pareto front
    units, table  numbers and tables as text, Markdown, HTML and CSV
    tables_*      the tables, by subject
    advice        what to do, for each run
    svg, plots_*  the plots
    page, style   the HTML page, and the colours of all pages
    watch, serve  a run that goes on: on the terminal, and as a live page (live_page)
    output        which files may be written, and writing them
    command       the command line
"""
