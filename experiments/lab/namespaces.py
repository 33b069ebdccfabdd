"""The Linux calls that make a lab, and how a lab is found, entered and ended.

A lab is one process, its holder (holder.py), and the namespaces that exist as long as it does: network, mounts,
host name, processes, and for ordinary users a user namespace in which they are root. All names of network
interfaces are inside, so a lab meets neither other labs nor the machine's network. When the holder ends in any way,
the kernel ends every process in the lab; with the last one all interfaces and mounts are gone.
"""
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pathlib
import select
import signal
import sys
from typing import Callable, Iterator

from lab.settings import LabError

NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
NO_PERMISSION = 77
REPORT, OWNER = 3, 4  # files of a holder

HERE = pathlib.Path(__file__).resolve().parent
HOLDER = HERE / "holder.py"
STATE = HERE / "state"

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def setns(file: int, flags: int) -> None:
    _checked(_libc.setns(file, flags), "setns")


def mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None),
             f"mount {target}")


def die_with_parent() -> None:
    _checked(_libc.prctl(1, signal.SIGKILL, 0, 0, 0), "prctl")


def set_host_name(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), len(name)), "sethostname")


def unshare_lab() -> None:
    """Makes namespaces for a holder, in a user namespace if the user has no right to make them otherwise."""
    flags = NEW_NETWORK | NEW_MOUNTS | NEW_HOST_NAME | NEW_IPC | NEW_PROCESSES
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(flags)
        return
    except PermissionError:
        pass
    try:
        unshare(flags | NEW_USER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            pathlib.Path("/proc/self", name).write_text(text, encoding="ascii")
    except OSError as error:
        raise no_permission(error) from error


def try_out(work: Callable[[], None]) -> None:
    """Does the work in a child with the rights and the empty network of a lab, which end with it. Throws its
    LabError."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            unshare_lab()
            work()
        except LabError as error:
            os.write(write, f"{error.code} {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as report:
        code, _, text = report.read().partition(" ")
    os.waitpid(child, 0)
    if text:
        raise LabError(text, int(code))


def no_permission(error: OSError) -> LabError:
    advice = "run dplab as root" if os.geteuid() else "give root the capability SYS_ADMIN (is this a container?)"
    return LabError(
        f"this user may make no network namespaces ({error.strerror}): {advice}, or allow user namespaces by sysctl "
        "(user.max_user_namespaces=10000, kernel.unprivileged_userns_clone=1 or "
        "kernel.apparmor_restrict_unprivileged_userns=0, depending on which of them forbids it)", NO_PERMISSION)


def holders() -> dict[str, tuple[int, str]]:
    """The holder of every lab of this user, by the lab's name: its process and its program."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "-I" in words[1:2]:  # as start() starts it; other versions of dplab do without
                del words[1]
            if len(words) < 4 or os.path.basename(words[1]) != HOLDER.name or words[2] != "--lab":
                continue
            lines = (folder / "status").read_text().splitlines()
        except OSError:
            continue  # it ended just now
        # Its children have the same command line, but only the holder is process 1 of its namespace.
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        processes = status["NSpid"].split()
        if int(status["Uid"].split()[0]) == os.getuid() and len(processes) > 1 and processes[-1] == "1":
            found[words[3]] = int(folder.name), words[1]
    return found


def find(lab: str) -> tuple[int, int, str]:
    """The lab's holder: its process, a pidfd, which can never stand for another process, and its program."""
    known = holders()
    if lab not in known:
        others = f"; your labs are: {', '.join(sorted(known))}" if known else ""
        raise LabError(f"you have no lab called {lab} (dplab up makes one){others}")
    process, program = known[lab]
    try:
        return process, os.pidfd_open(process), program
    except ProcessLookupError as error:
        raise LabError(f"the lab {lab} has just ended") from error


def end(lab: str) -> bool:
    """Ends the lab and everything that runs in it. False if there is none."""
    if lab not in holders():
        return False
    _, pidfd, _ = find(lab)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    if not select.select([pidfd], [], [], 20)[0]:
        raise LabError(f"the processes of the lab {lab} were killed, but do not end")
    os.close(pidfd)
    return True


def enter(lab: str) -> int:
    """Moves this process into the lab, to its switch, for good, and returns the lab's holder. Only its children
    belong to the lab's processes and see the lab's /proc, so they must do whatever needs /proc."""
    process, pidfd, program = find(lab)
    if program != str(HOLDER):
        raise LabError(f"the lab {lab} was made by {program.removesuffix('/lab/holder.py')}/dplab: use that program")
    try:
        folder = os.getcwd()
    except OSError as error:
        raise LabError("the current folder is gone: change to another one") from error
    flags = NEW_NETWORK | NEW_MOUNTS | NEW_HOST_NAME | NEW_IPC | NEW_PROCESSES
    try:
        if os.readlink(f"/proc/{process}/ns/user") != os.readlink("/proc/self/ns/user"):
            flags |= NEW_USER
        setns(pidfd, flags)
    except OSError as error:
        raise LabError(f"the lab {lab} cannot be entered: {error.strerror}") from error
    try:
        os.chdir(folder)
    except OSError as error:
        raise LabError(f"{folder}: the lab {lab} has no such folder (was it mounted after dplab up?): "
                       "change to another one") from error
    return process


@contextlib.contextmanager
def inside(node: str) -> Iterator[None]:
    """Works in the network of a host. Sockets and children stay in the network in which they were made."""
    if node == "switch":
        yield
        return
    with open("/proc/self/ns/net", "rb") as here:
        with open(STATE / "ns" / f"{node}.net", "rb") as there:
            setns(there.fileno(), NEW_NETWORK)
        try:
            yield
        finally:
            setns(here.fileno(), NEW_NETWORK)


def become(node: str) -> None:
    """Moves this process to a host for good: to its share of the processors, its network, its name and its /sys."""
    if node == "switch":
        return
    try:
        if (STATE / "cpu").exists():  # in a lab with speeds (speeds.py)
            (STATE / "cpu" / node / "cgroup.procs").write_text("0", encoding="ascii")  # stands for this process
    except OSError as error:
        raise LabError(f"{node}: its share of the processors cannot be used: {error.strerror}") from error
    for kind, flag in (("net", NEW_NETWORK), ("uts", NEW_HOST_NAME)):
        with open(STATE / "ns" / f"{node}.{kind}", "rb") as there:
            setns(there.fileno(), flag)
    unshare(NEW_MOUNTS)
    with contextlib.suppress(OSError):  # without it only /sys/class/net is wrong: it shows another host's interfaces
        mount("sysfs", "/sys", "sysfs")


def start(lab: str, words: list[str], owner: int | None = None) -> str:
    """Starts a holder with these words and returns the line that it reports when the lab is complete. The lab ends
    with its owner, whose pidfd the holder gets."""
    read, write = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    parent = os.fork()
    if parent == 0:
        _start_holder(write, owner, [sys.executable, "-I", str(HOLDER), "--lab", lab, *words])
    os.close(write)
    holder = 0
    with open(read, encoding="utf-8") as report:
        try:
            first = report.readline()
            holder = int(first) if first.strip().isdigit() else 0
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.waitpid(parent, 0)
            last = report.readline() if holder else first
            kind, _, text = last.partition(" ")
            if kind != "ready":
                code, _, text = text.partition(" ")
                raise LabError(text.strip() or f"the lab {lab} was ended while it was made", int(code or 1))
            return text.strip()
        except BaseException:
            if holder:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder, signal.SIGKILL)
            raise


def _start_holder(report: int, owner: int | None, command: list[str]) -> None:
    """Runs in a separate child, which ends at once."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        unshare_lab()
        child = os.fork()
        if child:
            os.write(report, f"{child}\n".encode())
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(nothing, file)
        report, owner = (fcntl.fcntl(nothing if file is None else file, fcntl.F_DUPFD, 10) for file in (report, owner))
        os.dup2(report, REPORT)
        os.dup2(owner, OWNER)
        os.closerange(OWNER + 1, 256)
        os.execv(command[0], command)
    except LabError as error:
        os.write(report, f"error {error.code} {error}\n".encode())
    except OSError as error:
        os.write(report, f"error 1 {error}\n".encode())
    finally:
        os._exit(1)

