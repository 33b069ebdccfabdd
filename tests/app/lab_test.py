#!/usr/bin/python3
"""dplab: errors, real labs of a few hosts, training across them.  lab_test.py DPLAB DPTRAIN CASE

Rates and times here are properties of the lab's links, checked to a factor of two. Exit code 77: not possible here.
"""
from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from lab_tools import (CASE, DPLAB, DPTRAIN, HEAR, LAB, PYTHON, SAY, TINY, between, descendants, dplab, goodput, is_running,
                       lab_members, processes, reaches, received_bytes, skip, started, up, wait_for)  # noqa: E402


def options() -> None:
    """Wrong words on the command line; most of them asked in this process, which is faster."""
    loader = importlib.machinery.SourceFileLoader("dplab", DPLAB)
    program = importlib.util.module_from_spec(importlib.util.spec_from_loader("dplab", loader))
    loader.exec_module(program)
    for line, text in (
            ("up --nodes 1", "from 2 to 64"), ("up --nodes 65", "from 2 to 64"), ("up --nodes x", "from 2 to 64"),
            ("up --speeds 1,x", "a speed from 0.01 to 100"), ("up --speeds 1,0", "a speed from 0.01 to 100"),
            ("up --speeds 1", "for each of 2 to 64"), ("up --speeds 1,1 --nodes 3", "2 speeds for 3 hosts"),
            ("speed 101", "from 0.01 to 100"), ("speed nan", "from 0.01 to 100"),
            ("up --rate 100", "from 100kbit to 10gbit"), ("up --rate 99kbit", "from 100kbit to 10gbit"),
            ("up --rate nanmbit", "from 100kbit to 10gbit"), ("up --rate -5mbit", "from 100kbit to 10gbit"),
            ("up --delay 5", "such as 5ms"), ("up --delay 3s", "from 0ms to 2s"), ("up --loss 0.1", "such as 0.1%"),
            ("up --loss 51%", "from 0% to 50%"), ("up --flip 0", "from 1 to 1000000"), ("up --flip x", "from 1 to 1000000"), ("up --filter x", "auto"), ("up --rat 5mbit", "--rat"),
            ("up stray", "stray"), ("up -- x", "no -- COMMAND"), ("up --rate 5mbit --rate 6mbit", "given twice"),
            ("up --lab A", "lower-case"), ("run", "must follow --"), ("run --", "must follow --"),
            ("run dptrain --compress q9", "must follow --"), ("exec 1", "must follow --"),
            ("run --ranks-per-node 0 -- x", "from 1 to 64"), ("run --give-up 1 -- x", "from 5 to 3600"),
            ("exec -- x", "node"), ("rate", "rate"),
            ("rate 0mbit", "100kbit"), ("cut", "node"), ("fly", "fly"), ("", "COMMAND"),
            ("up --nodes ''", "'': must be a whole number"), ("up --nodes -1", "-1: must be a whole number"),
            ("up --nodes 99999999999999999999", "from 2 to 64"), ("up --nodes nan", "from 2 to 64"),
            ("up --rate ''", "'': must be a rate"), (f"up --rate {'9' * 400}gbit", "..."), ("up --rate 5", "such as 50mbit"),
            ("up --delay ''", "'': must be a time"), ("up --delay -1ms", "from 0ms to 2s"),
            ("up --delay nanms", "from 0ms to 2s"), ("up --loss ''", "'': must be a percentage"),
            ("up --loss -1%", "from 0% to 50%"), ("up --loss nan%", "from 0% to 50%"), ("up --filter ''", "''"),
            ("up --congestion ''", "'': must be the name of a TCP congestion control"),
            ("up --congestion x/y", "must be the name"), (f"up --congestion {'x' * 16}", "must be the name"),
            ("up --lab ''", "'': must be a name"), ("up --while 0", "from 1 to"), ("up --while 4194304", "no such process"),
            ("run --give-up '' -- x", "'': must be a whole number"), ("run --ranks-per-node -1 -- x", "from 1 to 64")):
        words = shlex.split(line)
        try:
            program.main(words)
        except program.LabError as error:
            assert error.code == 2 and text in str(error) and "\n" not in str(error), f"{words}: {error.code}, {error}"
        else:
            raise AssertionError(f"{words} is accepted")
    done = subprocess.run([DPLAB, "up", "--nodes", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and re.fullmatch("dplab: --nodes: 1: .*\n", done.stderr), done.stderr
    for words in ([], ["up"]):
        done = subprocess.run([DPLAB, *words, "--help"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "usage: dplab" in done.stdout, words
    # Neither root's rights nor user namespaces: a user namespace that allows no further ones.
    forbidden = ("echo 0 >/proc/sys/user/max_user_namespaces && "
                 "exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin")
    inside = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    if shutil.which("tc") and subprocess.run([*inside, f"{forbidden} true"], capture_output=True).returncode == 0:
        done = subprocess.run([*inside, f'{forbidden} "$0" up --lab {LAB}', DPLAB], capture_output=True, text=True)
        assert done.returncode == 77 and "may make no network namespaces" in done.stderr, done.stderr
    nothing = {"PATH": "/nonexistent"}
    assert "apt-get install iproute2" in dplab("up", code=1, env=nothing)
    if shutil.which("tc"):
        for words in (["cut", "1"], ["status"], ["run", "--", "true"], ["exec", "1", "--", "true"]):
            assert "no lab called" in dplab(*words, code=1)
    assert "no such lab" in dplab("down")
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([DPLAB, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "No space left" in done.stderr, done.stderr


def link_in(*words: str) -> list[str]:
    """What a command is told of the links, by run or exec: bit/s, delay, loss, whether they are shared."""
    names = "".join(f" $DPTRAIN_LINK_{name}" for name in ("BIT_PER_S", "DELAY_S", "LOSS", "SHARED"))
    said = {line for line in dplab(*words, "--", "sh", "-c", f"echo link{names}").splitlines() if line.startswith("link ")}
    assert len(said) == 1, f"{words}: {said}"
    return said.pop().split()[1:]


BUSY = """import sys, time
while True:
  cpu, wall = time.process_time(), time.monotonic()
  while time.monotonic() < wall + 1: pass
  print((time.process_time() - cpu) / (time.monotonic() - wall), flush=True)"""


def host_scan() -> None:
    """Measures what is missing, once, in a lab of its own; prints and draws it."""
    up("--nodes", "2")  # skips where no lab is possible
    dplab("down")
    with tempfile.TemporaryDirectory() as folder:
        words = ["--hosts", "2", "--rates", "100mbit", "--codecs", "q8", "--topologies", "ring,direct", "--steps", "1",
                 "--compute-ms", "5", "--out", f"{folder}/out"]
        command = [f"{os.path.dirname(DPLAB)}/host_scan", *words]

        def scan(*more: str) -> tuple[int, list[str], str]:
            done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120, check=False)
            return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("| q8")], done.stderr

        code, lines, errors = scan()
        assert code == 0 and len(lines) == 2, (code, lines, errors)
        for topology, line in zip(("ring", "direct"), lines):
            assert re.fullmatch(rf"\| q8 \| {topology} \| [0-9]+\*? \([0-9]+\) \|", line), line
        rows = pathlib.Path(folder, "out/steps.csv").read_text()
        assert rows.count("\n") == 3, rows
        assert scan()[:2] == (0, lines) and pathlib.Path(folder, "out/steps.csv").read_text() == rows  # nothing is missing
        code, lines, errors = scan("--topologies", "star")
        assert code == 1 and not lines and "--topology star: must be" in errors, (code, lines, errors)


def speeds() -> None:
    """Hosts may use their part of a core and no more, and another one as soon as it is changed."""
    done = subprocess.run([DPLAB, "up", "--speeds", "1,1,1,1,1,0.25", "--lab", LAB], capture_output=True, text=True, timeout=60)
    if done.returncode == 77 or (done.returncode == 1 and re.search("apt-get|no cgroups|may not limit", done.stderr)):
        assert done.stderr.count("\n") == 1, done.stderr
        skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    unit = float(re.search("speed 1 is ([0-9.]+) of a core", done.stdout)[1])
    groups = [folder for root in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup")
              for folder in pathlib.Path(root).glob(f"dplab-{os.getuid()}-{LAB}-*")]
    assert groups, "no cgroups"
    assert "1, 1, 1, 1, 1, 0.25" in dplab("status", "--quick")
    with contextlib.ExitStack() as ends:
        busy = {}
        for node in ("1", "6"):
            busy[node] = ends.enter_context(started("exec", node, "--", PYTHON, "-c", BUSY))
            ends.callback(busy[node].terminate)

        def used(node: str) -> float:
            return min(float(busy[node].stdout.readline()) for _ in range(2))

        between(unit / 4, used("1"), 1.3 * unit, "cores of speed 1")
        between(unit / 16, used("6"), 1.3 * unit / 4 + 0.02, "cores of speed 0.25")
        assert "node6: speed 1" in dplab("speed", "1", "--node", "6")
        for _ in range(4):  # what was counted before the change
            busy["6"].stdout.readline()
        between(1.4 * unit / 4, used("6"), 1.3 * unit, "cores of speed 1 after the change")
    assert "at most" in dplab("speed", "100", code=2)
    up("--speeds", "1,1")  # in the place of the other one
    wait_for(lambda: not any(group.exists() for group in groups), "the old lab's cgroups are removed")
    assert "hosts 1 to 2" in dplab("speed", "1", "--node", "3", code=2)
    dplab("down")
    wait_for(lambda: not any(group.exists() for group in groups), "the cgroups are removed")
    up("--nodes", "2")
    assert "have no speeds" in dplab("speed", "1", code=2)


def links() -> None:
    """Rates in both directions, cut and mend, changed rates, two labs at once, another shape."""
    up("--nodes", "2", "--congestion", "reno")
    assert "TCP with reno" in dplab("status", "--quick")
    assert "which this kernel has" in dplab("up", "--congestion", "nosuch", code=2)
    assert "TCP with reno" in dplab("status", "--quick"), "the old lab is gone, and there is no new one"
    up("--nodes", "3", "--rate", "20mbit")
    assert re.search("TCP with (cubic|reno)", dplab("status", "--quick"))
    for pair in ((1, 2), (2, 1)):
        between(10, goodput(pair), 40, f"Mbit/s of {pair} at 20mbit")
    between(20, goodput((1, 2), (2, 3), (3, 1)), 120, "Mbit/s of three links at once, 20mbit each")
    dplab("cut", "2")
    assert "cut" in dplab("status", "--quick").splitlines()[3]
    assert not reaches(1, 2) and not reaches(2, 1) and reaches(1, 3)
    assert "node2 cannot be reached" in dplab("run", "--", "true", code=1)
    dplab("mend", "2")
    assert reaches(1, 2) and reaches(2, 1)
    dplab("rate", "5mbit", "--node", "2")
    between(2.5, goodput((1, 2)), 10, "Mbit/s at 5mbit")
    between(10, goodput((1, 3)), 40, "Mbit/s of another link at 20mbit")
    assert link_in("exec", "1") == ["5000000", "0", "0", "0"], "the slowest host's rate"
    if shutil.which("mpirun"):
        assert link_in("run") == ["5000000", "0", "0", "0"], "on all hosts"
    assert "hosts 1 to 3" in dplab("cut", "4", code=2)

    def slow_down() -> None:
        time.sleep(0.3)
        dplab("rate", "10mbit", "--node", "3")
        time.sleep(5)  # what was sent at 1 Gbit/s is lost and sent again

    # In the queues are pieces of 64 kB, more than a link of 10 Mbit/s lets through at once.
    dplab("rate", "1gbit", "--node", "3")
    dplab("rate", "1gbit", "--node", "1")
    between(1, goodput((3, 1), meanwhile=slow_down), 20, "Mbit/s after 1 Gbit/s became 10 Mbit/s")
    dplab("rate", "20mbit", "--node", "1")
    dplab("rate", "20mbit", "--node", "3")
    rows = [line.split() for line in dplab("status").splitlines() if line.startswith("node")]
    assert len(rows) == 3, rows
    for row, rate in zip(rows, (20, 5, 20)):
        between(rate / 2, float(row[5]), 2 * rate, f"{row[0]}, up")
        between(rate / 2, float(row[6]), 2 * rate, f"{row[0]}, down")

    other = f"{LAB}-b"
    dplab("up", "--nodes", "2", lab=other)
    try:
        assert dplab("exec", "2", "--", "hostname", lab=other) == "node2\n"
        before = received_bytes(2, other)
        goodput((1, 2))
        assert received_bytes(2, other) == before, "two labs hear each other"
    finally:
        dplab("down", lab=other)
    up("--nodes", "2")
    assert "hosts 1 to 2" in dplab("exec", "3", "--", "true", code=2)
    assert reaches(1, 2)


def media() -> None:
    """A medium that all share."""
    up("--nodes", "2", "--rate", "20mbit", "--shared")
    between(10, goodput((1, 2), (2, 1)), 24, "Mbit/s both ways over a shared medium of 20mbit")
    dplab("rate", "5mbit")
    between(2.5, goodput((1, 2), (2, 1)), 6.5, "Mbit/s both ways over a shared medium of 5mbit")
    assert "leave out --node" in dplab("rate", "5mbit", "--node", "1", code=2)
    assert link_in("exec", "2") == ["5000000", "0", "0", "1"]


def delay_and_loss() -> None:
    """Where the machine can make them: frames arrive later, or never."""
    up("--nodes", "2")
    done = subprocess.run([DPLAB, "up", "--lab", LAB, "--nodes", "2", "--rate", "20mbit", "--delay", "30ms"],
                          capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        assert "sch_netem" in done.stderr, done.stderr
        skip(done.stderr.strip())
    row = [line.split() for line in dplab("status").splitlines() if line.startswith("node1")][0]
    between(60, float(row[7]), 120, "ms of round trip at a delay of 30ms")
    between(10, float(row[5]), 40, "Mbit/s at 20mbit with a delay")

    known = [line.split() for line in dplab("exec", "1", "--", "cat", "/proc/net/arp").splitlines()[1:]]
    assert {(row[0], row[2]) for row in known} == {("10.99.0.2", "0x6"), ("10.99.0.254", "0x6")}, f"not known: {known}"
    dplab("rate", "1gbit")
    for kind in ("rmem", "wmem"):
        most = int(dplab("exec", "1", "--", "cat", f"/proc/sys/net/ipv4/tcp_{kind}").split()[2])
        assert most >= 4 * 1e9 / 8 * 0.06, f"tcp_{kind}, {most} bytes, cannot fill 1 Gbit/s over 60 ms"

    assert "with loss dplab's wire carries" in dplab(
        "up", "--nodes", "2", "--rate", "0.5gbit", "--delay", "50us", "--loss", "0.1%", "--filter", "tap")
    assert link_in("exec", "switch") == ["500000000", "0.00005", "0.001", "0"]

    dplab("up", "--nodes", "2", "--rate", "20mbit", "--loss", "20%")
    for by, to in ((1, 2), (2, 1)):
        assert any(reaches(by, to) for _ in range(10)), "addresses are found, though frames are lost"
        listener = started("exec", str(to), "--", PYTHON, "-c", HEAR)
        assert listener.stdout.readline() == "ready\n"
        dplab("exec", str(by), "--", PYTHON, "-c", SAY, f"10.99.0.{to}")
        # The standard deviation is 13 of 800.
        between(700, int(listener.communicate(timeout=30)[0]), 900, "of 1000 frames at a loss of 20%")


def training() -> None:
    """Output, input and exit code of all ranks; dptrain over TCP through the links; nothing survives the command."""
    up("--nodes", "2")
    if shutil.which("mpirun") is None:
        skip("no mpirun")
    text = dplab("run", "--ranks-per-node", "2", "--", "sh", "-c", "echo I am on $(hostname)")
    assert text.count("I am on node1") == 2 and text.count("I am on node2") == 2, text
    dplab("run", "--", "sh", "-c", "exit 3", code=3)
    files_are_missing_on_a_host()
    dplab("exec", "2", "--", "sh", "-c", "exit 5", code=5)
    pipe = dplab("exec", "2", "--", "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}")
    assert pipe == "y\n141\n", f"SIGPIPE ends a writer: {pipe}"
    assert "hello" in dplab("run", "--", "cat", input="hello\n")
    assert "run starts mpirun itself" in dplab("run", "--", "mpirun", "true", code=2)
    assert "no such program" in dplab("run", "--", "no-such-program", code=127)
    text = dplab("exec", "1", "--", "mpirun", "-np", "2", "hostname")
    assert "node1" in text and "node2" in text, text

    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/run.h5"
        before = [received_bytes(node) for node in (1, 2)]
        text = dplab("run", "--", DPTRAIN, *TINY, "--log", log)
        moved = [received_bytes(node) - old for node, old in zip((1, 2), before)]
        share = max(1, len(os.sched_getaffinity(0)) // 2)
        assert re.search(rf"--threads\s+{share}\n", text), f"a rank has its share of the machine, {share}:\n{text}"
        # ResNet-20 in fp32, a ring of 2: every rank sends the gradient once in each of 2 steps.
        expected = 2 * 4 * 269_722
        assert all(bytes_ > expected for bytes_ in moved), f"{moved} bytes over the links, not {expected}"
        try:
            import h5py
        except ImportError:
            print("the log was not read: no h5py")
        else:
            with h5py.File(log) as file:
                assert list(file.attrs["hosts"]) == ["node1", "node2"] and file.attrs["finished"] == 1
                assert file.attrs["cores_per_rank"] == len(os.sched_getaffinity(0)) / 2, "hosts share the machine's cores"
                received = file["ranks"]["received_bytes"]
                assert all(over >= said for over, said in zip(moved, received)), (moved, list(received))
                # Node 2's interface received all that node 1's connections sent. Its counter may have one header for several
                # segments, so it may be a little lower.
                assert file.attrs["wire_bytes_are"] == "measured"
                wire = list(file["ranks"]["wire_bytes"])
                assert all(1.04 * expected < of_rank < 1.05 * other for of_rank, other in zip(wire, moved[::-1])), (wire, moved)
        if os.environ.get("DP_SANITIZE") != "thread":  # GCC's OpenMP is not instrumented: reports would never end
            text = dplab("run", "--", DPTRAIN, *TINY, "--threads=2", "--log", "none")
            assert re.search(r"--threads\s+2\n", text), f"the user's own threads:\n{text}"

    # mpirun waits for ever for a daemon on a host that it does not reach, also when all ranks have ended.
    dplab("run", "--give-up", "5", "--", "sleep", "9")
    with tempfile.TemporaryDirectory() as folder:
        waits = pathlib.Path(folder) / "mpirun"
        waits.write_text("#!/bin/sh\nexec sleep 1000\n", encoding="ascii")
        waits.chmod(0o755)
        path = {"PATH": f"{folder}:{os.environ['PATH']}"}
        assert "mpirun waits" in dplab("run", "--give-up", "5", "--", "true", code=137, env=os.environ | path)

    sleeper = f"98765.{os.getpid()}"
    job = started("run", "--", "sleep", sleeper)
    wait_for(lambda: len(processes(f"sleep {sleeper}")) >= 4, "the job runs on both hosts")
    job.kill()
    job.wait(20)
    wait_for(lambda: not processes(f"sleep {sleeper}"), "a killed dplab leaves its job behind")
    job = started("run", "--", "sleep", sleeper)
    wait_for(lambda: len(processes(f"sleep {sleeper}")) >= 4, "the job runs on both hosts")
    dplab("cut", "2")  # where mpirun cannot end what it has started
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 143
    assert not processes(f"sleep {sleeper}"), "a job that was ended leaves something behind"


def files_are_missing_on_a_host() -> None:
    """Each host has a disk of its own: whatever is wrong with a host's files, the message names the host."""
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
    with tempfile.TemporaryDirectory() as top:
        for node in ("node1", "node2"):
            (pathlib.Path(top) / node / "data").mkdir(parents=True)
            for name in names:
                (pathlib.Path(top) / node / "data" / name).write_bytes(bytes(2 * 3073))
        last = pathlib.Path(top) / "node2" / "data" / names[-1]
        program = shlex.join([DPTRAIN, *TINY, "--data-dir", "data", "--log", "none"])

        def complaint() -> str:
            text = dplab("run", "--", "sh", "-c", f"cd {top}/$(hostname) && exec {program}", code=3)
            said = [line for line in text.splitlines() if line.startswith("dptrain: ")]
            assert len(said) == 1, text
            return said[0]

        for damage, why in ((lambda: last.write_bytes(bytes(3073)), "the data of rank 1 on node2 differ"),
                            (lambda: last.write_bytes(bytes(3000)), "on host node2: data/test_batch.bin: has 3000 bytes"),
                            (last.unlink, "on host node2: data/test_batch.bin: missing"),
                            (lambda: shutil.rmtree(last.parent), "on host node2: --data-dir data: ")):
            damage()
            assert why in complaint(), (why, complaint())


def flips() -> None:
    """A bit that TCP does not notice ends the run, in a dense and in a compressed exchange; no rank is left."""
    for codec, flip in (("none", "40"), ("q8", "10")):
        up("--nodes", "3", "--rate", "1gbit", "--flip", flip)
        said = dplab("run", "--", DPTRAIN, *TINY, "--compress", codec, "--log", "none", code=4)
        found = re.findall(r"damaged on the way between rank (\d) and rank (\d) \(hosts node(\d) and node(\d)\)", said)
        assert found, said
        for sender, receiver, host, other in found:
            assert sender != receiver and int(host) == int(sender) + 1 and int(other) == int(receiver) + 1, said
        wait_for(lambda: not processes(f"{DPTRAIN} --limit-train"), "no rank is left")
    # Without flips the same run ends well.
    up("--nodes", "3", "--rate", "1gbit", "--filter", "tap", "--delay", "50us")
    dplab("run", "--", DPTRAIN, *TINY, "--compress", "q8", "--log", "none")


def cut_in_training() -> None:
    """A cable is out for three seconds while ranks train: they wait, and learn what they would have learnt."""
    up("--nodes", "2", "--rate", "20mbit")
    if shutil.which("mpirun") is None:
        skip("no mpirun")
    try:
        import h5py
    except ImportError:
        skip("no h5py")
    words = [*TINY, "--limit-train", "512", "--epochs", "3", "--compress", "q8", "--log-steps", "1"]
    words = [word for pair in dict(zip(words[::2], words[1::2])).items() for word in pair]
    with tempfile.TemporaryDirectory() as folder:
        dplab("run", "--", DPTRAIN, *words, "--log", f"{folder}/whole.h5")
        before = received_bytes(1)
        job = started("run", "--", DPTRAIN, *words, "--log", f"{folder}/cut.h5")
        wait_for(lambda: received_bytes(1) > before + 1_000_000, "some steps of the training")
        dplab("cut", "2")
        time.sleep(3)
        assert job.poll() is None, "the training ended before the cable was back"
        dplab("mend", "2")
        assert job.wait(120) == 0
        with h5py.File(f"{folder}/whole.h5") as whole, h5py.File(f"{folder}/cut.h5") as cut:
            for table, column in (("epochs", "replica_hash"), ("epochs", "test_loss"), ("steps", "train_loss")):
                assert list(cut[table][column]) == list(whole[table][column]), (table, column)
            assert max(cut["steps"]["step_s"]) > 2, "the cut is not to be seen"


def restarts() -> None:
    """dptrun: a rank that is killed is replaced, and a host that is cut for ever is left out."""
    up("--nodes", "3", "--rate", "100mbit")
    if shutil.which("mpirun") is None:
        skip("no mpirun")
    try:
        import h5py
    except ImportError:
        skip("no h5py")
    dptrun = f"{os.path.dirname(DPTRAIN)}/dptrun"
    words = dict(zip(TINY[::2], TINY[1::2])) | {"--limit-train": "768", "--epochs": "3", "--comm-timeout": "4"}
    with tempfile.TemporaryDirectory() as folder:
        said = pathlib.Path(folder, "said")

        def goes_on(times: int) -> bool:
            return said.read_text().count("training continues with step") >= times

        def rank(number: int) -> int:
            for process, _ in descendants(job.pid):
                with contextlib.suppress(OSError):
                    if f"OMPI_COMM_WORLD_RANK={number}\0" in pathlib.Path(f"/proc/{process}/environ").read_text() and \
                            pathlib.Path(f"/proc/{process}/comm").read_text() == "dptrain\n":
                        return process
            raise AssertionError(f"no rank {number}")

        with said.open("w") as errors:
            job = started("run", "--", dptrun, "--", DPTRAIN, *(word for pair in words.items() for word in pair), "--log",
                          f"{folder}/run.h5", "--checkpoint", f"{folder}/checkpoints", "--checkpoint-every", "4steps",
                          stderr=errors)
        wait_for(lambda: any(pathlib.Path(folder).glob("checkpoints/*.ckpt")), "a checkpoint")
        os.kill(rank(1), signal.SIGKILL)
        wait_for(lambda: goes_on(1), f"a restart after a kill: {said.read_text()}")
        dplab("cut", "3")
        printed, _ = job.communicate(timeout=120)
        text = said.read_text()
        assert job.returncode == 0 and "epoch 3/3" in printed, (job.returncode, text, printed)
        assert "no answer from node3; 2 of 3 hosts answer" in text and goes_on(2), text
        with h5py.File(f"{folder}/run.h5") as log:
            # The second session is not in the log if it has ended before its first checkpoint.
            assert log.attrs["finished"] == 1 and list(log["sessions"]["world_size"]) in ([3, 3, 2], [3, 2])
            assert list(log["epochs"]["epoch"]) == [0, 1, 2] and set(log["epochs"]["samples"]) == {768}


def in_a_cut_training(cut: tuple[str, ...], mend_s: float | None, log: str, timeout_s: str) -> tuple[int, str]:
    """Trains on three hosts and pulls a cable, for a while or for good. The exit code and what was said."""
    words = [*TINY, "--limit-train", "480", "--epochs", "3", "--compress", "q8", "--comm-timeout", timeout_s]
    words = [word for pair in dict(zip(words[::2], words[1::2])).items() for word in pair]
    before = received_bytes(1)
    job = started("run", "--", DPTRAIN, *words, "--log", log, stderr=subprocess.PIPE)
    wait_for(lambda: received_bytes(1) > before + 1_000_000, "some steps of the training")
    if cut:
        dplab("cut", *cut)
    if mend_s is not None:
        time.sleep(mend_s)
        dplab("mend", cut[0])
    said = job.communicate(timeout=150)[1]
    if cut and mend_s is None:
        dplab("mend", cut[0])
    return job.returncode, said


def cuts_and_their_ends() -> None:
    """Shorter than half of the time-out: the same bits. For ever, or in one direction: named, exit 4, all ended."""
    up("--nodes", "3", "--rate", "20mbit")
    if shutil.which("mpirun") is None:
        skip("no mpirun")
    try:
        import h5py
    except ImportError:
        skip("no h5py")
    with tempfile.TemporaryDirectory() as folder:
        hashes = []
        for name, cut in (("whole", ()), ("short", ("3",))):
            code, said = in_a_cut_training(cut, 2.0 if cut else None, f"{folder}/{name}.h5", "60")
            assert code == 0, said
            with h5py.File(f"{folder}/{name}.h5") as log:
                hashes.append(list(log["epochs"]["replica_hash"]))
        assert hashes[0] == hashes[1], hashes

        for name, cut, finding in (
                ("ever", ("3",), "nothing has arrived from node3 at node1 meanwhile"),
                ("up", ("3", "--only", "up"), "nothing has arrived from node3 at node1 meanwhile, so host node3 is down, "
                 "or the link between node1 and node3 is dead, in both directions or from node3 to node1"),
                ("down", ("3", "--only", "down"), "the link from node1 to node3 is dead in this direction")):
            code, said = in_a_cut_training(cut, None, f"{folder}/{name}.h5", "4")
            lines = [line for line in said.splitlines() if line.startswith("dptrain: ") and "silent" in line]
            assert code == 4 and len(lines) == 1, (name, code, said)
            # Between two epochs it is a sum or a distribution over all ranks.
            assert re.match(r"dptrain: rank 2 on host node3 has been silent for \d+ s in (the exchange of bucket \d+ in step "
                            r"\d+|an? [a-z ]+ over all ranks after step \d+): ", lines[0]) and finding in lines[0], (name, lines)
            wait_for(lambda: not processes(f"{name}.h5"), "a rank is left")


def check() -> None:
    """dptrain --check on four hosts, one with a slow link: every pair, and go; then hosts that differ."""
    up("--nodes", "4", "--rate", "20mbit")
    if shutil.which("mpirun") is None:
        skip("no mpirun")
    dplab("rate", "5mbit", "--node", "3")
    text = dplab("run", "--", DPTRAIN, "--check", *TINY, "--log", "none")
    pairs = {tuple(words[:2]): [float(words[2]), float(words[4])] for words in map(str.split, text.splitlines())
             if len(words) > 5 and words[0].startswith("node") and words[1].startswith("node")}
    assert set(pairs) == {(f"node{a}", f"node{b}") for a in range(1, 5) for b in range(a + 1, 5)}, text
    for pair, rates in pairs.items():
        expected = 5 if "node3" in pair else 20
        for rate in rates:
            between(expected / 2, rate, 2 * expected, f"Mbit/s of {pair}")
    assert re.search(r"node2 +node4 .* % +(\w+), 10\.\d+\.\d+\.\d+ +\1, 10\.\d+\.\d+\.\d+\n", text), text
    assert "go: this run can start" in text, text
    # Other data on one host, and a disk that cannot be written.
    with tempfile.TemporaryDirectory() as top:
        for node in range(1, 5):
            folder = pathlib.Path(top) / f"node{node}" / "data"
            folder.mkdir(parents=True)
            for name in [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]:
                (folder / name).write_bytes(bytes([node // 4]) + bytes(4 * 3073 - 1))
        program = shlex.join([DPTRAIN, "--check", *TINY, "--data-dir", "data", "--log", "none"])
        text = dplab("run", "--", "sh", "-c", f"cd {top}/$(hostname) && exec {program}", code=3)
        assert "the data of rank 3 on node4 differ" in text and "no go" in text and "latency" in text, text


def leftovers() -> None:
    """Nothing of a lab remains after down, after an interrupted up, and after all of it was killed."""
    interfaces = set(os.listdir("/sys/class/net"))
    shared = set(os.listdir("/dev/shm"))
    up("--nodes", "3")
    sleeper = f"98765.{os.getpid()}"
    job = started("exec", "2", "--", "sleep", sleeper, stderr=subprocess.PIPE)
    wait_for(lambda: len(processes(f"sleep {sleeper}")) >= 2, "the command runs")
    dplab("down")
    assert job.wait(20) != 0 and "has ended" in job.stderr.read()
    assert not processes(LAB) and not processes(f"sleep {sleeper}")

    up("--nodes", "3", "--delay", "0ms")
    job = started("exec", "2", "--", "sleep", sleeper, stderr=subprocess.PIPE)
    wait_for(lambda: len(processes(f"sleep {sleeper}")) >= 2, "the command runs")
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if line[1:2] == [b"-I"] and line[3:5] == [b"--lab", LAB.encode()] and line[2].endswith(b"holder.py"):
            os.kill(int(folder.name), signal.SIGKILL)
    job.wait(20)
    wait_for(lambda: not processes(f"sleep {sleeper}"), "what ran in a killed lab lives on")
    assert "no such lab" in dplab("down")

    # A lab that ends with another process, as it ends by kill -9, too.
    with subprocess.Popen(["sleep", "99"]) as owner:
        dplab("up", "--nodes", "2", "--while", str(owner.pid))
        job = started("exec", "2", "--", "sleep", sleeper, stderr=subprocess.PIPE)
        wait_for(lambda: len(processes(f"sleep {sleeper}")) >= 2, "the command runs")
        owner.kill()
    job.wait(20)
    wait_for(lambda: not processes(f"--lab {LAB} ") and not processes(f"sleep {sleeper}"), "a lab outlives its owner")

    # Two at once: one of them makes it, the other says why it does not, or comes after and replaces it.
    makers = [subprocess.Popen([DPLAB, "up", "--lab", LAB], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
              for _ in range(3)]
    said = [maker.communicate(timeout=60)[0] for maker in makers]
    for maker, text in zip(makers, said):
        assert text.count("\n") == 1 and (maker.returncode == 0 or "another dplab is making" in text), said
    assert any(maker.returncode == 0 for maker in makers), said
    assert dplab("exec", "1", "--", "hostname") == "node1\n"
    with tempfile.TemporaryDirectory() as gone:
        os.chdir(gone)
    assert "the current folder is gone" in dplab("exec", "1", "--", "true", code=1)
    os.chdir("/")
    dplab("down")

    for delay_s in (0.05, 0.15, 0.25, 0.35):
        making = subprocess.Popen([DPLAB, "up", "--nodes", "16", "--lab", LAB], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        time.sleep(delay_s)
        making.send_signal(signal.SIGINT)
        if making.wait(60) == 0:
            dplab("down")
        wait_for(lambda: not processes(LAB), f"up, interrupted after {delay_s} s, leaves a process")
    assert set(os.listdir("/sys/class/net")) == interfaces
    now = os.listdir("/dev/shm")
    assert {name for name in now if re.search(r"\.node\d+\.", name)} <= shared, (now, shared)
    assert os.listdir(pathlib.Path(DPLAB).parent / "lab" / "state") == ["README"]


def ordinary_user() -> None:
    """Without root's rights a lab lives in a user namespace."""
    if os.geteuid() != 0:
        skip("the other tests of the lab ran as an ordinary user already")
    nobody = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    if subprocess.run(["cat", DPLAB], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **nobody).returncode != 0:
        skip("an ordinary user cannot read this checkout")
    try:
        up("--nodes", "2", "--rate", "20mbit", **nobody)
        assert dplab("exec", "2", "--", "hostname", **nobody) == "node2\n"
        row = [line.split() for line in dplab("status", **nobody).splitlines() if line.startswith("node2")][0]
        between(10, float(row[5]), 40, "up")
        if shutil.which("mpirun"):
            text = dplab("run", "--", "sh", "-c", "echo I am on $(hostname)", **nobody)
            assert "node1" in text and "node2" in text
        assert "no lab called" in dplab("status", code=1), "labs belong to their users"
    finally:
        dplab("down", **nobody)


def sweep() -> None:
    """dpsweep --lab: a point on two hosts; the lab is gone afterwards, and when dpsweep is ended, too."""
    up("--nodes", "2")
    dplab("down")
    if shutil.which("mpirun") is None:
        skip("no mpirun")
    options = " ".join(TINY)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "study.ini").write_text(
            f"[study]\nranks = 2\nrate = 50mbit\noptions = {options}\n[short]\n[long]\nepochs = 100000\n",
            encoding="utf-8")

        def dpsweep(only: str) -> subprocess.Popen:
            return subprocess.Popen([pathlib.Path(DPLAB).with_name("dpsweep"), "study.ini", "--lab", "--only", only,
                                     "--dptrain", DPTRAIN, "--out", "out"], cwd=folder, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True)

        def is_gone(lab: str) -> None:
            assert not processes(f"{lab} "), f"the lab {lab} is there: {processes(lab)}"
            assert "no such lab" in dplab("down", lab=lab)

        run = dpsweep("short")
        said = run.communicate(timeout=120)[0]
        assert run.returncode == 0, said
        assert (folder / "out/short.h5").exists(), said
        text = (folder / "out/short.txt").read_text(encoding="utf-8")
        assert "--nodes 2 --rate 50mbit" in text and "--throttle" not in text, text
        is_gone(f"sweep{run.pid}")
        again = dpsweep("short")
        said = again.communicate(timeout=60)[0]
        assert again.returncode == 0 and "[1/1]" not in said, f"what was done in another lab is done: {said}"

        begun = re.compile("^epoch +1/", re.MULTILINE)
        run = dpsweep("long")
        text = folder / "out/long-100000.txt"
        wait_for(lambda: text.exists() and begun.search(text.read_text(encoding="utf-8")), "the run begins")
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 143
        assert not processes(name), f"left over: {processes(name)}"
        is_gone(f"sweep{run.pid}")

        text.unlink()
        run = dpsweep("long")
        wait_for(lambda: text.exists() and begun.search(text.read_text(encoding="utf-8")), "the run begins again")
        job, lab = descendants(run.pid), lab_members(f"sweep{run.pid}")
        run.kill()
        run.wait(20)
        assert len(job) >= 7 and lab, f"the keeper, dplab, mpirun, its daemon, two ranks: {job}; the lab: {lab}"
        wait_for(lambda: not any(map(is_running, job | lab)), "kill -9 of dpsweep leaves processes")
        is_gone(f"sweep{run.pid}")


if __name__ == "__main__":
    cases = {case.__name__: case for case in (options, speeds, links, media, delay_and_loss, flips, training, cut_in_training,
                                              cuts_and_their_ends, check, restarts, leftovers, ordinary_user, sweep, host_scan)}
    try:
        cases[CASE]()
    finally:
        subprocess.run([DPLAB, "down", "--lab", LAB], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
