#!/usr/bin/env python3
"""What other programs read of a run of dptrain: progress_test.py DPTRAIN MPIRUN CASE."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import h5py
except ImportError as missing:
    print(f"skipped: {missing}; apt-get install python3-h5py")
    sys.exit(77)

DPTRAIN, MPIRUN, CASE = sys.argv[1:4]
SMALL = ["--model", "resnet20", "--limit-train", "32", "--limit-test", "8", "--batch-size", "8", "--lr", "0.01",
         "--lr-schedule", "constant", "--threads", "1", "--autotune", "off", "--check-replicas", "off"]


def run(ranks: int, *options: str, code: int = 0, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    words = [*(launcher or (MPIRUN, "-np", str(ranks), DPTRAIN)), *SMALL, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def events(text: str) -> list[dict]:
    """Every line of standard output is an object with a name."""
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def named(found: list[dict], name: str) -> list[dict]:
    return [event for event in found if event["event"] == name]


def progress_json() -> None:
    pathlib.Path('q"\\ä').mkdir()
    log = 'q"\\ä/a.h5'
    done = run(2, "--progress", "json", "--compress", "q8", "--epochs", "2", "--log", log, "--log-steps", "1",
               "--checkpoint", "ck")
    found = events(done.stdout)
    # A checkpoint is told when it is complete, which may be some steps later.
    assert [event["step"] for event in named(found, "checkpoint")] == [2, 4], found
    others = [event["event"] for event in found if event["event"] != "checkpoint"]
    assert others == ["start", "step", "step", "epoch", "step", "step", "epoch", "end"], others
    start, end = found[0], found[-1]
    assert (start["format"], start["kind"], start["log"], start["ranks"], start["epochs"]) == (1, "training", log, 2, 2)
    assert (start["model"], start["steps_per_epoch"], start["global_batch"], len(start["hosts"])) == ("resnet20", 2, 16, 2)
    assert start["resumed_from"] is None and start["link"] is None  # --autotune off measures none
    assert [bucket["codec"].split(":")[0] for bucket in start["buckets"]] == ["q8"] * (len(start["buckets"]) - 1) + ["none"]
    assert end == {"event": "end", "exit_code": 0, "message": None, "log": log}
    with h5py.File(log, "r") as file:
        assert start["options"] == {name: value.decode() if isinstance(value, bytes) else value
                                    for name, value in file["config"].attrs.items()}
        for table, name in (("epochs", "epoch"), ("steps", "step")):
            for row, event in zip(file[table][:], named(found, name), strict=True):
                for column in row.dtype.names:
                    value = f"{row[column]:016x}" if column == "replica_hash" else row[column]
                    assert event[column] == value or (event[column] is None and value != value), (column, event)
    # A run that goes on.
    done = run(2, "--progress", "json", "--compress", "q8", "--epochs", "3", "--log", log, "--checkpoint", "ck",
               "--resume", "--log-steps", "1")
    found = events(done.stdout)
    assert found[0]["resumed_from"] == {"step": 4, "epoch": 1}, found[0]
    assert [event["epoch"] for event in named(found, "epoch")] == [2]
    # What is wrong is in the last event, too; nothing else is on standard output.
    done = run(1, "--progress", "json", "--epochs", "1", "--init", "missing.h5", code=3)
    (end,) = events(done.stdout)
    assert end["event"] == "end" and end["exit_code"] == 3 and "missing.h5" in end["message"], end
    assert end["message"] in done.stderr
    # dptrun still finds its marks, and takes them out.
    dptrun = f"{os.path.dirname(DPTRAIN)}/dptrun"
    done = run(2, "--progress", "json", "--epochs", "1", "--log", "none", "--checkpoint", "other", launcher=(dptrun, "-np", "2", "--", DPTRAIN))
    found = events(done.stdout)
    assert [event["event"] for event in found] == ["start", "epoch", "checkpoint", "end"] and "\x1e" not in done.stdout, done.stdout
    assert found[0]["log"] is None


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    globals()[CASE]()
    print(f"{CASE}: passed in {pathlib.Path(folder).name}")
