"""What the tests of dplab share: the program, its processes, streams between its hosts."""
from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import time

DPLAB, DPTRAIN, CASE = sys.argv[1:4]
LAB = f"test-{os.getpid()}"
TINY = ["--limit-train", "64", "--limit-test", "32", "--epochs", "1", "--batch-size", "16", "--model", "resnet20",
        "--autotune", "off"]
PYTHON = "/usr/bin/python3"
SLOWER = 5 if os.environ.get("DP_SANITIZE") else 1  # programs with a sanitizer
# Reads from a connection; told to on its input, it says how many Mbit/s came in the next second.
SINK = """import select, socket, sys, time
server = socket.create_server(("", 7000)); server.settimeout(30); print("ready", flush=True)
link = server.accept()[0]; link.settimeout(30); print("connected", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]: link.recv(1 << 18)
begin, count = time.monotonic(), 0
while time.monotonic() < begin + 1: count += len(link.recv(1 << 18))
print(8e-6 * count / (time.monotonic() - begin), flush=True)"""
SOURCE = """import socket, sys
link = socket.create_connection((sys.argv[1], 7000), timeout=30)
try:
  while True: link.sendall(bytes(1 << 15))
except OSError: pass"""

# 1000 frames, of which HEAR counts those that arrive.
HEAR = """import socket
hear = socket.socket(2, 2); hear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
hear.bind(("", 7001)); hear.settimeout(30); print("ready", flush=True)
count = 0
try:
  while hear.recv(99) != b"end": count += 1; hear.settimeout(5)
except TimeoutError: pass
print(count)"""
SAY = """import socket, sys, time
say = socket.socket(2, 2); say.connect((sys.argv[1], 7001)); say.send(b"x"); time.sleep(1)
for k in range(999):
  say.send(b"x")
  if k % 5 == 4: time.sleep(0.002)
try:
  for k in range(20): say.send(b"end")
except ConnectionRefusedError: pass"""


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


def dplab(*words: str, lab: str = LAB, code: int = 0, **options) -> str:
    """Runs dplab, checks its exit code, returns what it printed."""
    place = words.index("--") if "--" in words else len(words)
    command = [DPLAB, *words[:place], "--lab", lab, *words[place:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90 * SLOWER, **options)
    assert done.returncode == code, f"{command}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def started(*words: str, lab: str = LAB, **options) -> subprocess.Popen:
    place = words.index("--")
    command = [DPLAB, *words[:place], "--lab", lab, *words[place:]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def up(*words: str, **options) -> None:
    """Ends the test as skipped where no lab is possible."""
    done = subprocess.run([DPLAB, "up", *words, "--lab", LAB], capture_output=True, text=True, timeout=60, **options)
    if done.returncode == 77 or "apt-get install" in done.stderr:
        skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def processes(text: str) -> list[str]:
    """Command lines of processes that hold this text, but for this one."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and int(folder.name) != os.getpid():
            found.append(line)
    return found


def _fields(process: int) -> list[str]:
    """Of /proc/PID/stat, from the state on; none of a process that has ended."""
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace").rsplit(") ", 1)[1].split()
    except OSError:
        return []
    return [] if fields[0] == "Z" else fields


def descendants(ancestor: int) -> set[tuple[int, str]]:
    """Process ids, each with its start time, which tells it from a later process of that id."""
    found = {folder.name: _fields(int(folder.name)) for folder in pathlib.Path("/proc").glob("[0-9]*")}
    family = [str(ancestor)]
    for member in family:
        family += [process for process, fields in found.items() if fields and fields[1] == member]
    return {(int(process), found[process][19]) for process in family[1:] if found[process]}


def lab_members(lab: str) -> set[tuple[int, str]]:
    """All processes of a lab: its holder and what is in the holder's process namespace, or below it."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            numbers = (folder / "status").read_text().split("NSpid:")[1].splitlines()[0].split()
            if numbers[1:] == ["1"] and f"--lab\0{lab}\0".encode() in (folder / "cmdline").read_bytes():
                holder = int(folder.name)
                return descendants(holder) | {(holder, _fields(holder)[19])}
    return set()


def is_running(process: tuple[int, str]) -> bool:
    fields = _fields(process[0])
    return bool(fields) and fields[19] == process[1]


def wait_for(condition, what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def received_bytes(node: int, lab: str = LAB) -> int:
    text = dplab("exec", str(node), "--", "cat", "/proc/net/dev", lab=lab)
    return int(re.search(r"eth0:\s*(\d+)", text)[1])


def goodput(*pairs: tuple[int, int], meanwhile=lambda: time.sleep(0.3)) -> float:
    """Mbit/s of payload that arrive in sum, while all pairs (sender, receiver) send and something has been done."""
    sinks = [started("exec", str(to), "--", PYTHON, "-c", SINK, stdin=subprocess.PIPE) for _, to in pairs]
    for sink in sinks:
        assert sink.stdout.readline() == "ready\n"
    sources = [started("exec", str(by), "--", PYTHON, "-c", SOURCE, f"10.99.0.{to}") for by, to in pairs]
    for sink in sinks:
        assert sink.stdout.readline() == "connected\n"
    meanwhile()
    for sink in sinks:
        sink.stdin.write("now\n")
        sink.stdin.flush()
    total = sum(float(sink.stdout.readline()) for sink in sinks)
    for process in (*sinks, *sources):
        process.wait(60)
    return total


def reaches(by: int, to: int) -> bool:
    """Whether a connection is answered; a host that hears it refuses it, since nobody listens."""
    probe = ("import socket, sys\ntry: socket.create_connection((sys.argv[1], 9), timeout=1.5)\n"
             "except ConnectionRefusedError: print('refused')\nexcept OSError: print('silence')")
    return dplab("exec", str(by), "--", PYTHON, "-c", probe, f"10.99.0.{to}") == "refused\n"


def between(low: float, value: float, high: float, what: str) -> None:
    assert low <= value <= high, f"{what}: {value:.2f}, not within {low} and {high}"
