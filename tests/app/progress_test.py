#!/usr/bin/env python3
"""What other programs read of a run of dptrain: progress_test.py DPTRAIN MPIRUN CASE."""
import json
import os
import pathlib
import struct
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
    alone = (DPTRAIN,) if ranks == 1 else (MPIRUN, "-np", str(ranks), DPTRAIN)
    words = [*(launcher or alone), *SMALL, *options]
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


def crc32c(data: bytes) -> int:
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = (rest >> 1) ^ (0x82F63B78 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def records(path: pathlib.Path) -> list[bytes]:
    """The events of a file, with their checksums checked (io/files/event_file.hpp)."""
    data, found = path.read_bytes(), []
    def checked(part: bytes, crc: bytes) -> bytes:
        value = crc32c(part)
        assert struct.unpack("<I", crc)[0] == ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
        return part
    while data:
        size, = struct.unpack("<Q", checked(data[:8], data[8:12]))
        found.append(checked(data[12:12 + size], data[12 + size:16 + size]))
        data = data[16 + size:]
    return found


def fields(message: bytes) -> list[tuple[int, object]]:
    """Numbers and values of a protobuf message's fields."""
    found, at = [], 0
    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            value: object = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value = message[at:at + size]
            at += size
            value = struct.unpack({1: "<d", 5: "<f"}[kind], value)[0] if kind != 2 else value
        found.append((key >> 3, value))
    return found


def scalars(folder: str) -> dict[str, dict[int, float]]:
    """What TensorBoard shows of the event files of a folder: by tag and step."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(pathlib.Path(folder).iterdir()):
        for number, record in enumerate(records(path)):
            event = dict(fields(record))
            assert (number == 0) == (event.get(3) == b"brain.Event:2"), event
            if 7 in event:  # the run goes on: later steps are forgotten
                assert fields(event[7]) == [(1, 1)]
                found = {tag: {step: value for step, value in values.items() if step < event[2]}
                         for tag, values in found.items()}
            for _, value in fields(event.get(5, b"")):
                parts = dict(fields(value))
                if 2 in parts:
                    found.setdefault(parts[1].decode(), {})[event[2]] = parts[2]
    return found


def tensorboard() -> None:
    options = ("--compress", "ecq:bits=2", "--tensorboard", "tb/run", "--checkpoint", "ck", "--log-steps", "1")
    run(2, *options, "--epochs", "2", "--log", "a.h5")
    # The end of epoch 2 is lost, and then repeated.
    for shard in pathlib.Path("ck").glob("step000000004*"):
        shard.unlink()
    run(2, *options, "--epochs", "3", "--log", "a.h5", "--resume")
    assert len(list(pathlib.Path("tb/run").iterdir())) == 2
    shown = scalars("tb/run")
    with h5py.File("a.h5") as log:
        epochs, steps = log["epochs"][:], log["steps"][:]
    def agrees(tag: str, places: list[int], values: list[float]) -> None:
        assert shown[tag] == {step: struct.unpack("<f", struct.pack("<f", value))[0]
                              for step, value in zip(places, values)}, (tag, shown[tag], values)
    ends = [2, 4, 6]
    for tag, column in {"loss/train": "train_loss", "loss/test": "test_loss", "accuracy/train": "train_accuracy",
                        "accuracy/test": "test_accuracy", "learning_rate": "learning_rate", "time/epoch_s": "epoch_s",
                        "time/compute_s": "compute_s", "time/exposed_comm_s": "exposed_comm_s",
                        "exchange/sent_bytes": "sent_bytes"}.items():
        agrees(tag, ends, list(epochs[column]))
    agrees("epoch", ends, [1, 2, 3])
    assert sorted(shown["exchange/bits_per_value"]) == ends, shown["exchange/bits_per_value"]
    for tag in ("train_loss", "step_s", "exposed_comm_s", "sent_bytes", "partial_bits"):
        agrees(f"step/{tag}", list(steps["step"]), list(steps[tag]))
    # A folder is for one run; one that cannot be written ends nothing.
    done = run(1, "--tensorboard", "tb/run", "--epochs", "1", "--log", "none", code=3)
    assert "--tensorboard tb/run: has the events of another run" in done.stderr, done.stderr
    pathlib.Path("file").write_text("")
    done = run(1, "--tensorboard", "file/run", "--epochs", "1", "--log", "none", code=3)
    assert "--tensorboard file/run: file/run/events.out" in done.stderr and "cannot be created" in done.stderr, done.stderr
    vanish = "until [ -s gone/run/events* ]; do sleep 0.01; done; mv gone away; touch gone"
    watcher = subprocess.Popen(["bash", "-c", vanish])
    done = run(1, "--tensorboard", "gone/run", "--epochs", "20", "--log", "none", code=3)
    assert watcher.wait(60) == 0
    assert done.stderr.count("training goes on without it") == 1, done.stderr
    assert "but some files are not: a part of the events for TensorBoard is missing (gone/run/" in done.stderr, done.stderr
    assert "epoch 20/20" in done.stdout


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    globals()[CASE]()
    print(f"{CASE}: passed in {pathlib.Path(folder).name}")
