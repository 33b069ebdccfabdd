#!/usr/bin/python3
"""A long training on three hosts of a lab that loses 5 % of all frames, disturbed at random, ends as an undisturbed one.

    lab_soak.py DPLAB DPTRAIN soak [EPOCHS [SEED]]        250 epochs take about an hour
    lab_soak.py DPLAB DPTRAIN hosts [EPOCHS [SEED]]       hosts leave and join, too

dptrun keeps it running. Every few seconds a rank or mpirun is killed, a rank is stopped for a while, a cable is pulled
(for less or more than the time-out, in one direction or both), or a link gets another rate.

soak: always all three hosts, with uneven shares. The bits are those of a run that nothing has happened to.
hosts: on hosts of three speeds, with shares that follow them. Lines leave the hostfile and come back. Each step is there
once, replicas are equal after each epoch, and the loss ends near that of a run that nothing has happened to.
"""
from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import h5py

sys.dont_write_bytecode = True
from lab_tools import CASE, DPTRAIN, LAB, descendants, dplab, lab_members, started, up  # noqa: E402

EPOCHS = sys.argv[4] if len(sys.argv) > 4 else "250"
CHANCE = random.Random(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
WORDS = ["--model", "resnet20", "--limit-train", "480", "--limit-test", "32", "--epochs", EPOCHS, "--batch-size", "16", "--lr",
         "0.02", "--compress", "q8", "--threads", "1", "--autotune", "off", "--log-steps", "1", "--comm-timeout", "6"]
HOSTS = CASE == "hosts"
WORDS += ["--shares", "auto:min=4" if HOSTS else "3:2:1"]
HOSTFILE = pathlib.Path(tempfile.gettempdir(), f"lab_soak-{os.getpid()}")


def results(path: str) -> dict[str, list]:
    with h5py.File(path) as log:
        assert log.attrs["finished"] == 1, path
        return {f"{table}'s {column}": list(log[table][column])
                for table, column in (("epochs", "replica_hash"), ("epochs", "test_loss"), ("steps", "step"), ("steps", "train_loss"))}


def named(job: subprocess.Popen, *names: str) -> list[int]:
    """Processes of the job in the lab that have one of these names."""
    found = []
    for process, _ in descendants(job.pid) | lab_members(LAB):
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{process}/comm").read_text().strip() in names:
                found.append(process)
    return found


def send(signal_number: int, processes: list[int]) -> list[int]:
    """Sends it to one of them; which one."""
    for process in CHANCE.sample(processes, min(1, len(processes))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal_number)
            return [process]
    return []


def kill_a_rank(job: subprocess.Popen) -> None:
    send(signal.SIGKILL, named(job, "dptrain"))


def kill_mpirun(job: subprocess.Popen) -> None:
    send(signal.SIGKILL, named(job, "mpirun"))


def stop_a_rank(job: subprocess.Popen) -> None:
    stopped = send(signal.SIGSTOP, named(job, "dptrain"))
    time.sleep(CHANCE.choice((1.0, 2.5, 9.0)))
    with contextlib.suppress(ProcessLookupError):
        for process in stopped:
            os.kill(process, signal.SIGCONT)


def cut(_: subprocess.Popen) -> None:
    node = str(CHANCE.randint(2, 3))  # dptrun is on the first one
    dplab("cut", node, *CHANCE.choice(([], ["--only", "up"], ["--only", "down"])))
    time.sleep(CHANCE.choice((0.5, 2.0, 2.5, 10.0)))
    dplab("mend", node)


def change_a_rate(_: subprocess.Popen) -> None:
    dplab("rate", CHANCE.choice(("3mbit", "10mbit", "50mbit", "200mbit")), "--node", str(CHANCE.randint(1, 3)))


def leave_or_join(_: subprocess.Popen) -> None:
    """Another set of hosts. The first one, where dptrun is, stays."""
    now = HOSTFILE.read_text()
    others = [text for text in ("", "node2\n", "node3\n", "node2\nnode3\n") if f"node1\n{text}" != now]
    HOSTFILE.write_text("node1\n" + CHANCE.choice(others))
    time.sleep(CHANCE.uniform(10, 20))


EVENTS = (kill_a_rank, kill_mpirun, stop_a_rank, cut, cut, change_a_rate, change_a_rate) + (leave_or_join,) * 5 * HOSTS


def check_hosts(text: str, quiet: str, run: str) -> list[str]:
    """What is wrong; prints how long it took from the end of a run to the next step."""
    with h5py.File(quiet) as want, h5py.File(run) as got:
        wrong = [] if list(got["steps"]["step"]) == list(want["steps"]["step"]) else ["steps"]
        losses = [float(sum(log["epochs"]["train_loss"][-5:])) / 5 for log in (want, got)]
    wrong += [] if losses[1] < 1.2 * losses[0] + 0.05 else ["loss"]
    changes, waits = [], []
    for why, seconds in re.findall(r"(writes a checkpoint and goes on with)|training continues with step .*?, ([0-9.]+) s after", text):
        if why:
            changes.append(len(waits))
        else:
            waits.append(float(seconds))
    joins = [waits[place] for place in changes if place < len(waits)]
    print(f"training loss of the last epochs {losses[1]:.3f}, undisturbed {losses[0]:.3f}; {len(joins)} joins and leaves, from the end of a run to "
          f"the next step {statistics.median(joins or [0]):.1f} s in the median, {max(joins, default=0):.1f} s at most")
    return wrong


def main() -> int:
    speeds = ["--speeds", "1,0.7,0.5"] if HOSTS else []
    up("--nodes", "3", "--rate", "50mbit", "--loss", "5%", *speeds, "--while", str(os.getpid()))
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["mpirun", "-np", "3", DPTRAIN, *WORDS, "--log", f"{folder}/quiet.h5"]
        allowed = {f"OMPI_{name}": "1" for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe")}
        subprocess.run(quiet, check=True, stdout=subprocess.DEVNULL, env=os.environ | allowed)
        said = pathlib.Path(folder, "said")
        begin = time.monotonic()
        HOSTFILE.write_text("node1\nnode2\nnode3\n")
        with said.open("w") as errors:
            # dplab run would name all hosts.
            where = ["exec", "1", "--"] if HOSTS else ["run", "--give-up", "3600", "--"]
            which = ["--hostfile", str(HOSTFILE), "--join-after", "5"] if HOSTS else ["--min-hosts", "3"]
            job = started(*where, f"{os.path.dirname(DPTRAIN)}/dptrun", *which, "--max-restarts", "100", "--", DPTRAIN,
                          *WORDS, "--log", f"{folder}/run.h5", "--checkpoint", f"{folder}/checkpoints",
                          "--checkpoint-every", "5steps", stderr=errors)
        # Nobody reads what it prints; a full pipe would stop it.
        threading.Thread(target=job.stdout.read, daemon=True).start()
        done: collections.Counter[str] = collections.Counter()
        try:
            while job.poll() is None:
                time.sleep(CHANCE.uniform(1, 25))
                event = CHANCE.choice(EVENTS)
                if job.poll() is None:
                    event(job)
                    done[event.__name__] += 1
                    print(f"{time.monotonic() - begin:7.0f} s {event.__name__}, "
                          f"{said.read_text().count('training continues with step')} restarts so far", flush=True)
        finally:
            dplab("down")
            job.kill()
            HOSTFILE.unlink()
        text = said.read_text()
        assert job.returncode == 0, (job.returncode, text)
        want, got = results(f"{folder}/quiet.h5"), results(f"{folder}/run.h5")
        wrong = (check_hosts(text, f"{folder}/quiet.h5", f"{folder}/run.h5") if HOSTS else
                 [name for name in want if want[name] != got[name]])
        steps, restarts = len(want["steps's step"]), text.count("training continues with step")
        print(f"{time.monotonic() - begin:.0f} s, {dict(done)}, {restarts} restarts, {steps} steps; "
              f"differs: {wrong or 'nothing'}")
        return 1 if wrong else 0


sys.exit(main())
