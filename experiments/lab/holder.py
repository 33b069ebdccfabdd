"""Holds a lab: builds it in fresh namespaces, then waits to be ended.  holder.py --lab NAME SETTINGS

The holder is process 1 of the lab. It reports "ready TEXT" or "error CODE TEXT" on file 3. File 4 is the pidfd of
the process with which the lab ends, or /dev/null. When the holder ends, the kernel ends all processes in the lab,
and their interfaces, mounts and names disappear.
"""
from __future__ import annotations

import os
import pathlib
import select
import signal
import stat
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from lab import namespaces, network  # noqa: E402
from lab.settings import METER, METER_NUMBER, LabError, Settings, address, write  # noqa: E402


def prepare_files(settings: Settings) -> None:
    """The lab's own view of the file system: its state folder, its /etc/hosts, its /proc."""
    try:
        namespaces.mount("none", "/", "", namespaces.RECURSIVE | namespaces.PRIVATE)
        namespaces.mount("tmpfs", str(namespaces.STATE), "tmpfs")
        namespaces.set_host_name(settings.lab)
    except PermissionError as error:
        raise namespaces.no_permission(error) from error
    try:
        namespaces.mount("proc", "/proc", "proc")
    except OSError:
        pass  # refused in some containers; ps then shows the machine's processes
    for folder in ("ns", "tmp"):
        (namespaces.STATE / folder).mkdir()
    if settings.cpu_folder:
        (namespaces.STATE / "cpu").mkdir()
        namespaces.mount(settings.cpu_folder, str(namespaces.STATE / "cpu"), "", namespaces.BIND)
    hosts = [(address(k + 1), name) for k, name in enumerate(settings.names())] + [(address(METER_NUMBER), METER)]
    (namespaces.STATE / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for ip, name in hosts), encoding="ascii")
    (namespaces.STATE / "hostfile").write_text(
        "".join(f"{name} slots=1\n" for name in settings.names()), encoding="ascii")
    if os.path.exists("/etc/hosts"):
        namespaces.mount(str(namespaces.STATE / "hosts"), "/etc/hosts", "", namespaces.BIND)


def report(text: str) -> None:
    os.write(namespaces.REPORT, (" ".join(text.split()) + "\n").encode())
    os.close(namespaces.REPORT)


def end_with_owner() -> None:
    poll = select.poll()
    poll.register(namespaces.OWNER, select.POLLIN)
    poll.poll()
    os._exit(0)


def main() -> None:
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    os.set_inheritable(namespaces.REPORT, False)
    os.set_inheritable(namespaces.OWNER, False)
    settings = Settings.from_json(sys.argv[3])
    try:
        prepare_files(settings)
        wire = network.build(settings)
        write(namespaces.STATE, settings)
    except LabError as error:
        report(f"error {error.code} {error}")
        return
    except OSError as error:
        report(f"error 1 {error}")
        return
    report(f"ready {settings.filter}")
    os.chdir("/")
    if not stat.S_ISCHR(os.fstat(namespaces.OWNER).st_mode):  # it is /dev/null: the lab has no owner
        threading.Thread(target=end_with_owner, daemon=True).start()
    while signal.sigwait(signals) == signal.SIGCHLD:
        while True:
            try:
                process, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if process == 0:
                break
            if process == wire:
                return


if __name__ == "__main__":
    main()
