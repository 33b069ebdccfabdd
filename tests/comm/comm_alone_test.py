#!/usr/bin/env python3
"""A program of dp_comm alone brings nothing else with it:  comm_alone_test.py PROGRAM COMM.a OTHER.a...

PROGRAM is linked to dp_comm, whose archive is COMM.a. It needs no shared library of networks, data sets or
operations, and no function of the archives OTHER.a is in it.
"""

import re
import subprocess
import sys

FORBIDDEN = re.compile(r"lib(dnnl|hdf5|boost|cudnn|cublas|gomp)[^ ]*\.so")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def functions(file: str) -> set[str]:
    """Names that others can call. Templates and inline functions, which every file may have, are weak and left out."""
    lines = (line.split() for line in output("nm", "--defined-only", "--extern-only", "--format=posix", file).splitlines())
    return {line[0] for line in lines if len(line) > 1 and line[1] in "TDBR"}


program, comm, *others = sys.argv[1:]
assert others
mine = functions(program)
assert len(mine & functions(comm)) > 50, "the program does not use the exchange"

failures = [f"needs {name[0]}" for name in FORBIDDEN.finditer(output("ldd", program))]
for archive in others:
    names = functions(archive)
    assert len(names) > 5, f"{archive} has {len(names)} functions: is this the archive?"
    failures += [f"has {name}, which is of {archive}" for name in sorted(mine & names)]
print(f"{len(mine)} functions in {program}", *failures, sep="\n")
sys.exit(1 if failures else 0)
