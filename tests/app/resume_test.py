#!/usr/bin/env python3
"""Runs that write checkpoints, die and go on, seen through their logs: resume_test.py DPTRAIN MPIRUN CASE [OTHER].

OTHER is another build of dptrain, for the case other_build."""
import ctypes
import errno
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}; apt-get install python3-h5py")
    sys.exit(77)

DPTRAIN, MPIRUN, CASE = sys.argv[1:4]
# 6 steps an epoch with 2 ranks, 4 with 3.
SMALL = {"--model": "resnet20", "--limit-train": "44", "--limit-test": "8", "--batch-size": "4", "--epochs": "2",
         "--lr": "0.05", "--threads": "1", "--autotune": "off", "--log-steps": "1", "--bucket-mb": "0.2",
         "--checkpoint": "ck", "--checkpoint-every": "1steps", "--checkpoint-keep": "100"}
FLAGS = ("--resume", "--verbose", "--accept-build")
SHARD = re.compile(r"step(\d+)\.rank(\d+)of(\d+)\.([0-9a-f]+)\.(ckpt|waiting)")


def command(ranks: int, log: str, *words: str, folders: bool = False) -> list[str]:
    """The small run with some options replaced or added; with folders, each rank has a current folder of its own."""
    flags = [word for word in words if word in FLAGS]
    rest = [word for word in words if word not in FLAGS]
    chosen = SMALL | dict(zip(rest[::2], rest[1::2])) | {"--log": os.path.abspath(log)}
    program = [DPTRAIN, *(word for pair in chosen.items() for word in pair), *flags]
    if folders:
        program = ["bash", "-c", 'mkdir -p "$OMPI_COMM_WORLD_RANK" && cd "$OMPI_COMM_WORLD_RANK" && exec "$@"', "-",
                   *program]
    return [MPIRUN, "-np", str(ranks), *program]


def run(ranks: int, log: str, *words: str, code: int = 0, **how: bool) -> subprocess.CompletedProcess:
    done = subprocess.run(command(ranks, log, *words, **how), capture_output=True, text=True, timeout=200)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def steps_in(folder: str) -> list[int]:
    """The steps of which the folder has files, the oldest first."""
    found = {int(match[1]) for name in os.listdir(folder) if (match := SHARD.fullmatch(name))}
    return sorted(found)


def keep_only(folder: str, step: int) -> None:
    for name in os.listdir(folder):
        if not name.startswith(f"step{step:09d}."):
            os.unlink(f"{folder}/{name}")


def flip_a_byte(path: str) -> None:
    data = bytearray(pathlib.Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    pathlib.Path(path).write_bytes(data)


def assert_same_training(whole: str, resumed: str, sessions: int = 2) -> None:
    """Every number of the two logs that does not depend on time is the same, down to its bits."""
    with h5py.File(whole, "r") as a, h5py.File(resumed, "r") as b:
        for field in ("epoch", "samples", "global_batch", "learning_rate", "replica_hash", "train_loss",
                      "train_accuracy", "test_loss", "test_accuracy", "sent_bytes", "received_bytes",
                      "codec_relative_error", "residual_norm", "delivered_relative_error", "saturation",
                      "skipped_steps"):
            assert a["epochs"][field].tobytes() == b["epochs"][field].tobytes(), (
                field, a["epochs"][field], b["epochs"][field])
        for field in ("step", "epoch", "train_loss", "learning_rate"):
            assert a["steps"][field].tobytes() == b["steps"][field].tobytes(), (field, a["steps"][field],
                                                                               b["steps"][field])
        # Checkpoints and gatherings come at other moments, so that these bytes differ; those of before the restart count.
        assert (a["epochs"]["control_bytes"] > 0).all() and (b["epochs"]["control_bytes"] > 0).all(), b["epochs"][:]
        for table in ("ranks", "buckets"):
            assert len(a[table]) == len(b[table]), table
        assert b.attrs["finished"] == 1
        assert len(b["sessions"]) == sessions and len(a["sessions"]) == 1, b["sessions"][:]
        if sessions > 1:
            assert b.attrs["resumed_from"].startswith("step "), b.attrs["resumed_from"]


def resumes_from_each(ranks: int, *words: str, steps: int | None = None) -> None:
    """Goes on from some of the checkpoints of an undisturbed run, and must come to the same end."""
    # While a busy disk still writes one checkpoint, the next ones are left out: then once more, and with more time for each.
    for rate in ("off", "off", "50mbit", "25mbit", "10mbit"):
        if rate != "off" and not {"--throttle", "--exchange"} & set(words):
            words = (*words, "--throttle", rate)
        shutil.rmtree("ck", ignore_errors=True)
        pathlib.Path("whole.h5").unlink(missing_ok=True)
        run(ranks, "whole.h5", *words)
        there = steps_in("ck")
        with h5py.File("whole.h5", "r") as log:
            last = int(log["steps"]["step"][-1])
        assert there[-1] == last, (there, last)
        inside = [step for step in there if step < last]
        if len(inside) >= 3:
            break
    assert len(inside) >= 3, there
    wanted = inside[1:: max(1, len(inside) // 2)][:2] if steps is None else inside[:steps]
    for step in wanted:
        shutil.rmtree("again", ignore_errors=True)
        shutil.copytree("ck", "again")
        keep_only("again", step)
        log = f"from{step}.h5"
        done = run(ranks, log, *words, "--checkpoint", "again", "--resume")
        assert f"resumed from step {step} (epoch " in done.stdout, done.stdout
        assert "continues with" not in done.stdout, done.stdout
        assert_same_training("whole.h5", log)


def plain() -> None:
    resumes_from_each(2, "--compress", "q4", steps=4)


def three_ranks() -> None:
    resumes_from_each(3, "--compress", "topk:ratio=0.05", "--topology", "direct", "--nesterov", "on")


def dgc_and_averages() -> None:
    resumes_from_each(2, "--compress", "dgc:ratio=0.05", "--compress-warmup", "1", "--ema", "0.9", "--lookahead",
                      "2:0.5")


def steps_of_adam() -> None:
    """Adam's steps before the exchange: moments, sketches and residuals are each rank's own."""
    words = ("--compress", "ecq:bits=0.35,velocity=on", "--optimizer", "adamw", "--lr", "0.002", "--topology", "direct")
    resumes_from_each(3, *words)
    # Other numbers of ranks share out the mean squares of rows that three ranks have saved.
    with h5py.File("whole.h5", "r") as log:
        loss = log["epochs"]["train_loss"][-1]
    keep_only("ck", next(step for step in steps_in("ck") if step > 4))
    for ranks in (2, 5):
        shutil.copytree("ck", f"for{ranks}")
        done = run(ranks, f"on{ranks}.h5", *words, "--checkpoint", f"for{ranks}", "--resume", "--check-replicas", "step")
        assert f"the run continues with {ranks} ranks instead of 3" in done.stdout, done.stdout
        with h5py.File(f"on{ranks}.h5", "r") as log:
            assert abs(log["epochs"]["train_loss"][-1] / loss - 1) < 0.1, (log["epochs"]["train_loss"][:], loss)
            assert (log["epochs"]["skipped_steps"] == 0).all(), log["epochs"][:]


def other_device() -> None:
    """Runs that begin on GPUs go on on CPUs, and the other way: residuals, velocities and segments' shares are kept."""
    words = ("--compress", "ecq:bits=0.35,velocity=on", "--bucket-mb", "4", "--limit-train", "8", "--batch-size", "2",
             "--limit-test", "4")
    of_device = {"cpu": ("--device", "cpu"), "cuda": ("--device", "cuda", "--gpu-exchange", "device")}
    for first, then in (("cuda", "cpu"), ("cpu", "cuda")):
        shutil.rmtree("ck", ignore_errors=True)
        run(2, f"{first}.h5", *words, *of_device[first])
        keep_only("ck", 2)
        done = run(2, f"{then}_later.h5", *words, *of_device[then], "--resume", "--check-replicas", "step")
        assert "resumed from step 2" in done.stdout and "continues with the device" in done.stdout, done.stdout
        with h5py.File(f"{first}.h5", "r") as whole, h5py.File(f"{then}_later.h5", "r") as later:
            want, got = whole["epochs"][:], later["epochs"][:]
        # Convolutions round differently, and so do a few codes: seen are 3e-5 of the loss and 1 % of the bytes.
        assert np.allclose(got["train_loss"], want["train_loss"], rtol=1e-3), (first, want, got)
        assert np.allclose(got["sent_bytes"], want["sent_bytes"], rtol=0.03), (first, want, got)


def few_bits() -> None:
    """One-dimensional tensors are between two exchanges in most checkpoints."""
    for topology in ("direct", "hierarchical"):
        resumes_from_each(3, "--compress", "ecq:bits=0.1,velocity=masked", "--topology", topology)
        for made in pathlib.Path(".").glob("*.h5"):
            made.unlink()


def powersgd_and_parts() -> None:
    resumes_from_each(2, "--compress", "powersgd:rank=2", "--accumulate", "2", "--batch-size", "2", "--optimizer",
                      "adam", "--lr", "0.001", "--lr-schedule", "cosine")


def batch_schedule() -> None:
    resumes_from_each(2, "--compress", "q8", "--batch-schedule", "dynamic:max=16", "--epochs", "3", "--lr-scaling",
                      "linear", "--optimizer", "lars", "--lr", "0.5")


def whitening_and_muon() -> None:
    resumes_from_each(2, "--model", "airbench94", "--optimizer", "muon", "--lr", "0.01", "--compress", "bf16",
                      "--limit-train", "24")


def without_exchange() -> None:
    # These steps are short, and a checkpoint takes several of them.
    resumes_from_each(2, "--exchange", "off", "--epochs", "6", steps=1)
    # Each rank has a model of its own.
    done = run(3, "three.h5", "--exchange", "off", "--resume", code=2)
    assert "dptrain: --exchange off: every rank trains its own model, and the run in --checkpoint ck had 2 ranks" in (
        done.stderr), done.stderr
    for path in pathlib.Path("ck").glob("*.rank1of2.*"):
        path.unlink()
    done = run(2, "one.h5", "--exchange", "off", "--resume", code=3)
    assert "the part of rank 1 is lost, and with --exchange off nobody else has its model" in done.stderr, done.stderr


def rounds() -> None:
    # 6 steps an epoch: rounds of 4 and of 2. From the middle of some.
    resumes_from_each(2, "--compress", "q4", "--sync-every", "4:outer-lr=0.7,outer-momentum=0.9,delay=1",
                      "--ema", "0.9", "--lookahead", "2:0.5")
    # While an exchange is under way, which is after the first round of each epoch, there is no checkpoint.
    assert not {4, 10} & set(steps_in("ck")), steps_in("ck")
    # Another number of ranks ends the round in which the checkpoint was written.
    words = ("--compress", "topk:ratio=0.05", "--sync-every", "3", "--epochs", "2", "--optimizer", "adam", "--lr",
             "0.001", "--lr-schedule", "constant", "--checkpoint", "ck3")
    run(3, "a.h5", *words)
    # 4 steps an epoch in rounds of 3 and of 1. A busy disk may have left out a checkpoint.
    keep_only("ck3", next(step for step in steps_in("ck3") if step in (1, 2, 5, 6)))
    for ranks in (5, 2):
        shutil.copytree("ck3", f"for{ranks}")
        done = run(ranks, f"on{ranks}.h5", *words, "--resume", "--checkpoint", f"for{ranks}")
        with h5py.File(f"on{ranks}.h5", "r") as log:
            assert log["epochs"]["samples"].tolist() == [44] * 2 and np.isfinite(log["steps"]["train_loss"]).all(), done
            assert len(log["steps"]) == 8 and (log["epochs"]["replica_hash"] != 0).all(), done


def steps_that_ranks_skip() -> None:
    # Every update is far too large, so that the gradients of the last of 9 steps are not finite; each rank skips its own.
    for name, value in (("--sync-every", "12"), ("--exchange", "off")):
        words = (name, value, "--checkpoint", value, "--checkpoint-every", "8steps", "--limit-train", "72", "--epochs",
                 "1", "--lr", "100", "--lr-schedule", "constant", "--weight-decay", "1")
        done = run(2, f"{value}.h5", *words)
        by_rank_0 = done.stderr.count("; this rank skips the step")
        with h5py.File(f"{value}.h5", "r") as log:
            assert log["epochs"]["skipped_steps"][0] > by_rank_0 > 0, (log["epochs"]["skipped_steps"], done.stderr)
        told = "epoch 1: rank 1 skipped "
        assert told in done.stderr, done.stderr
        keep_only(value, 8)
        done = run(2, f"resumed.{value}.h5", *words, "--resume")
        assert told in done.stderr and done.stderr.count("; this rank skips the step") < by_rank_0, done.stderr
        assert_same_training(f"{value}.h5", f"resumed.{value}.h5")


def children(parent: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True).stdout.split()
    return [int(process) for process in found]


def round_that_is_lost() -> None:
    """SIGKILL of a rank in the middle of a round, and of its exchange; dptrun goes on by itself."""
    words = ("--compress", "q8", "--sync-every", "3:outer-lr=0.7,outer-momentum=0.9", "--epochs", "1")
    run(2, "whole.h5", *words, "--checkpoint", "whole")
    # 6 steps an epoch in two rounds. An exchange takes 0.7 s, a step of a round about a hundredth.
    words = command(2, "killed.h5", *words, "--throttle", "3mbit", "--checkpoint-every", "2steps")
    process = subprocess.Popen([f"{os.path.dirname(DPTRAIN)}/dptrun", "-np", "2", "--", *words[3:]],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for after, wait_s in ((2, 0.2), (4, 0.0)):  # the first one is in the exchange of step 3
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if os.path.isdir("ck") and len(list(pathlib.Path("ck").glob(f"step{after:09d}.rank*"))) == 2:
                break
            time.sleep(0.002)
        time.sleep(wait_s)
        assert max(steps_in("ck")) == after or wait_s == 0, steps_in("ck")
        mpirun, = (p for p in children(process.pid) if children(p))
        os.kill(children(mpirun)[-1], signal.SIGKILL)
        died = f"mpirun {mpirun} has gone"
        while time.monotonic() < deadline and os.path.exists(f"/proc/{mpirun}"):
            time.sleep(0.01)
        assert not os.path.exists(f"/proc/{mpirun}"), died
    _, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    assert_same_training("whole.h5", "killed.h5", sessions=3)


def repeated_choices() -> None:
    # A run that repeats an earlier one's rates and rounds goes on with them.
    words = ("--compress", "auto:max=6", "--sync-every", "auto:max=3", "--throttle", "20mbit")
    run(2, "first.h5", *words, "--autotune", "on", "--checkpoint", "first")
    again = (*words, "--autotune", "first.h5")
    run(2, "whole.h5", *again)
    keep_only("ck", next(step for step in steps_in("ck") if 4 <= step <= 11))
    run(2, "resumed.h5", *again, "--resume")
    assert_same_training("first.h5", "resumed.h5")
    with h5py.File("first.h5", "r") as a, h5py.File("resumed.h5", "r") as b:
        assert a["steps"]["planned_bits"].tobytes() == b["steps"]["planned_bits"].tobytes()
        assert a.attrs["round_steps"] == b.attrs["round_steps"]
    # One rank alone has nothing to choose from, and others go on from it, by its log, too.
    alone = ("--sync-every", "auto:max=3", "--autotune", "on", "--checkpoint", "alone")
    run(1, "alone.h5", *alone, "--epochs", "1")
    run(1, "alone2.h5", *alone, "--epochs", "2", "--resume")
    run(2, "three.h5", *alone, "--epochs", "3", "--resume")
    run(1, "by_log.h5", "--sync-every", "auto:max=3", "--autotune", "alone2.h5", "--epochs", "2",
        "--checkpoint", "by_log")
    for name, chosen in (("alone2", "1,1"), ("three", "1,1,1"), ("by_log", "1,1")):
        with h5py.File(f"{name}.h5", "r") as log:
            assert log.attrs["round_steps"] == chosen, (name, log.attrs["round_steps"])
    done = run(2, "none.h5", *again[:-1], "missing.h5", "--resume", code=3)
    assert "missing.h5" in done.stderr, done.stderr


def shares() -> None:
    """Uneven shares go on bit for bit, also those that a log says; another number of ranks goes on with even ones."""
    words = ("--compress", "q4", "--shares", "3:2:1")
    resumes_from_each(3, *words)
    keep_only("ck", next(step for step in steps_in("ck") if step % 4))
    shutil.copytree("ck", "given")
    done = run(2, "two.h5", *words, "--resume")
    assert "the run continues with 2 ranks instead of 3" in done.stdout, done.stdout
    with h5py.File("two.h5", "r") as log:
        assert log["epochs"]["samples"].tolist()[-1] == log["epochs"]["samples"].tolist()[0]
    # What the option says may change.
    done = run(3, "even.h5", *words[:2], "--shares", "even", "--checkpoint", "given", "--resume")
    assert "--shares even instead of 3:2:1" in done.stdout, done.stdout
    # Shares that change in the middle of an epoch, as an earlier run chose them.
    auto = ("--compress", "q4", "--shares", "auto")
    run(3, "first.h5", *auto, "--autotune", "on", "--checkpoint", "first")
    with h5py.File("first.h5", "r+") as log:
        first = log["shares"][:]
        assert first["step"].tolist() == [1, 1, 1], first  # one host, whose ranks share alike
        rows = np.concatenate([first] * 4)
        for place, (step, images) in enumerate(((3, (7, 3, 2)), (6, (2, 8, 2)), (10, (1, 1, 10))), 1):
            rows["step"][3 * place:3 * place + 3], rows["images"][3 * place:3 * place + 3] = step, images
        log["shares"].resize((12,))
        log["shares"][:] = rows
    for earlier in pathlib.Path().glob("from*.h5"):
        earlier.unlink()
    resumes_from_each(3, *auto, "--autotune", "first.h5", steps=6)


def by_time() -> None:
    run(2, "a.h5", "--checkpoint-every", "0.001s", "--epochs", "4")
    steps = steps_in("ck")
    assert len(steps) > 1 and steps[-1] == 24, steps


def exported_weights() -> None:
    """The best epoch of all sessions stays the best one."""
    words = ("--epochs", "4", "--export", "w.h5", "--lr", "0.01")

    def sets() -> list[tuple]:
        with h5py.File("w.h5", "r") as file:
            return [(name, file[name].attrs["epoch"], file[name].attrs["test_accuracy"],
                     [file[name][tensor][()].tobytes() for tensor in sorted(file[name])]) for name in ("last", "best")]

    run(2, "a.h5", *words)
    wanted = sets()
    keep_only("ck", next(step for step in steps_in("ck") if step > 8))
    run(2, "b.h5", *words, "--resume")
    assert sets() == wanted
    assert_same_training("a.h5", "b.h5")
    # A start that finds no checkpoint gives the earlier file, and the earlier log, another name.
    shutil.rmtree("ck")
    done = run(2, "b.h5", *words, "--resume")
    assert "b.h5 of an earlier start was renamed" in done.stdout and os.path.exists("b-2.h5"), done.stdout
    assert os.path.exists("w-2.h5") and sets() == wanted


    # A run that is complete already exports its weights, too.
    os.unlink("w.h5")
    done = run(2, "b.h5", *words, "--resume")
    assert "all 4 epochs were trained earlier" in done.stdout and sets()[0][1:] == wanted[0][1:], done.stdout


def damaged_export() -> None:
    """Weights that an earlier start has exported and that cannot be read any more are moved aside."""
    words = ("--export", "w.h5", "--checkpoint-every", "3steps", "--checkpoint-keep", "9")
    run(2, "a.h5", *words)
    keep_only("ck", max(step for step in steps_in("ck") if step < 12))
    whole = pathlib.Path("w.h5").read_bytes()
    pathlib.Path("w.h5").write_bytes(whole[:len(whole) // 2])
    done = run(2, "a.h5", *words, "--resume")
    assert ("dptrain: --export w.h5: is not a file of exported weights, or it is damaged; it was renamed w-2.h5, and the best "
            "epoch is counted from here on\n") in done.stderr and "--init" not in done.stderr, done.stderr
    assert os.path.getsize("w-2.h5") == len(whole) // 2
    with h5py.File("w.h5", "r") as file:
        assert file["last"].attrs["epoch"] == 1, dict(file["last"].attrs)


def exchange_names(one: str, other: str) -> None:
    RENAME_EXCHANGE = 2
    here = -100  # AT_FDCWD
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(here, os.fsencode(one), here, os.fsencode(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), f"{one} and {other} cannot exchange their names")


def files_that_cannot_be_made_again() -> None:
    """The places of log, events and weights go away, and a rank is killed: the next start goes on nevertheless.

    Each file is told of once a start, even where it fails for more than one reason.
    """
    words = ("--epochs", "12", "--checkpoint-keep", "2", "--export", "out/w.h5", "--tensorboard", "events", "--throttle",
             "300mbit")  # a step takes 0.03 s
    os.mkdir("out")
    process = subprocess.Popen([f"{os.path.dirname(DPTRAIN)}/dptrun", "-np", "2", "--", *command(2, "out/a.h5", *words)[3:]],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any(line.startswith("epoch  2/12 ") for line in process.stdout), process.communicate()
    os.rename("out", "away")
    # At once, so that events cannot fail for a second cause in between.
    pathlib.Path("events-away").touch()
    exchange_names("events", "events-away")
    assert any(line.startswith("epoch  4/12 ") for line in process.stdout), process.communicate()
    pathlib.Path("out").touch()
    assert any(line.startswith("epoch  6/12 ") for line in process.stdout), process.communicate()
    mpirun, = (p for p in children(process.pid) if children(p))
    os.kill(children(mpirun)[-1], signal.SIGKILL)
    out, told = process.communicate(timeout=200)
    assert "resumed from step " in out and "epoch 12/12 " in out, (out, told)
    log = os.path.abspath("out/a.h5")
    for failed in (f"--log {log}: .*; training goes on, and the next epoch tries again",
                   "--export out/w.h5.*; training goes on without it",
                   "events/events.out.tfevents.*; training goes on without it"):
        assert len(re.findall(f"^dptrain: {failed}$", told, re.MULTILINE)) == 2, (failed, told)
    for missing in ("a part of the events for TensorBoard", "the file of exported weights", "the log"):
        assert process.returncode == 3 and told.count(f"{missing} is missing (") == 1, (process.returncode, told)
    # The checkpoint has the whole log.
    os.unlink("out")
    os.rename("away", "out")
    os.unlink("events")
    done = run(2, "out/a.h5", *words, "--resume")
    assert "all 12 epochs were trained earlier" in done.stdout, done.stdout
    with h5py.File(log, "r") as file:
        assert file.attrs["finished"] == 1 and file["epochs"]["epoch"].tolist() == list(range(12))


def killed() -> None:
    """SIGKILL of one rank, or of mpirun, while checkpoints are written; the same command goes on each time."""
    words = ("--compress", "q8", "--epochs", "8", "--checkpoint-keep", "2")
    without = command(2, "whole.h5", *words)
    for name in ("--checkpoint", "--checkpoint-every", "--checkpoint-keep"):
        at = without.index(name)
        del without[at:at + 2]
    done = subprocess.run(without, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done
    for attempt in range(2):
        process = subprocess.Popen(command(2, "killed.h5", *words, "--resume"), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        newest = max(steps_in("ck"), default=0) if os.path.isdir("ck") else 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if os.path.isdir("ck") and max(steps_in("ck"), default=0) >= newest + 3:
                break
            time.sleep(0.005)
        assert process.poll() is None, process.communicate()
        if attempt == 0:
            ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            os.kill(int(ranks[-1]), signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    done = run(2, "killed.h5", *words, "--resume")
    assert re.search(r"resumed from step \d+ \(epoch \d\) of ck\n", done.stdout), done.stdout
    assert len(steps_in("ck")) == 2 and not list(pathlib.Path("ck").glob("*.part")), os.listdir("ck")
    with h5py.File("killed.h5", "r") as log:
        sessions = len(log["sessions"])
    assert_same_training("whole.h5", "killed.h5", sessions=sessions)
    assert sessions == 3, sessions
    # All is done: the same command ends at once, and leaves log and checkpoints as they are.
    done = run(2, "killed.h5", *words, "--resume")
    assert "resumed from step 48 (epoch 8) of ck" in done.stdout, done.stdout
    with h5py.File("killed.h5", "r") as log:
        sessions = len(log["sessions"])
    assert_same_training("whole.h5", "killed.h5", sessions=sessions)


def damaged_or_missing() -> None:
    """Nothing there; a part that is damaged; a host's folder that is lost."""
    words = ("--compress", "q4", "--epochs", "1")
    done = run(2, "whole.h5", *words, "--resume", "--verbose", folders=True)
    assert "no checkpoint in ck: the run starts from the beginning" in done.stdout, done.stdout
    assert "checkpoint of step 6 in ck" in done.stdout, done.stdout
    there = steps_in("0/ck")
    assert there[-1] == 6 and steps_in("1/ck") == there
    before, newest = there[-2:]
    for rank in (0, 1):
        for step in there[:-3]:
            for path in pathlib.Path(f"{rank}/ck").glob(f"step{step:09d}.*"):
                path.unlink()
    damaged, = pathlib.Path("1/ck").glob(f"step{newest:09d}.rank1*")
    flip_a_byte(str(damaged))
    done = run(2, "damaged.h5", *words, "--resume", folders=True)
    assert re.search(r"dptrain: on \S+: ck/step\S+: is damaged: .*; it counts as missing\n", done.stderr), done.stderr
    assert f"resumed from step {before} (epoch 1) of ck" in done.stdout, done.stdout
    assert_same_training("whole.h5", "damaged.h5")

    # One host has lost its disk: all that is common is there.
    for rank in (0, 1):
        for path in pathlib.Path(f"{rank}/ck").glob("*"):
            if not path.name.startswith(f"step{before:09d}.") or rank == 1:
                path.unlink()
    done = run(2, "lost.h5", *words, "--resume", folders=True)
    assert "the part of rank 1 is lost: values that it had not sent yet count as zero" in done.stdout, done.stdout
    with h5py.File("lost.h5", "r") as log, h5py.File("whole.h5", "r") as whole:
        assert log["epochs"]["samples"].tolist() == [44]
        assert np.array_equal(log["steps"]["train_loss"][:before], whole["steps"]["train_loss"][:before])
    # That host's folder cannot be made either: training goes on, and says that there are no checkpoints.
    for rank in "01":
        shutil.copytree(rank, f"{rank}-before")
    shutil.rmtree("1/ck")
    os.symlink("nowhere/ck", "1/ck")
    keep_only("0/ck", 6)
    done = run(2, "lost.h5", *words, "--resume", "--epochs", "2", folders=True, code=3)
    assert "the part of rank 1 is lost" in done.stdout and "epoch 2/2 " in done.stdout, done.stdout
    assert re.search(r"dptrain: the checkpoint could not be written: rank 1 on \S+: ck/step\S+: cannot be created: ", done.stderr), done
    assert "the newest checkpoint in ck is from step 6, but the run has reached step 12" in done.stderr, done.stderr
    # A run that would begin at its start is refused.
    done = run(2, "none.h5", *words, "--resume", "--checkpoint", "1/ck", code=3)
    assert "dptrain: --checkpoint 1/ck: cannot be created: " in done.stderr, done.stderr
    for rank in "01":
        shutil.rmtree(rank)
        os.rename(f"{rank}-before", rank)
    # The other host is lost, and the log with it.
    shutil.rmtree("0")
    done = run(2, "lost.h5", *words, "--resume", folders=True)
    assert "the part of rank 0 is lost" in done.stdout, done.stdout
    assert "the new log has a row for each earlier epoch, but no rows for its steps" in done.stdout, done.stdout
    with h5py.File("lost.h5", "r") as log:
        assert log.attrs["finished"] == 1 and log.attrs["resumed_from"] == "step 6 of ck"
        assert log["epochs"]["epoch"].tolist() == [0] and np.isfinite(log["epochs"]["test_loss"]).all(), log["epochs"][:]
        assert len(log["ranks"]) == 0 == len(log["steps"]), (log["ranks"][:], log["steps"][:])


def two_checkpoints(*words: str) -> tuple[list[str], pathlib.Path, pathlib.Path]:
    """A run of one rank with the checkpoints of steps 2 and 4; what it was started with, and the two parts."""
    words = ("--epochs", "1", "--limit-train", "16", "--checkpoint-every", "2steps", *words)
    run(1, "whole.h5", *words)
    for step in steps_in("ck"):
        if step not in (2, 4):
            for path in pathlib.Path("ck").glob(f"step{step:09d}.*"):
                path.unlink()
    before, newest = sorted(pathlib.Path("ck").glob("*.ckpt"))
    assert "step000000002." in before.name and "step000000004." in newest.name, (before, newest)
    shutil.copytree("ck", "kept")
    return list(words), before, newest


def resumed(words: list[str], environment: dict[str, str] | None = None, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(command(1, "again.h5", *words, "--resume"), capture_output=True, text=True, timeout=100,
                          env=os.environ | (environment or {}))
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def unreadable_parts() -> None:
    """Every way in which a part cannot be read is a reason for the checkpoint before, and a line says which."""
    words, before, newest = two_checkpoints()

    def a_loop() -> None:
        newest.symlink_to(newest.name)

    def a_pipe() -> None:
        os.mkfifo(newest)

    def a_terabyte(begins_with: bytes) -> None:
        newest.write_bytes(begins_with)
        os.truncate(newest, 1 << 40)

    whole = newest.read_bytes()
    claims = whole[:8] + (1 << 40).to_bytes(8, "little") + whole[16:]
    cases = [(a_loop, "cannot be opened: Too many levels of symbolic links"), (a_pipe, "is not a regular file"),
             (newest.mkdir, "is not a regular file"), (lambda: a_terabyte(b""), "is not a checkpoint file"),
             (lambda: a_terabyte(whole), "is damaged: a hash of its contents is wrong"),
             (lambda: a_terabyte(claims), "is damaged: a hash of its contents is wrong"),
             (lambda: newest.write_bytes(claims), rf"is cut off: only {len(whole)} of 1099511627776 bytes are left")]

    def goes_on(why: str, environment: dict[str, str] | None = None) -> None:
        done = resumed(words, environment)
        lines = re.findall(r"dptrain: on \S+: (\S+): (.*); it counts as missing\n", done.stderr)
        assert [name for name, _ in lines] == [str(newest)] and re.fullmatch(why, lines[0][1]), (why, done.stderr)
        assert "resumed from step 2 (epoch 1) of ck" in done.stdout, done.stdout
        with h5py.File("whole.h5", "r") as whole, h5py.File("again.h5", "r") as again:
            assert whole["epochs"]["replica_hash"].tolist() == again["epochs"]["replica_hash"].tolist()

    def begin_again() -> None:
        shutil.rmtree("ck")
        shutil.copytree("kept", "ck")
        pathlib.Path("again.h5").unlink(missing_ok=True)

    for make, why in cases:
        begin_again()
        newest.unlink()
        make()
        goes_on(why)
    for call, what in (("open", "opened"), ("fstat", "read"), ("read", "read")):
        for number in (errno.EIO, errno.ESTALE, errno.EACCES, errno.ELOOP):
            begin_again()
            goes_on(f"cannot be {what}: {os.strerror(number)}",
                    {"LD_PRELOAD": os.environ["DP_READ_FAULTS_LIBRARY"], "DP_READ_FAULTS": f"{call}:{number}:{newest.name}"})
    # A file that cannot be looked at can be read all the same.
    begin_again()
    done = resumed(words, {"LD_PRELOAD": os.environ["DP_READ_FAULTS_LIBRARY"],
                           "DP_READ_FAULTS": f"stat:{errno.EIO}:{newest.name}"})
    assert "resumed from step 4 (epoch 1) of ck" in done.stdout, done.stdout
    # The copy of the log beside a part: the log begins again.
    for log, make in ((newest, lambda path: os.truncate(path, 1 << 40)), (newest, lambda path: (path.unlink(), os.mkfifo(path)))):
        begin_again()
        copy, = pathlib.Path("ck").glob("step000000004.*.log.h5")
        make(copy)
        done = resumed(words)
        assert f"{copy} is lost or damaged: a new log begins" in done.stderr, done.stderr
        assert "resumed from step 4 (epoch 1) of ck" in done.stdout, done.stdout
    # With none that can be read, a run that began at its start would remove them.
    begin_again()
    for path in (before, newest):
        flip_a_byte(str(path))
    done = resumed(words, code=3)
    assert "dptrain: --checkpoint ck: holds checkpoints, but none can be read; --resume would start anew " \
        "and remove them" in done.stderr, done.stderr
    assert before.exists() and newest.exists() and not os.path.exists("again.h5")


def parts_of_others() -> None:
    """A part under another part's name is no part: of another rank, step or start."""
    words = ("--compress", "q4", "--epochs", "1")
    run(2, "whole.h5", *words)
    last = steps_in("ck")[-1]
    files = {(int(match[1]), int(match[2])): path for path in pathlib.Path("ck").iterdir() if (match := SHARD.fullmatch(path.name))}
    before = steps_in("ck")[-2]
    shutil.copytree("ck", "kept")
    wanted = files[last, 1].name
    run(2, "other.h5", *words, "--checkpoint", "other")
    elsewhere, = pathlib.Path("other").glob(f"step{last:09d}.rank1of2.*")
    for source, said in ((files[last, 0], rf"rank 0 of 2 at step {last}"), (files[before, 1], rf"rank 1 of 2 at step {before}"),
                         (elsewhere, rf"rank 1 of 2 at step {last} \(start {SHARD.fullmatch(elsewhere.name)[4]}\)")):
        shutil.rmtree("ck")
        shutil.copytree("kept", "ck")
        shutil.copy(pathlib.Path("kept", source.name) if source.parent.name == "ck" else source, f"ck/{wanted}")
        pathlib.Path("again.h5").unlink(missing_ok=True)
        done = run(2, "again.h5", *words, "--resume")
        assert re.search(rf"dptrain: on \S+: ck/{wanted}: belongs to {said}.*, not to the rank and step in its name; it counts as "
                         r"missing\n", done.stderr), done.stderr
        assert f"resumed from step {before} (epoch 1) of ck" in done.stdout, done.stdout
        assert_same_training("whole.h5", "again.h5")


def parts_of_other_formats() -> None:
    """Parts that an earlier dptrain wrote do not say whose they are: they are taken, and a line says so. A later one's are not."""
    words = ("--compress", "q4", "--epochs", "1")
    run(2, "whole.h5", *words)
    shutil.copytree("ck", "kept")
    step = steps_in("ck")[-2]
    for older in ((0, 1), (1,)):
        shutil.rmtree("ck")
        shutil.copytree("kept", "ck")
        pathlib.Path("again.h5").unlink(missing_ok=True)
        keep_only("ck", step)
        parts = [str(part) for rank in older for part in pathlib.Path("ck").glob(f"*.rank{rank}of2.*")]
        size = os.path.getsize(parts[0])
        subprocess.run([os.environ["DP_SHARD_WITH_FORMAT"], "1", *parts], check=True)
        assert os.path.getsize(parts[0]) < size and len(parts) == len(older)
        done = run(2, "again.h5", *words, "--resume")
        assert f"resumed from step {step} (epoch 1) of ck" in done.stdout, done.stdout
        assert "(format 1) do not store rank and step" in re.sub(r"\s+", " ", done.stdout), done.stdout
        assert_same_training("whole.h5", "again.h5")
    # Parts of a later format: the checkpoint before is taken, and without one nothing is removed.
    for later, code in (([steps_in("kept")[-1]], 0), (steps_in("kept"), 3)):
        shutil.rmtree("ck")
        shutil.copytree("kept", "ck")
        pathlib.Path("again.h5").unlink(missing_ok=True)
        parts = [str(part) for later_step in later for part in pathlib.Path("ck").glob(f"step{later_step:09d}.rank*")]
        subprocess.run([os.environ["DP_SHARD_WITH_FORMAT"], "3", *parts], check=True)
        files = sorted(os.listdir("ck"))
        done = run(2, "again.h5", *words, "--resume", code=code)
        assert (": was written by a newer dptrain: format 3; allowed here: 1 to 2; it counts as missing\n") in (
            done.stderr), done.stderr
        if code == 0:
            assert f"resumed from step {step} (epoch 1) of ck" in done.stdout, done.stdout
        else:
            assert sorted(os.listdir("ck")) == files and "but none can be read" in done.stderr, done.stderr


def can_limit_instructions() -> None:
    """Skips where the processor has nothing beyond AVX2."""
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    except OSError:
        flags = []
    if "avx512f" not in flags or "avx512bw" not in flags:
        print("skipped: this processor has no AVX-512")
        sys.exit(77)


def with_instructions(names: str) -> dict[str, str]:
    return os.environ | {"ONEDNN_MAX_CPU_ISA": names, "DNNL_MAX_CPU_ISA": names}


def other_instructions() -> None:
    """From AVX-512 to AVX2 and back: the state is the same, the bits of what follows are not, and a line says so."""
    can_limit_instructions()
    every = {"first": "ALL", "second": "AVX2"}
    # --autotune on: the checkpoint has algorithms that the other instruction set lacks.
    words = ("--compress", "q4", "--autotune", "on", "--epochs", "2", "--lr", "0.01", "--export", "w.h5")

    def start(names: str, log: str, *more: str) -> subprocess.CompletedProcess:
        done = subprocess.run(command(2, log, *words, *more), capture_output=True, text=True, timeout=200,
                              env=with_instructions(names))
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    for here, there in (every.values(), reversed(every.values())):
        for name in ("ck", "w.h5", "whole.h5", "again.h5", "end.h5"):
            shutil.rmtree(name, ignore_errors=True)
            pathlib.Path(name).unlink(missing_ok=True)
        start(here, "whole.h5")
        with h5py.File("w.h5", "r") as file:
            weights = {name: file["last"][name][()] for name in file["last"]}
        shutil.copytree("ck", "kept", dirs_exist_ok=False)
        last = steps_in("ck")[-1]
        before = [step for step in steps_in("ck") if step < last][-3:][0]
        # All is trained: the weights come back bit for bit.
        done = start(there, "end.h5", "--resume")
        assert "all 2 epochs were trained earlier" in done.stdout, done.stdout
        with h5py.File("w.h5", "r") as file:
            for name, values in weights.items():
                assert file["last"][name][()].tobytes() == values.tobytes(), name
        keep_only("ck", before)
        done = start(there, "again.h5", "--resume")
        text = re.sub(r"\s+", " ", done.stdout)
        assert f"resumed from step {before} " in text, done.stdout
        told = re.search(r"the run continues with the device .*? (\S+), oneDNN \S+ instead of .*?(\S+), oneDNN \S+, so its bits "
                         "differ from an uninterrupted run's", text)
        assert told and "AVX2" in (told[1], told[2]) and told[1] != told[2], done.stdout
        with h5py.File("whole.h5", "r") as a, h5py.File("again.h5", "r") as b:
            losses, resumed_losses = a["steps"]["train_loss"][:], b["steps"]["train_loss"][:]
            assert losses[:before].tobytes() == resumed_losses[:before].tobytes()
            # q4 turns the last bits of gradients into other codes, which a few steps make visible.
            assert np.allclose(losses[before], resumed_losses[before], rtol=1e-4), (losses, resumed_losses)
            assert np.allclose(losses, resumed_losses, rtol=0.05), (losses, resumed_losses)
        shutil.rmtree("kept")


def ecq_with_debts() -> None:
    """The bits of a run of known length are paid for by its later steps; a run that goes on has the same debts."""
    resumes_from_each(2, "--compress", "ecq:bits=0.35", "--epochs", "4")


def more_epochs() -> None:
    """A schedule that falls begins again higher up when epochs are added: a line says from where to where."""
    words = ("--lr-schedule", "cosine", "--checkpoint-every", "1epoch", "--checkpoint-keep", "3")
    run(1, "a.h5", *words)
    done = run(1, "b.h5", *words, "--epochs", "4", "--resume")
    with h5py.File("b.h5", "r") as log:
        rates = log["steps"]["learning_rate"][:]
    step = len(rates) // 2
    assert rates[step] > 10 * rates[step - 1], rates
    assert (f"learning rate: {rates[step - 1]:.3g} in step {step}, the last one before the checkpoint, and {rates[step]:.3g} in "
            "the next one, by the schedule of 4 epochs") in done.stdout, (done.stdout, rates)
    done = run(1, "c.h5", *words, "--epochs", "4", "--resume")
    assert "learning rate:" not in done.stdout, done.stdout


def other_number_of_ranks() -> None:
    words = ("--compress", "q4", "--epochs", "3", "--lr-scaling", "linear", "--lr-schedule", "constant")
    run(3, "a.h5", *words)
    # 44 images in steps of 12: 4 an epoch. On from the middle of an epoch, if there is a checkpoint.
    keep_only("ck", sorted(steps_in("ck"), key=lambda step: (step % 4 == 0, step))[0])
    whole = h5py.File("a.h5", "r")
    for ranks, other in ((2, "2 ranks instead of 3"), (5, "5 ranks instead of 2"), (1, "1 rank instead of 5")):
        done = run(ranks, f"on{ranks}.h5", *words, "--resume")
        assert f"the run continues with {other}" in done.stdout, done.stdout
        with h5py.File(f"on{ranks}.h5", "r") as log:
            assert log["epochs"]["samples"].tolist() == [44] * 3, (ranks, log["epochs"]["samples"], log["steps"]["step"], done)
            assert log["epochs"]["global_batch"].tolist() == [12] * 3
            assert np.array_equal(log["epochs"]["learning_rate"], whole["epochs"]["learning_rate"])
            assert log["steps"]["step"].tolist() == list(range(1, 13))
            assert np.isfinite(log["steps"]["train_loss"]).all()
            assert log["sessions"]["world_size"][-1] == ranks == log.attrs["world_size"]
            # Each row's host is in the list.
            assert log["ranks"]["host"].max() < len(log.attrs["hosts"])
        keep_only("ck", steps_in("ck")[2 if ranks == 2 else 1] if ranks != 1 else steps_in("ck")[-1])
    # A run that begins without some of its ranks has the batch and the learning rate of all of them.
    shutil.rmtree("ck")
    done = run(2, "planned.h5", *words, "--planned-ranks", "3", "--resume", "--verbose")
    assert "global batch 12, as planned for 3 ranks" in done.stdout, done.stdout
    with h5py.File("planned.h5", "r") as log:
        assert log["epochs"]["global_batch"].tolist() == [12] * 3
        assert np.array_equal(log["epochs"]["learning_rate"], whole["epochs"]["learning_rate"])


def refusals() -> None:
    words = ("--epochs", "1", "--limit-train", "16", "--checkpoint-every", "1epoch")
    run(2, "a.h5", *words)

    def refused(code: int, text: str, *more: str) -> None:
        done = run(2, "b.h5", *words, *more, code=code)
        # mpirun may end the other rank before it has left by itself.
        said = [line for line in done.stderr.splitlines()
                if line.startswith("dptrain: ") and not line.startswith("dptrain: stopped by SIGTERM")]
        assert len(said) == 1 and text in said[0], done.stderr
        assert not os.path.exists("b.h5")

    refused(3, "dptrain: --checkpoint ck: holds the checkpoints of another run: continue it with --resume")
    refused(2, "dptrain: --lr 0.1: the run in --checkpoint ck was begun with 0.05, so it would become another "
               "run; allowed changes: --epochs", "--resume", "--lr", "0.1")
    refused(2, "dptrain: --compress q8: the run in --checkpoint ck was begun with none", "--resume", "--compress", "q8")
    refused(2, "dptrain: --limit-train 20: ", "--resume", "--limit-train", "20")
    refused(2, "dptrain: --seed 2: ", "--resume", "--seed", "2")
    done = run(9, "b.h5", *words, "--resume", code=2)
    assert "9 ranks: the run in --checkpoint ck has 8 images in a step, and every rank needs one; start at most 8 ranks" \
        in done.stderr, done.stderr
    # --check says the same, or where the run would go on, and leaves the folder as it is.
    files = sorted(os.listdir("ck"))
    checked = subprocess.run([*command(2, "b.h5", *words, "--lr", "0.1", "--resume"), "--check"], capture_output=True, text=True,
                             timeout=100)
    assert checked.returncode == 2 and "--lr 0.1: the run in --checkpoint ck was begun with 0.05" in checked.stderr, checked
    checked = subprocess.run([*command(2, "b.h5", *words, "--epochs", "3", "--resume"), "--check"], capture_output=True,
                             text=True, timeout=100)
    assert checked.returncode == 0 and "go: this run can start" in checked.stdout, checked
    assert "checkpoint: the run continues from step 2, with --epochs 3 instead of 1" in checked.stdout, checked.stdout
    assert sorted(os.listdir("ck")) == files
    # More epochs, other logs and another cadence are no other run.
    done = run(2, "more.h5", *words, "--resume", "--epochs", "2", "--checkpoint-every", "10min", "--checkpoint-keep",
               "1", "--log-steps", "2")
    assert "the run continues with --epochs 2 instead of 1" in done.stdout, done.stdout
    with h5py.File("more.h5", "r") as log:
        assert log["epochs"]["epoch"].tolist() == [0, 1]
    assert steps_in("ck") == [4], steps_in("ck")


def other_build() -> None:
    """Of the same revision, so that only the program itself tells them apart."""
    global DPTRAIN
    words = ("--epochs", "1", "--device", "cpu")
    run(2, "a.h5", *words)
    step = steps_in("ck")[0]
    keep_only("ck", step)
    DPTRAIN = sys.argv[4]
    done = run(2, "b.h5", *words, "--resume", code=2)
    assert re.search(r"dptrain: --resume: the checkpoint in ck was written by dptrain (.*), build [0-9a-f]{16}, and this is "
                     r"dptrain \1, build [0-9a-f]{16}, which may compute other bits; use the same build, or continue with "
                     r"--accept-build\n", done.stderr), done.stderr
    done = run(2, "b.h5", *words, "--resume", "--accept-build")
    assert f"resumed from step {step} " in done.stdout, done.stdout
    assert re.search(r"the run continues with dptrain (.*), build \w+ instead of \1, build \w+, so its bits differ "
                     "from an uninterrupted run's", done.stdout), done.stdout


def two_at_once() -> None:
    """A second run is kept away from the folder of one that runs, and not when that has been killed."""
    words = ("--epochs", "1000", "--comm-timeout", "2")
    first = subprocess.Popen(command(2, "first.h5", *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             start_new_session=True)
    try:
        end = time.monotonic() + 60
        while not (os.path.isdir("ck") and steps_in("ck")) and time.monotonic() < end:
            time.sleep(0.02)
        done = run(2, "second.h5", *words, "--resume", code=3)
        said = [line for line in done.stderr.splitlines()
                if line.startswith("dptrain: ") and not line.startswith("dptrain: stopped by SIGTERM")]
        assert said == ["dptrain: --checkpoint ck: is in use by another run on this host: wait until it has ended, or "
                        "give another folder"], done.stderr
        assert not os.path.exists("second.h5") and first.poll() is None
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    done = run(2, "third.h5", "--epochs", "1", "--comm-timeout", "10", "--resume")
    assert "resumed from step " in done.stdout, done.stdout


def other_data() -> None:
    def write(label: int) -> None:
        os.makedirs("data", exist_ok=True)
        for name in [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]:
            record = bytes([label]) + bytes(3072)
            pathlib.Path("data", name).write_bytes(record * 4)

    write(0)
    words = ("--data-dir", "data", "--limit-train", "0", "--limit-test", "0", "--epochs", "1")
    run(2, "a.h5", *words)
    write(1)
    done = run(2, "b.h5", *words, "--resume", code=3)
    assert re.search(r"dptrain: --data-dir data: the run in --checkpoint ck was begun with other data "
                     r"\(hash [0-9a-f]{16} instead of [0-9a-f]{16}\)", done.stderr), done.stderr


def folder_goes_away() -> None:
    """Training goes on, warns once, and says at the end what is missing."""
    words = ("--epochs", "6", "--throttle", "100mbit")  # a step takes 0.1 s
    process = subprocess.Popen(command(2, "a.h5", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The files of a second one come when the first one is complete.
    while process.poll() is None and len({path.name.split(".")[0] for path in pathlib.Path("ck").glob("*.ckpt")}) < 2:
        time.sleep(0.002)
    os.rename("ck", "gone")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 3, (out, err)
    # Once of each cause: a file that could not be given its final name, and those that cannot be made.
    causes = re.findall(r"dptrain: the checkpoint could not be written: rank \d on \S+(?: and 1 other rank)?: ck/step\S+: (.*): No "
                        r"such file or directory; training goes on without it\n", err)
    assert len(causes) == len(set(causes)) == err.count("training goes on without it"), err
    assert "cannot be created" in causes, err
    assert re.search(r"dptrain: the training is complete, but some files are not: the newest checkpoint in ck is from "
                     r"step \d+, but the run has reached step 36\n", err), err
    with h5py.File("a.h5", "r") as log:
        assert log.attrs["finished"] == 1 and len(log["epochs"]) == 6
    # What was there before can be gone on from.
    os.rename("gone", "ck")
    run(2, "b.h5", *words, "--resume")
    assert_same_training("a.h5", "b.h5")


CASES = [plain, three_ranks, dgc_and_averages, steps_of_adam, other_device, few_bits, powersgd_and_parts,
         batch_schedule, whitening_and_muon, without_exchange, rounds, steps_that_ranks_skip, round_that_is_lost,
         repeated_choices, shares, by_time, exported_weights, damaged_export, files_that_cannot_be_made_again,
         killed, damaged_or_missing, unreadable_parts, parts_of_others, parts_of_other_formats, other_instructions,
         ecq_with_debts, more_epochs, other_number_of_ranks, refusals, other_build, two_at_once, other_data,
         folder_goes_away]

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    {case.__name__: case for case in CASES}[CASE]()
    os.chdir("/")
print(f"{CASE}: passed")
