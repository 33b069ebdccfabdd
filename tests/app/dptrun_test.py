#!/usr/bin/env python3
"""dptrun with a stand-in for dptrain, which dies as it is told: dptrun_test.py DPTRUN CASE."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

DPTRUN, CASE = sys.argv[1:3]

# It "trains" 30 steps of 20 ms. The file `state` is its checkpoint, after every step. When a file die_N is there after
# step N, rank 1 does what it says.
STAND_IN = r"""#!/usr/bin/env bash
rank=$OMPI_COMM_WORLD_RANK
checksum() {  # CRC-32C
  local crc=$((0xFFFFFFFF)) at byte bit
  for ((at = 0; at < ${#1}; at++)); do
    printf -v byte %d "'${1:at:1}"
    crc=$((crc ^ byte))
    for bit in 0 1 2 3 4 5 6 7; do crc=$(((crc >> 1) ^ (crc & 1 ? 0x82F63B78 : 0))); done
  done
  printf %08x $((crc ^ 0xFFFFFFFF))
}
mark() { [ "$rank" != 0 ] || printf '\x1edptrun %s %s\x1f' "$1" "$(checksum "$1")"; }
trap 'echo "rank $rank stops"; exit 75' USR1
step=0
[ "$rank" != 0 ] || echo "$*" >words
case " $* " in *" --resume "*) [ ! -f state ] || step=$(<state) ;; esac
mark alive
[ ! -f slow_start ] || sleep 30
mark "start $step"
while [ "$step" -lt 30 ]; do
  sleep 0.02
  step=$((step + 1))
  [ "$rank" != 0 ] || { echo "$step" >state.part; mv state.part state; echo "step $step"; }
  mark "step $step"
  if [ -f die_$step ]; then
    [ "$rank" != 1 ] || eval "$(<die_$step)"
    sleep 30 &  # rank 0 waits for rank 1, which does not come
    wait
  fi
done
mark "end 0"
"""


def environment() -> dict[str, str]:
    return os.environ | {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def words_of(*options: str) -> list[str]:
    return [DPTRUN, "-np", "2", *options, "--", "./stand_in", "--checkpoint", "d"]


def start(*options: str) -> subprocess.Popen:
    return subprocess.Popen(words_of(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment())


def finish(process: subprocess.Popen) -> tuple[int, list[str], list[str]]:
    """The exit code, what dptrun said and the lines of standard output."""
    printed, errors = process.communicate(timeout=60)
    return process.returncode, re.findall(r"^dptrun: (.*)", errors, re.MULTILINE), printed.splitlines()


def die(step: int, words: str) -> None:
    pathlib.Path(f"die_{step}").write_text(words)


def processes(pattern: str) -> list[int]:
    """Those whose command line has these words and whose current folder is this one."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == os.getcwd() and \
                    pattern in (entry / "cmdline").read_text().replace("\0", " "):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def mpirun() -> int:
    return processes("mpirun -x ")[0]


def wait_for(condition, what: str) -> None:
    end = time.time() + 30
    while not condition():
        assert time.time() < end, what
        time.sleep(0.02)


def wait_for_step(step: int) -> None:
    def is_there() -> bool:
        try:
            return int(pathlib.Path("state").read_text() or 0) >= step
        except OSError:
            return False
    wait_for(is_there, f"no step {step} in 30 s")


def starts_again() -> None:
    # A rank that is killed, a rank that says exit code 4, and one 70.
    die(5, "kill -9 $$")
    die(11, "exit 4")
    die(17, "exit 70")
    code, said, printed = finish(start())
    assert code == 0, (code, said)
    assert [int(line.split()[1]) for line in printed] == list(range(1, 31)) or len(printed) >= 30, printed
    assert printed[-1] == "step 30" and "\x1e" not in "".join(printed), printed
    ends = [line for line in said if line.startswith("run ")]
    for line, why in zip(ends, (r"rank 1 on host \S+ was killed by signal 9 \(Killed\)", "exit code 4", "exit code 70"), strict=True):
        assert re.fullmatch(rf"run \d ended after step \d+ or later: {why}; restarts from the newest checkpoint in 0.5 s "
                            r"\(restart \d, 1 of 10 without progress\)", line), line
    assert sum("training continues with step" in line for line in said) == 3, said
    assert re.fullmatch(r"3 restarts; from the end of a run to the next one's first step: median \d+\.\d s, 99th percentile "
                        r"\d+\.\d s, at most \d+\.\d s", said[-1]), said


def ends_where_it_must() -> None:
    for code in (2, 3, 75):
        die(3, f"exit {code}")
        got, said, _ = finish(start())
        assert got == code and said[-1].endswith(f"exit code {code}; it is not restarted"), (code, got, said)
    pathlib.Path("state").unlink(missing_ok=True)
    for code in (5, 70):
        pathlib.Path("state").unlink(missing_ok=True)
        die(3, f"exit {code}")
        die(25, f"exit {code}")  # a second time it will come again
        got, said, _ = finish(start())
        assert got == code and len([line for line in said if line.startswith("run ")]) == 2, (got, said)
    # Restarts that begin where the run before began make no progress.
    die(3, "sleep 0.5; rm state; kill -9 $$")
    got, said, _ = finish(start("--max-restarts", "1"))
    assert got == 137 and any(line.endswith("giving up after 1 restart without progress (--max-restarts)")
                              for line in said[-2:]), (got, said)


def starts_with_closed_streams() -> None:
    """Each of the eight combinations of closed descriptors 0 to 2 restarts, and ends."""
    for closed in range(8):
        pathlib.Path("state").unlink(missing_ok=True)
        die(3, "kill -9 $$")
        names = [f"{number}>&-" for number in range(3) if closed & 1 << number]
        done = subprocess.run(["sh", "-c", " ".join(['exec "$@"', *names]), "sh", *words_of()], capture_output=True,
                              text=True, env=environment(), timeout=60)
        assert done.returncode == 0 and pathlib.Path("state").read_text() == "30\n", (closed, done)
        assert bool(closed & 2) != ("step 30\n" in done.stdout), (closed, done)
        assert bool(closed & 4) != ("restarts from the newest checkpoint" in done.stderr), (closed, done)


def stops_on_request() -> None:
    process = start()
    wait_for_step(3)
    process.send_signal(signal.SIGINT)
    code, said, printed = finish(process)
    assert code == 75 and sorted(printed[-2:]) == ["rank 0 stops", "rank 1 stops"], (code, said, printed)
    # A terminal that is closed: the kernel and the shell both say so, and what ends the session says more.
    pathlib.Path("state").unlink()
    process = start()
    wait_for_step(3)
    for number in (signal.SIGHUP, signal.SIGCONT, signal.SIGHUP, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.02)
    code, said, printed = finish(process)
    assert code == 75 and sorted(printed[-2:]) == ["rank 0 stops", "rank 1 stops"], (code, said, printed)
    # A signal of one's own; the second one does not wait for a step that never ends.
    pathlib.Path("state").unlink()
    die(3, "trap '' USR1")
    process = start("--signal", "USR2")
    wait_for_step(3)
    time.sleep(1)  # until rank 1 hears nothing
    process.send_signal(signal.SIGUSR2)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    code, said, _ = finish(process)
    assert code == 128 + signal.SIGTERM and not processes("stand_in"), (code, said, processes("stand_in"))
    # Before training there is nothing to wait for.
    pathlib.Path("slow_start").touch()
    process = start()
    wait_for(lambda: len(processes("stand_in --checkpoint")) >= 2, "no ranks")
    process.send_signal(signal.SIGTERM)
    code, said, _ = finish(process)
    assert code == 75 and "the same command with --resume continues" in said[-1], (code, said)
    assert not processes("stand_in"), processes("stand_in")


def stops_while_nobody_reads() -> None:
    """Signals are obeyed although the output is full, and silence is not counted then."""
    chatty = STAND_IN.replace('mark "step $step"', 'mark "step $step"; head -c 20000 /dev/zero | tr "\\0" x')
    pathlib.Path("stand_in").write_text(chatty)
    reader, writer = os.pipe()
    process = subprocess.Popen(words_of("--silence", "1"), stdout=writer, stderr=subprocess.PIPE, text=True,
                               env=environment())
    os.close(writer)
    wait_for_step(1)
    time.sleep(2.5)  # the pipe is full by now, and stays so
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    process.wait(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM and time.monotonic() - begin < 15, process.returncode
    os.close(reader)


def survives_mpirun() -> None:
    # mpirun is killed, and its ranks, which here do not notice it, are ended before the next run.
    process = start()
    wait_for_step(3)
    ranks = processes("stand_in --checkpoint")
    os.kill(mpirun(), signal.SIGKILL)
    wait_for(lambda: not set(ranks) & set(processes("stand_in")), f"{ranks} live on")
    code, said, _ = finish(process)
    assert code == 0 and "mpirun was killed by signal 9 (Killed)" in said[0], (code, said)
    # mpirun hangs: it brings no sign of life.
    pathlib.Path("state").unlink()
    process = start("--silence", "2")
    wait_for_step(3)
    os.kill(mpirun(), signal.SIGSTOP)
    code, said, _ = finish(process)
    assert code == 0 and "no sign of life for 2 s" in said[0], (code, said)
    # dptrun itself is killed: nothing goes on without it.
    pathlib.Path("state").unlink()
    process = start()
    wait_for_step(3)
    process.kill()
    process.communicate()
    wait_for(lambda: not processes("stand_in"), "ranks live on")


def leaves_hosts_out() -> None:
    agent = pathlib.Path("agent")
    agent.write_text("#!/bin/sh\nexit 1\n")
    agent.chmod(0o755)
    common = ("--agent", f"{os.getcwd()}/agent", "--host", "localhost:1,no-such-host:1")
    code, said, printed = finish(start(*common))
    assert code == 0 and printed.count("step 30") == 1, (code, said)
    assert said[0] == "no answer from no-such-host; 1 of 2 hosts answer, 1 are needed (--min-hosts); the run continues " \
        "without the others, with the same global batch", said
    # There is no checkpoint yet, so dptrain must know for how many ranks the batch is.
    assert pathlib.Path("words").read_text() == "--checkpoint d --planned-ranks 2\n", pathlib.Path("words").read_text()


def waits_for_hosts() -> None:
    """As long as it takes: it is no restart that fails."""
    agent = pathlib.Path("agent")
    agent.write_text("#!/bin/sh\necho x >>asked\nexit 1\n")
    agent.chmod(0o755)
    process = start("--agent", f"{os.getcwd()}/agent", "--host", "localhost:1,late:1", "--min-hosts", "2",
                    "--max-restarts", "1")
    wait_for(lambda: os.path.exists("asked") and len(pathlib.Path("asked").read_text().split()) >= 4, "no questions")
    assert process.poll() is None
    process.terminate()
    code, said, printed = finish(process)
    assert code == 75 and not printed, (code, said, printed)
    waits = [line for line in said if line.startswith("too few hosts answer")]
    assert waits[:3] == [f"too few hosts answer; asking again in {pause} s" for pause in ("0.5", "1", "2")], said


def hosts_join_and_leave() -> None:
    """Lines come into the hostfile and leave it while the run goes on: it goes on with these hosts, without a failure."""
    hostfile = pathlib.Path("hosts")
    hostfile.write_text("localhost slots=1\n")
    pathlib.Path("agent").write_text("#!/bin/sh\n[ ! -e silent ]\n")
    pathlib.Path("agent").chmod(0o755)
    pathlib.Path("stand_in").write_text(STAND_IN.replace("-lt 30", "-lt 400").replace('mark "start', 'mark "plan 400"; mark "images 7 5"; mark "start'))
    process = subprocess.Popen([DPTRUN, "--hostfile", "hosts", "--join-after", "0.2", "--max-restarts", "0", "--agent",
                                f"{os.getcwd()}/agent", "--", "./stand_in", "--checkpoint", "d"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment())
    wait_for_step(10)
    hostfile.write_text("localhost slots=1\nno such line\n")  # such as one that is being written: nothing changes
    time.sleep(0.6)
    pathlib.Path("silent").touch()
    hostfile.write_text("localhost slots=1\nother slots=1\n")  # does not answer: nothing changes
    time.sleep(0.6)
    assert pathlib.Path("words").read_text() == "--checkpoint d\n"
    hostfile.write_text("localhost slots=1\n127.0.0.1 slots=1\n")
    wait_for(lambda: "--resume" in pathlib.Path("words").read_text(), "no host joins")
    step = int(pathlib.Path("state").read_text())
    wait_for_step(step + 20)
    def told() -> str:
        done = subprocess.run([DPTRUN, "status"], capture_output=True, text=True, check=True)
        assert not done.stderr, done.stderr
        return next((part for part in done.stdout.split("dptrun ") if part.startswith(f"{process.pid}: ")), "")

    wait_for(lambda: "steps/s" in told(), "no speed")
    assert re.search(r"trains, step [0-9]+ of 400 \([0-9]+ %\), [0-9.]+ steps/s, about [0-9]+ s left\n  hosts     "
                     r"localhost:1,127.0.0.1:1\n  ranks     2\n  images    7 5 a step, by rank\n  command   ", told()), told()
    assert len(processes("stand_in --checkpoint")) >= 2
    hostfile.write_text("localhost slots=1\n")
    code, said, printed = finish(process)
    assert code == 0 and printed.count("step 400") == 1, (code, said)
    changes = [line for line in said if "writes a checkpoint" in line]
    assert changes == [
        "127.0.0.1 can join; the run writes a checkpoint and goes on with localhost:1,127.0.0.1:1",
        "127.0.0.1 is no longer listed; the run writes a checkpoint and goes on with localhost:1"], said
    assert not told(), told()
    went_on = [line for line in said if line.startswith("training continues with step")]
    assert len(went_on) == 2 and " on 2 ranks" in went_on[0] and " on 1 ranks" in went_on[1], said


def main() -> None:
    folder = tempfile.mkdtemp()
    try:
        os.chdir(folder)
        pathlib.Path("stand_in").write_text(STAND_IN)
        pathlib.Path("stand_in").chmod(0o755)
        globals()[CASE]()
    finally:
        for process in processes("stand_in"):
            os.kill(process, signal.SIGKILL)
        os.chdir("/")
        shutil.rmtree(folder)


main()
