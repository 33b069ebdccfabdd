#!/usr/bin/python3
"""dpreport: tables of logs with known numbers, damaged logs, forms of output.  report_test.py DPREPORT CASE

Exit code 77: not possible here.
"""
from __future__ import annotations

import csv
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Callable

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
DPREPORT, CASE = sys.argv[1:3]

try:
    import h5py
    import matplotlib  # noqa: F401
    import pandas  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; experiments/setup.sh --tests installs it")
    sys.exit(77)

import study  # noqa: E402
from run_log_fixture import write_log  # noqa: E402

EPOCH = {"epoch_s": 10, "compute_s": 8, "exposed_comm_s": 2, "comm_s": 4, "sent_bytes": 8e6, "received_bytes": 8e6}


def report(folder: pathlib.Path, *words: str, code: int = 0, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    answer = subprocess.run([DPREPORT, *words], cwd=folder, capture_output=True, text=True, timeout=200, check=False,
                            env=os.environ | {"XDG_CACHE_HOME": str(folder / "no-cache")} | (env or {}))
    assert answer.returncode == code, f"exit code {answer.returncode}, not {code}\n{answer.stdout}\n{answer.stderr}"
    assert "Traceback" not in answer.stderr, answer.stderr
    assert not (folder / "no-cache").exists(), "an environment was made, and the packages are there"
    return answer


def has(text: str, *wanted: str) -> None:
    for line in wanted:
        assert line in text, f"'{line}' is missing in:\n{text}"


def known_numbers(folder: pathlib.Path) -> None:
    """The tables of study.py, where they are computed by hand, character by character."""
    logs = study.make(folder)
    output = report(folder, *(log.name for log in logs)).stdout
    expected = (HERE / "expected.txt").read_text(encoding="utf-8")
    if output != expected:
        (pathlib.Path(tempfile.gettempdir()) / "dpreport-output.txt").write_text(output, encoding="utf-8")
        for line, wanted in zip(output.splitlines() + [""], expected.splitlines() + [""]):
            assert line == wanted, f"this line:\n{line}\nshould be:\n{wanted}"
        raise AssertionError("there are more lines, or fewer")


def csv_and_markdown(folder: pathlib.Path) -> None:
    logs = study.make(folder)
    output = report(folder, *(log.name for log in logs), "--markdown", "--csv", "tables").stdout
    has(output, "### Scaling\n", "| four_none | 4 | 100 | 400 | 16.0 | 32.0 | 2.00 | 50.0 | 40.0 | 2.50 | 62.5 |")
    for line in output.splitlines():
        assert not line.startswith("|") or line.endswith("|"), line
    with open(folder / "tables/bandwidth.csv", encoding="utf-8", newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    # Numbers in full: 15 MB * 8 / 14 s.
    assert abs(float(rows["four_q8"]["wire_rate"]) - 120 / 14) < 1e-9, rows
    assert {path.name for path in (folder / "tables").iterdir()} >= {"runs.csv", "epochs.csv", "ranks.csv", "buckets.csv"}


def without_baseline(folder: pathlib.Path) -> None:
    """No speedup from a run that is something else, and the reason."""
    study.make(folder)
    write_log(folder / "eight.h5", ranks=1, epochs=[EPOCH] * 3, codec_names=[], cores_per_rank=8.0)
    has(report(folder, "eight.h5", "four_none.h5").stdout,
        "No strong or weak scaling, because on one rank there is cores_per_rank 8.0, not 1.0: four_none.")
    has(report(folder, "one_400.h5", "four_none.h5").stdout,
        "No weak scaling, because no run on one rank that is like them has their batch per rank: four_none.")
    output = report(folder, "four_none.h5", "four_q8.h5").stdout
    has(output, "No strong or weak scaling, because there is no run on one rank: four_none, four_q8.")
    assert "speedup" not in output and "T_N - T_1/N  " not in output, output


CASES: dict[str, Callable[[pathlib.Path], None]] = {
    function.__name__: function for function in (known_numbers, csv_and_markdown, without_baseline)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        CASES[CASE](pathlib.Path(folder))


if __name__ == "__main__":
    main()
