"""Hosts of different speeds: each may use a part of the machine's processors, by a cgroup's quota.

A lab has a folder of cgroups with one for each host. They are made outside the lab, where cgroups can be seen, and
bound into its state folder. A process joins its host's when it becomes one of the host (namespaces.become, dplab-agent).
When the lab has ended, a small process that waits for that removes them.

The kernel notices at its ticks that a process has used up its quota, and with 4 ms between them a process runs for
longer and then pauses for longer: a host of a quarter of a core computed for 2.7 ms and paused for 14.5 ms. A ticker on
each core wakes up every millisecond, and the kernel looks at quotas then, too: 1.0 ms and 5.1 ms. It takes 1.4 % of the
core.

Version 1 has cpu.cfs_quota_us and cpu.cfs_period_us in a hierarchy of its own, version 2 has cpu.max. The kernel allows
a quota of 1 ms at least. Periods are as short as that allows, so that a slow host computes slowly rather than at times.
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import time
from typing import NoReturn

from lab.namespaces import die_with_parent, holders
from lab.settings import LabError, Settings

# Of the processors, for all hosts together. The rest is for links and for the kernel's work.
USABLE = 0.9
_LEAST_QUOTA_US, _LEAST_PERIOD_US, _MOST_PERIOD_US = 1000, 1000, 1_000_000
_ROOTS = (("/sys/fs/cgroup/cpu", 1), ("/sys/fs/cgroup/cpu,cpuacct", 1), ("/sys/fs/cgroup", 2))
_PREFIX = "dplab-"
_TICK_S = 1e-3


def machine_cores() -> int:
    return len(os.sched_getaffinity(0))


def core_shares(speeds: list[float], cores: int) -> list[float]:
    """The cores that each host may use: the machine's in proportion to the speeds."""
    return [USABLE * cores * speed / sum(speeds) for speed in speeds]


def limits_us(cores: float) -> tuple[int, int]:
    """Quota and period."""
    period = min(max(_LEAST_PERIOD_US, round(_LEAST_QUOTA_US / cores)), _MOST_PERIOD_US)
    return max(_LEAST_QUOTA_US, round(cores * period)), period


def _root() -> tuple[pathlib.Path, int]:
    for name, version in _ROOTS:
        folder = pathlib.Path(name)
        if version == 1 and (folder / "cpu.shares").exists():
            return folder, version
        if version == 2 and "cpu" in _words(folder / "cgroup.controllers"):
            return folder, version
    raise LabError("--speeds: this machine has no cgroups for processor time (neither /sys/fs/cgroup/cpu nor the "
                   "controller cpu in /sys/fs/cgroup/cgroup.controllers)")


def _words(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _write(path: pathlib.Path, text: str) -> None:
    # No O_CREAT: these files exist, and a folder that is none of cgroups must not get them.
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode("ascii"))
    finally:
        os.close(file)


def set_cores(group: pathlib.Path, cores: float) -> None:
    quota, period = limits_us(cores)
    if (group / "cpu.max").exists():
        _write(group / "cpu.max", f"{quota} {period}")
        return
    _write(group / "cpu.cfs_quota_us", "-1")  # so that any period is allowed
    _write(group / "cpu.cfs_period_us", str(period))
    _write(group / "cpu.cfs_quota_us", str(quota))


def remove(folder: pathlib.Path) -> bool:
    """Whether the cgroups are gone. Those that still have processes stay."""
    try:
        for group in folder.iterdir():
            if group.is_dir():
                group.rmdir()
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _left_behind(root: pathlib.Path) -> list[pathlib.Path]:
    """Of labs whose end nobody saw. A lab that is being made has no holder, but a program that makes it."""
    prefix = f"{_PREFIX}{os.getuid()}-"
    living = holders()
    found = []
    for folder in root.glob(f"{prefix}*"):
        lab, _, maker = folder.name.removeprefix(prefix).rpartition("-")
        if lab not in living and not pathlib.Path("/proc", maker).exists():
            found.append(folder)
    return found


def make(settings: Settings) -> pathlib.Path:
    """Makes the cgroups of a lab, outside of it."""
    root, version = _root()
    with contextlib.suppress(OSError):
        for left in _left_behind(root):
            remove(left)
    folder = root / f"{_PREFIX}{os.getuid()}-{settings.lab}-{os.getpid()}"
    try:
        folder.mkdir()
        if version == 2:
            if "cpu" not in _words(root / "cgroup.subtree_control"):
                _write(root / "cgroup.subtree_control", "+cpu")
            _write(folder / "cgroup.subtree_control", "+cpu")
        for name, cores in zip(settings.names(), core_shares(settings.speeds, machine_cores())):
            (folder / name).mkdir()
            set_cores(folder / name, cores)
    except OSError as error:
        remove(folder)
        advice = "run dplab as root" if os.geteuid() else "is this a container whose cgroups are read-only?"
        raise LabError(f"--speeds: {folder}: {error.strerror}: this user may not limit processor time by cgroups; "
                       f"{advice}") from error
    return folder


def _tick(core: int) -> NoReturn:
    """Wakes up on this core, before all other processes if that is allowed."""
    os.sched_setaffinity(0, {core})
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while True:
        time.sleep(_TICK_S)


def keep(folder: pathlib.Path, holder: int) -> None:
    """Leaves processes behind, tickers and one that removes the cgroups when the lab, whose holder's pidfd this is, has
    ended."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(nothing, file)
        os.closerange(3, holder)  # among them the lock of the lab's name
        os.closerange(holder + 1, 256)
        os.chdir("/")
        tickers = []
        for core in os.sched_getaffinity(0):
            tickers.append(os.fork())
            if tickers[-1] == 0:
                die_with_parent()
                _tick(core)
        select.select([holder], [], [])
        for ticker in tickers:
            os.kill(ticker, signal.SIGKILL)
        for _ in range(100):
            if remove(folder):
                break
            time.sleep(0.1)
    finally:
        os._exit(0)


def change(settings: Settings, state: pathlib.Path, speed: float, node: str | None) -> str:
    if not settings.speeds:
        raise LabError("this lab's hosts have no speeds: make it with dplab up --speeds 1,1,0.5", 2)
    chosen = range(settings.nodes) if node is None else [settings.index(node)]
    unit = settings.cores_of_speed_1
    if speed * unit > machine_cores():
        raise LabError(f"speed {speed:g}: at most {machine_cores() / unit:.3g}, which is all of this machine's "
                       f"processors (speed 1 is {unit:.2f} of a core)", 2)
    for index in chosen:
        settings.speeds[index] = speed
        try:
            set_cores(state / "cpu" / f"node{index + 1}", speed * unit)
        except OSError as error:
            raise LabError(f"node{index + 1}: its speed cannot be changed: {error.strerror}") from error
    what = "all hosts" if node is None else f"node{chosen[0] + 1}"
    return f"{what}: speed {speed:g} ({speed * unit:.2f} of a core)"
