"""Runs commands in a lab: on one host, or on all of them by mpirun over the lab's network.

A command gets its own process namespace. When it ends, is stopped by Ctrl-C, or dplab is killed, everything that it
started in the lab ends, even on a host whose cable is cut and which mpirun cannot reach.
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import signal
import sys
import time
from typing import Callable, NoReturn

from lab import namespaces
from lab.command_line import complain
from lab.programs import programs_folder
from lab.settings import LabError, Settings, shown

_OURS = ("dptrain", "dptrun", "dpbench")
_WATCHED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD}
_FROM_TERMINAL = 0x80  # si_code SI_KERNEL: the terminal has sent the signal to the whole process group
_PATIENCE_S = 10.0  # from Ctrl-C to the end of a job, and from a rank's last word to the end of mpirun


def share_of_cores(ranks: int) -> int:
    """All hosts are on one machine and share its cores."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def mpi_environment(ranks_per_node: int, ranks: int) -> dict[str, str]:
    """The settings that Open MPI needs in a lab. In a host's shell mpirun needs nothing else (`mpirun -np 4
    PROGRAM`)."""
    state = str(namespaces.STATE)
    environment = dict(os.environ)
    for name in ("btl_tcp_if_exclude", "oob_tcp_if_exclude"):
        environment.pop(f"OMPI_MCA_{name}", None)
    environment |= {
        # The agent is found by PATH, since Open MPI would split a path at its spaces. PATH finds our programs, too.
        "PATH": f"{namespaces.HERE}:{programs_folder()}:{environment.get('PATH', os.defpath)}",
        "OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": "dplab-agent",
        "OMPI_MCA_oob_tcp_if_include": "eth0", "OMPI_MCA_btl_tcp_if_include": "eth0",
        # TCP between hosts; shared memory only if a host has several ranks.
        "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp,vader" if ranks_per_node > 1 else "self,tcp",
        "OMPI_MCA_btl_vader_backing_directory": f"{state}/tmp", "OMPI_MCA_orte_tmpdir_base": f"{state}/tmp",
        "OMPI_MCA_orte_default_hostfile": f"{state}/hostfile", "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Hosts that share a file system print errors otherwise.
        "PMIX_MCA_gds": "hash",
    }
    if ranks > len(os.sched_getaffinity(0)):
        environment.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    environment.setdefault("OMP_NUM_THREADS", str(share_of_cores(ranks)))
    return environment


def _decimal(number: float) -> str:
    return f"{number:.12f}".rstrip("0").rstrip(".")


def link_environment(settings: Settings) -> dict[str, str]:
    """The links as they are now, for programs that log what they ran over: the rate of the slowest host, and delay
    (one way) and loss (a fraction) from host to host, as plain decimal numbers."""
    return {
        "DPTRAIN_LINK_BIT_PER_S": str(min(link.rate_bit_per_s for link in settings.links)),
        "DPTRAIN_LINK_DELAY_S": _decimal(settings.delay_s), "DPTRAIN_LINK_LOSS": _decimal(settings.loss),
        "DPTRAIN_LINK_SHARED": "1" if settings.is_shared else "0",
    }


def check_program(name: str, environment: dict[str, str]) -> None:
    if shutil.which(name, path=environment["PATH"]) is None:
        hint = "; build it (experiments/build.sh) or give its path" if name in _OURS else ""
        raise LabError(f"{shown(name)}: there is no such program{hint}", 127)


def _says_threads(words: list[str]) -> bool:
    """Whether the user has set dptrain's threads, on the command line or in a --config file."""
    if any(word == "--threads" or word.startswith("--threads=") for word in words):
        return True
    for word, following in zip(words, words[1:] + [""]):
        if word == "--config" or word.startswith("--config="):
            with contextlib.suppress(OSError):
                text = pathlib.Path(following if word == "--config" else word[9:]).read_text(encoding="utf-8")
                return bool(re.search(r"^\s*threads\s*=", text, re.MULTILINE))
    return False


def starts_again(command: list[str]) -> bool:
    """Whether it is dptrun, which starts mpirun itself and sees that it ends."""
    return os.path.basename(command[0]) == "dptrun"


def _with_threads(program: list[str], ranks: int) -> list[str]:
    """dptrain divides the cores among the ranks of its host and cannot know that the hosts share them."""
    if os.path.basename(program[0]) != "dptrain" or _says_threads(program):
        return program
    return [program[0], "--threads", str(share_of_cores(ranks)), *program[1:]]


def job_command(settings: Settings, ranks_per_node: int, command: list[str]) -> list[str]:
    """The command line that runs the program on all hosts."""
    hosts = ",".join(f"{name}:{ranks_per_node}" for name in settings.names())
    ranks = settings.nodes * ranks_per_node
    if starts_again(command):
        dashes = command.index("--") if "--" in command else len(command)
        program = command[dashes + 1:]
        return [command[0], "--host", hosts, *command[1:dashes + 1],
                *(_with_threads(program, ranks) if program else [])]
    if os.path.basename(command[0]) in ("mpirun", "mpiexec", "orterun"):
        raise LabError(f"run -- {command[0]}: run starts mpirun itself, with a rank on every host: name the program "
                       f"alone, or use dplab exec 1 -- {command[0]} ..., where Open MPI knows the hosts", 2)
    if shutil.which("mpirun") is None:
        raise LabError("run: mpirun is missing; apt-get install openmpi-bin")
    cut = [name for name, link in zip(settings.names(), settings.links) if link.state() != "up"]
    if cut:
        raise LabError(f"run: {', '.join(cut)} cannot be reached: the cable is cut (dplab mend {cut[0][4:]})")
    return ["mpirun", "-np", str(ranks), "-H", hosts, *_with_threads(command, ranks)]


class RankWatch:
    """Detects that mpirun has had no rank for a long time and does not end, because it waits for a host that it
    cannot reach. If a rank has said why it ended (`last_word`), the time is short."""

    def __init__(self, mpirun: int, give_up_s: float, last_word: pathlib.Path):
        self._mpirun = mpirun
        self._give_up_s = give_up_s
        self._last_word = last_word
        self._last_seen_s = time.monotonic()

    def _has_ranks(self) -> bool:
        """Ranks are the children of mpirun and of its daemons, except the daemons themselves (orted in a shell)."""
        names, parents = {}, {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                name, rest = (folder / "stat").read_text().split("(", 1)[1].rsplit(") ", 1)
                state, parent = rest.split()[:2]
                if state != "Z":
                    names[int(folder.name)], parents[int(folder.name)] = name, int(parent)
        daemons = {process for process, name in names.items() if name == "orted"}
        daemons |= {parents[process] for process in daemons}
        return any(parent in daemons | {self._mpirun} and process not in daemons for process, parent in parents.items())

    def is_over(self) -> bool:
        if self._has_ranks():
            self._last_seen_s = time.monotonic()
        patience_s = min(self._give_up_s, _PATIENCE_S) if self._last_word.exists() else self._give_up_s
        return time.monotonic() > self._last_seen_s + patience_s


def _relay(child: int, patience_s: float | None = None, watch: RankWatch | None = None) -> tuple[int, int | None]:
    """Waits for a child and passes on signals that only this process has received. Returns its wait status and the
    first signal. With `patience_s`, kills a child that has not ended that long after a signal."""
    first, end_s = None, None
    while True:
        if end_s is not None:
            info = signal.sigtimedwait(_WATCHED, max(0.0, end_s - time.monotonic()))
        elif watch:
            info = signal.sigtimedwait(_WATCHED, 2.0)
        else:
            info = signal.sigwaitinfo(_WATCHED)
        if info is None and end_s is not None:
            os.kill(child, signal.SIGKILL)
            end_s = None
        elif info is None:
            if watch and watch.is_over():
                complain("dplab", "no rank has run for some time, since mpirun waits for a host that it cannot reach; "
                         "the job was ended")
                os.kill(child, signal.SIGKILL)
                watch = None
        elif info.si_signo == signal.SIGCHLD:
            while True:
                try:
                    process, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if process == child:
                    return status, first
                if process == 0:
                    break
        else:
            if first is None:
                first = info.si_signo
                end_s = None if patience_s is None else time.monotonic() + patience_s
            if info.si_code != _FROM_TERMINAL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _forked(work: Callable[[], int]) -> int:
    """Does the work in a child process, which ends with the code that the work returns."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        code = work()
    except LabError as error:
        complain("dplab", str(error))
        code = error.code
    except SystemExit as error:
        code = error.code
    except OSError as error:
        complain("dplab", str(error))
        code = 1
    except Exception:  # a mistake of ours
        import traceback  # rarely needed, and slow to load
        traceback.print_exc()
    finally:
        os._exit(code)


def within(work: Callable[[], int]) -> int:
    """Does the work among the processes of the lab, which this process has entered. Returns the exit code."""
    def child() -> int:
        namespaces.die_with_parent()
        return work()

    return _exit_code(os.waitpid(_forked(child), 0)[1])


def _execute(command: list[str], environment: dict[str, str], mask: set[int]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the command would inherit that
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise LabError(f"{command[0]}: {error.strerror}", 126 if isinstance(error, PermissionError) else 127) from error


def run(lab: str, holder: int, node: str, command: list[str], environment: dict[str, str],
        give_up_s: float | None = None) -> int:
    """Runs the command on a host (or "switch") of the lab, which this process has entered. Returns its exit code.
    `holder` is the lab's process.

    A job, whose command is mpirun, has `give_up_s`: the time that it may be without ranks. A job is killed if it
    does not end within 10 s of Ctrl-C. If dptrain ends a job whose hosts mpirun cannot reach, mpirun is killed; the
    exit code is then the one that dptrain has left in a file."""
    last_word = pathlib.Path(namespaces.STATE) / "tmp" / f"exit-{secrets.token_hex(8)}"
    if give_up_s:
        environment = environment | {"DPTRAIN_EXIT_FILE": str(last_word)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)

    def first_process() -> int:  # process 1 of the command's namespace
        namespaces.die_with_parent()
        with contextlib.suppress(OSError):  # refused in some containers; ps then shows the lab's processes
            namespaces.mount("proc", "/proc", "proc")
        namespaces.become(node)
        child = _forked(lambda: _execute(command, environment, mask))
        has_proc = os.readlink("/proc/self") == str(os.getpid())
        watch = RankWatch(child, give_up_s, last_word) if give_up_s and has_proc else None
        code = _exit_code(_relay(child, watch=watch)[0])
        with contextlib.suppress(OSError, ValueError):
            word = last_word.read_text(encoding="ascii")
            last_word.unlink()
            return int(word) if code else 0
        return code

    def keeper() -> int:
        namespaces.die_with_parent()
        namespaces.unshare(namespaces.NEW_PROCESSES | namespaces.NEW_MOUNTS)
        return _exit_code(_relay(_forked(first_process))[0])

    status, interrupted = _relay(_forked(keeper), _PATIENCE_S if give_up_s else None)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if interrupted and give_up_s:
        return 128 + interrupted
    if os.WIFSIGNALED(status) and namespaces.holders().get(lab, (0, ""))[0] != holder:
        complain("dplab", f"the lab {lab} has ended, and with it the command")
    return _exit_code(status)
