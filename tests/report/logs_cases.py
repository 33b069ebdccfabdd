"""Logs that are damaged, being written, or of a real run."""
from __future__ import annotations

import csv
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import h5py
import study
from report_support import EPOCH, has, parse_page, report
from run_log_fixture import COLUMNS, write_log


def damaged(folder: pathlib.Path) -> None:
    """What is wrong is said at the top and on stderr, and the rest is reported, on a page too."""
    logs = folder / "logs"
    logs.mkdir()
    good = write_log(logs / "good.h5", ranks=2, epochs=[EPOCH] * 2,
                     rank_rows=[{"epoch": e, "rank": r, "compute_s": 8} for e in range(2) for r in range(2)])
    whole = good.read_bytes()
    (logs / "cut.h5").write_bytes(whole[:len(whole) // 2])
    (logs / "text.h5").write_text("not a log")
    (logs / "empty.h5").write_bytes(b"")
    h5py.File(logs / "other.h5", "w").close()
    write_log(logs / "newer.h5", ranks=2, epochs=[EPOCH], format_version=2)
    write_log(logs / "nobody.h5", ranks=2, epochs=[EPOCH], world_size=None)
    write_log(logs / "begun.h5", ranks=2, epochs=[], finished=0, config={"epochs": "3"})
    write_log(logs / "killed.h5", ranks=2, epochs=[EPOCH], finished=0, config={"epochs": "3"})
    write_log(logs / "diverged.h5", ranks=2, epochs=[EPOCH, EPOCH | {"train_loss": math.nan, "skipped_steps": 3}])
    write_log(logs / "resumed.h5", ranks=2, epochs=[EPOCH] * 2,
              sessions=[{"start": 1, "world_size": 2}, {"start": 2, "world_size": 4, "first_epoch": 1}])
    for name, table in (("no_epochs", "epochs"), ("no_ranks", "ranks"), ("no_config", "config"), ("no_model", "model")):
        shutil.copy(good, logs / f"{name}.h5")
        with h5py.File(logs / f"{name}.h5", "r+") as file:
            del file[table]
    for name, table, column in (("no_time", "epochs", "epoch_s"), ("no_comm", "epochs", "comm_s"), ("no_rank", "ranks",
                                                                                                    "rank")):
        shutil.copy(good, logs / f"{name}.h5")
        with h5py.File(logs / f"{name}.h5", "r+") as file:
            rows = file[table][:]
            del file[table]
            file[table] = rows[[c for c in rows.dtype.names if c != column]]
    answer = report(folder, "logs", "missing.h5", "--all", "--html", "page.html")
    parse_page(folder / "page.html")
    problems = answer.stdout[:answer.stdout.index("\nRuns\n")]
    for text in ("missing.h5: there is no such file",
                 f"logs/cut.h5: is cut off: it has {len(whole) // 2:,} of {len(whole):,} bytes",
                 "logs/text.h5: is not an HDF5 file", "logs/empty.h5: is empty:",
                 "logs/other.h5: is not a run log: it has no attribute format_version",
                 "logs/newer.h5: has format_version 2; this dpreport reads 1",
                 "logs/nobody.h5: has no attribute world_size", "logs/begun.h5: is unfinished: it has 0 of 3 epochs",
                 "logs/killed.h5: is unfinished: it has 1 of 3 epochs",
                 "logs/diverged.h5: its training loss is not finite from epoch 2 on",
                 "logs/diverged.h5: skipped 3 steps with non-finite gradients",
                 "logs/resumed.h5: was resumed with another number of ranks (2, 4)",
                 "logs/no_epochs.h5: has no table /epochs", "logs/no_ranks.h5: has no table /ranks",
                 "logs/no_config.h5: has no group /config", "logs/no_model.h5: has no group /model",
                 "logs/no_time.h5: its table /epochs has no column epoch_s",
                 "logs/no_rank.h5: its table /ranks has no column rank"):
        has(problems, text)
        has(answer.stderr, text)
        has((folder / "page.html").read_text(encoding="utf-8"), text)
    runs = answer.stdout[answer.stdout.index("\nRuns\n"):answer.stdout.index("\nWhat the runs differ in\n")]
    for label, is_there in (("good", True), ("killed", True), ("begun", True), ("no_ranks", True), ("no_comm", True),
                            ("cut", False), ("newer", False), ("no_epochs", False), ("no_time", False)):
        assert any(line.split()[:1] == [label] for line in runs.splitlines()) == is_there, f"{label}: {runs}"


def resumed(folder: pathlib.Path) -> None:
    """The starts of a run that went on, and what checkpoints cost."""
    write_log(folder / "once.h5", ranks=2, epochs=[EPOCH] * 3)
    assert "went on from a checkpoint" not in report(folder, "once.h5").stdout
    write_log(folder / "twice.h5", ranks=2, epochs=[EPOCH | {"checkpoint_s": 0.25}] * 3,
              sessions=[{"start": 1, "world_size": 2}, {"start": 2, "world_size": 2, "first_epoch": 1, "first_step": 17}])
    shown = report(folder, "twice.h5").stdout
    table = shown[shown.index("Starts of runs that went on from a checkpoint"):].splitlines()[1:5]
    assert [line.split() for line in table[2:]] == [["twice", "1", "1", "0", "2"], ["twice", "2", "2", "17", "2"]], table
    times = shown[shown.index("Where a typical epoch's time goes"):].splitlines()
    assert times[1].split()[-1] == "checkpoints" and times[3].split()[-1] == "0.250", times[:4]


def damaged_metadata(folder: pathlib.Path) -> None:
    """Damage that ends the HDF5 library, or an exception of any kind, costs that log alone."""
    study.make(folder)
    whole = (folder / "four_q8.h5").read_bytes()
    generator = random.Random(1)
    for number in range(60):
        data = bytearray(whole)
        for _ in range(5):
            place = generator.choice([i for i in range(0, 4096) if data[i]])
            data[place] = generator.randrange(256)
        damaged_log = folder / f"damaged-{number}.h5"
        damaged_log.write_bytes(data)
        os.utime(damaged_log, (1e9, 1e9))  # nobody is writing it: it is tried once
    has(report(folder, ".", "--all", "--html", "page.html").stdout, "four_none")
    parse_page(folder / "page.html")


def being_written(folder: pathlib.Path) -> None:
    """Rows appear while the log is read again and again; every report is whole."""
    log = write_log(folder / "run.h5", ranks=2, epochs=[EPOCH], finished=0, config={"epochs": "3000"})
    writer = subprocess.Popen([sys.executable, "-c", WRITE, str(log)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        rows = []
        for _ in range(4):
            answer = report(folder, "run.h5", "--csv", "tables")
            has(answer.stderr, "run.h5: is unfinished: ")
            with open(folder / "tables/epochs.csv", encoding="utf-8", newline="") as file:
                rows.append(len(list(csv.DictReader(file))))
        assert rows == sorted(rows) and rows[0] >= 1 and rows[-1] > rows[0], rows
    finally:
        writer.kill()
        writer.wait()
    report(folder, "run.h5")


WRITE = """import sys, time, h5py
with h5py.File(sys.argv[1], "r+", locking=False) as file:
    epochs = file["epochs"]
    print("writing", flush=True)
    for number in range(1, 3000):
        row = epochs[0]
        row["epoch"] = number
        epochs.resize((number + 1,))
        epochs[number] = row
        file.flush()
        time.sleep(0.02)
"""


def real_run(folder: pathlib.Path) -> None:
    """A run of the program: its log has the columns of run_log_fixture.py; read while it goes on and after kill -9."""
    dptrain, mpiexec = sys.argv[3:5]
    with open(folder / "output.txt", "w", encoding="utf-8") as output:
        run = subprocess.Popen([
            mpiexec, "-np", "2", "--oversubscribe", dptrain, "--model", "resnet20", "--limit-train", "64",
            "--limit-test", "32", "--batch-size", "16", "--epochs", "2000", "--autotune", "off", "--compress", "q8",
            "--log-steps", "1", "--throttle", "1gbit", "--log", "run.h5"
        ], cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        end = time.monotonic() + 90
        answer = None
        while answer is None or "Epochs, s" not in answer.stdout:
            assert run.poll() is None and time.monotonic() < end, (folder / "output.txt").read_text(encoding="utf-8")
            time.sleep(0.5)
            if (folder / "run.h5").exists() and (folder / "run.h5").stat().st_size > 0:
                answer = report(folder, "run.h5", "--html", "page.html")
        has(answer.stderr, "run.h5: is unfinished: ")
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    answer = report(folder, "run.h5", "--html", "page.html")
    parse_page(folder / "page.html")
    # It may end between an epoch's rows.
    lines = [line for line in answer.stderr.splitlines() if "has no row in /epochs" not in line]
    assert len(lines) == 1, answer.stderr
    has(answer.stderr, "is unfinished: ", " of 2000 epochs and was last written")
    has(answer.stdout, "resnet20", "q8", "ring", "1 Gbit/s", "Scaling", "busbw, Mbit/s  median busbw", "Link rate x codec")
    with h5py.File(folder / "run.h5", "r", locking=False) as file:
        for table, columns in COLUMNS.items():
            found = [name for name in file[table].dtype.names if table != "steps" or name in columns]
            assert found == columns, f"/{table} has {found}"
        lacking = {"cores_per_rank", "threads_per_rank", "link_bytes_per_s", "link_latency_s", "hosts", "devices", "topology_hops",
                   "nominal_bit_per_s"} - set(file.attrs)
        assert not lacking, lacking
