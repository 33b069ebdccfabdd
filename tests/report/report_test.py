#!/usr/bin/python3
"""dpreport: tables of logs with known numbers, damaged logs, forms of output.

    report_test.py DPREPORT CASE [DPTRAIN MPIEXEC]

A case is a function in one of the files *_cases.py. Exit code 77: not possible here.
"""
from __future__ import annotations

import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True

try:
    import h5py  # noqa: F401
    import matplotlib  # noqa: F401
    import pandas  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; experiments/setup.sh --tests installs it")
    sys.exit(77)

import bounds_cases  # noqa: E402
import logs_cases  # noqa: E402
import output_cases  # noqa: E402
import plots_cases  # noqa: E402
import reach_cases  # noqa: E402
import tables_cases  # noqa: E402
import two_and_live_cases  # noqa: E402

MODULES = (tables_cases, logs_cases, output_cases, plots_cases, two_and_live_cases, reach_cases, bounds_cases)


def main() -> None:
    case = sys.argv[2]
    function = next(getattr(module, case) for module in MODULES if hasattr(module, case))
    with tempfile.TemporaryDirectory() as folder:
        function(pathlib.Path(folder))


if __name__ == "__main__":
    main()
