#!/usr/bin/env python3
"""Kills runs of dptrun: dptrun_kill_test.py DPTRUN DPTRAIN [--runs N] [--ranks P] [--seed S] [-- dptrain's options].

In each of N runs a rank or mpirun gets SIGKILL, at a random moment from its start on; in every fourth run while a
checkpoint is being written. After them come N / 10 further runs, rounded up, in which dptrun is asked to stop instead,
and started again with --resume. Every run must end by itself, with the weights and the log of a run that nobody has
disturbed, and leave nothing behind. At the end it prints how long recoveries took, from the kill to the next run's first
step.
"""
from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}; apt-get install python3-h5py")
    sys.exit(77)

SMALL = ["--model", "resnet20", "--limit-train", "96", "--limit-test", "16", "--batch-size", "8", "--epochs", "3",
         "--lr", "0.05", "--compress", "q8", "--threads", "1", "--autotune", "off", "--log-steps", "1",
         "--checkpoint-every", "2steps"]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("dptrun")
    parser.add_argument("dptrain")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=200.0, help="seconds that a run may take")
    words = sys.argv[1:]
    own = words[:words.index("--")] if "--" in words else words
    chosen = parser.parse_args(own)
    chosen.train = words[len(own) + 1:] if "--" in words else SMALL
    return chosen


OPTIONS = options()


def children(parent: int) -> list[int]:
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return sorted(found)


def left_behind() -> list[str]:
    """Processes that have this test's folder as their own."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and os.readlink(entry / "cwd") == os.getcwd():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


NAMES = ("mpirun\n", "prterun\n")  # of mpirun in Open MPI 4 and 5


class Run:
    """One run of dptrun. Its lines come with the time at which they came."""

    def __init__(self, name: str, *more: str):
        self.log, self.folder = f"{name}.h5", pathlib.Path(f"{name}.checkpoints")
        environment = os.environ | {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
        self.process = subprocess.Popen(
            [OPTIONS.dptrun, "-np", str(OPTIONS.ranks), "--", OPTIONS.dptrain, *OPTIONS.train, "--log", self.log,
             "--checkpoint", str(self.folder), *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def victims(self) -> list[int]:
        """mpirun and the ranks."""
        mpirun = [p for p in children(self.process.pid) if pathlib.Path(f"/proc/{p}/comm").read_text() in NAMES]
        return mpirun + [rank for p in mpirun for rank in children(p)]

    def is_writing(self) -> bool:
        return self.folder.is_dir() and any(self.folder.glob("*.part"))

    def kill(self, moment: float | None, chance: random.Random) -> float | None:
        """Kills one of them at that moment, or while a checkpoint is written. Returns when; nothing if the run was
        over before."""
        while self.process.poll() is None:
            is_due = self.is_writing() if moment is None else time.monotonic() - self.began >= moment
            if is_due:
                try:
                    victims = self.victims()
                    if victims:
                        os.kill(chance.choice(victims), 9)
                        return time.monotonic()
                except OSError:
                    continue  # it has ended meanwhile
            time.sleep(0.0005 if moment is None else 0.005)
        return None

    def stop(self, moment: float) -> float | None:
        """Asks dptrun to stop. Returns when; nothing if the run was over before."""
        time.sleep(moment)
        self.process.terminate()
        return time.monotonic() if self.finish((0, 75)) == 75 else None

    def finish(self, codes: tuple[int, ...] = (0,)) -> int:
        """Returns the exit code, which must be one of these."""
        try:
            self.process.wait(OPTIONS.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"no end in {OPTIONS.patience:g} s:\n{self.text()}") from None
        self._reader.join()
        assert self.process.returncode in codes, f"exit code {self.process.returncode}:\n{self.text()}"
        return self.process.returncode

    def text(self) -> str:
        return "\n".join(f"{at - self.began:7.2f} {line}" for at, line in self.lines)

    def first_step_after(self, moment: float) -> float | None:
        return next((at for at, line in self.lines if at > moment and "training continues with step" in line), None)


def results(path: str) -> dict[str, np.ndarray]:
    with h5py.File(path, "r") as log:
        assert log.attrs["finished"] == 1, path
        found = {field: log["epochs"][field] for field in ("epoch", "replica_hash", "train_loss", "test_loss", "samples")}
        if "steps" in log:
            found |= {f"step's {field}": log["steps"][field] for field in ("step", "train_loss")}
        return found


def told(name: str, times: list[float]) -> str:
    times = sorted(times)
    at = [times[min(len(times) - 1, int(np.ceil(share * (len(times) - 1))))] for share in (0.5, 0.9, 0.99)]
    return f"{name}: median {at[0]:.1f} s, 90 % {at[1]:.1f} s, 99 % {at[2]:.1f} s, at most {times[-1]:.1f} s"


def compare(name: str, run: Run, want: dict[str, np.ndarray]) -> None:
    try:
        got = results(run.log)
        for field, values in want.items():
            assert np.array_equal(values, got[field]), f"{field}: {values} and {got[field]}"
        assert not left_behind(), left_behind()
    except (AssertionError, OSError, KeyError) as error:
        raise AssertionError(f"{name}: {error}\n{run.text()}") from error


def check_last_step(run: Run) -> None:
    """A run that a killed rank has ended had come at least as far as the checkpoint from which the next one goes on."""
    text = run.text()
    for last, first in re.findall(r"run \d+ ended after step (\d+) or later: rank(?:.|\n)*?training continues with step (\d+)", text):
        assert int(first) - 1 <= int(last), text


def main() -> None:
    chance = random.Random(OPTIONS.seed)
    undisturbed = Run("undisturbed")
    undisturbed.finish()
    whole_s = length_s = time.monotonic() - undisturbed.began
    want = results("undisturbed.h5")
    recoveries: list[float] = []
    number = 0
    done = {"killed": 0, "stopped": 0}
    # A run may be over before its moment comes; another one takes its place, and has an earlier moment.
    for what, wanted in (("killed", OPTIONS.runs), ("stopped", (OPTIONS.runs + 9) // 10)):
        while done[what] < wanted:
            number += 1
            assert number <= 3 * OPTIONS.runs + 10, f"only {done} of {number} runs were there to be disturbed"
            name = f"run{number}"
            run = Run(name)
            # Not at the very end, where the run may be over before; start-up is about a third of the time.
            moment = chance.uniform(0.0, 0.9 * length_s)
            if what == "stopped":
                disturbed_at = run.stop(moment)
                run = Run(name, "--resume") if disturbed_at else run
            else:
                disturbed_at = run.kill(None if done[what] % 4 == 1 else moment, chance)
            if disturbed_at is None:
                length_s = time.monotonic() - run.began
            run.finish()
            check_last_step(run)
            compare(name, run, want)
            if disturbed_at is not None:
                done[what] += 1
                # A run that was killed after its last step has none to go on with.
                again = run.first_step_after(disturbed_at)
                if again is not None:
                    recoveries.append(again - disturbed_at)
                print(f"{name}: {what}{f'; the next step {again - disturbed_at:.1f} s later' if again else ''}", flush=True)
            shutil.rmtree(run.folder)
            pathlib.Path(run.log).unlink()
    print(f"{done['killed']} runs that were killed and {done['stopped']} that were stopped ended like the undisturbed one "
          f"({whole_s:.1f} s); {os.getloadavg()[0]:.0f} processes wanted {os.cpu_count()} cores")
    if recoveries:
        print(told(f"from the kill to the next step ({len(recoveries)})", recoveries))


folder = tempfile.mkdtemp()
try:
    os.chdir(folder)
    main()
finally:
    os.chdir("/")
    shutil.rmtree(folder)
