"""What dpsweep is made of.

    study     the INI file -> points: name, ranks, link rate, dptrain's options
    jobs      commands that end with dpsweep, whatever ends it
    links     the command of a point: mpirun with --throttle, or the hosts of dplab
    progress  what a folder already has of a study, and whether it was run in the same way
    runs      runs what is missing
    overview  the table at the end
"""
