"""What dpsweep is made of.

    study     the INI file -> points: name, ranks, link rate, dptrain's options
    jobs      commands that end with dpsweep, whatever ends it; keeper, the process that ends them
    lock      one dpsweep at a time in a folder
    links     the command of a point: mpirun with --throttle, or the hosts of dplab
    progress  what a folder already has of a study, and whether it was run in the same way
    finished  whether a log is complete; reads logs in a separate process
    trial     lets dptrain check the options of all points before any of them runs
    runs      runs what is missing
    overview  the table at the end
"""
