"""dptrain's programs, which `pip install dptrain` puts on the PATH."""
