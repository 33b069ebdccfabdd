"""Delay and loss for kernels without netem: a process that carries frames from one TAP interface to another.

It carries one direction, first in, first out. Frames keep the header of virtio, so that pieces of segmentation
offload (up to 64 kB) are carried whole: 4 hosts that send at 1 Gbit/s each take half a core. With loss every frame
is carried by itself. A core carries about 50,000 frames per second, which is about 400 Mbit/s over all hosts,
acknowledgements included.
"""
from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import random
import select
import struct
import time

from lab.namespaces import die_with_parent
from lab.settings import LabError

_SET_INTERFACE, _SET_OFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_INFO, _VIRTIO_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUM, _TCP4, _TCP6, _ECN = 1, 2, 4, 8
_MOST_BYTES = 70_000
FULL_WITH_LOSS_BIT_PER_S = 400_000_000


def _open_tap(name: str) -> int:
    try:
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(file, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TAP | _NO_INFO | _VIRTIO_HEADER))
        fcntl.ioctl(file, _SET_OFFLOAD, _CHECKSUM | _TCP4 | _TCP6 | _ECN)
        return file
    except OSError as error:
        raise LabError("delay and loss need the kernel's netem (module sch_netem) or /dev/net/tun; this machine has no "
                       f"netem, and /dev/net/tun cannot be used: {error.strerror}") from error


def carry(begin: int, end: int, delay_s: float, loss: float) -> None:
    """For ever."""
    clock, draw = time.monotonic, random.random
    waiting: collections.deque[tuple[float, bytes]] = collections.deque()
    # With many frames in flight, wait a little: frames that come one after another are then carried together.
    rest_s = min(200e-6, delay_s / 20)
    while True:
        select.select([begin], [], [], max(0.0, waiting[0][0] - clock()) if waiting else None)
        with contextlib.suppress(BlockingIOError):
            now = clock()
            for _ in range(64):
                frame = os.read(begin, _MOST_BYTES)
                if loss == 0 or draw() >= loss:
                    waiting.append((now + delay_s, frame))
        while waiting and waiting[0][0] <= clock():
            with contextlib.suppress(OSError):  # a frame for an interface that is just down
                os.write(end, waiting.popleft()[1])
        if rest_s and len(waiting) > 8:
            time.sleep(rest_s)


def start(begin: str, end: str, delay_s: float, loss: float) -> int:
    """Makes both interfaces and returns the process that carries between them."""
    files = _open_tap(begin), _open_tap(end)
    process = os.fork()
    if process == 0:
        try:
            die_with_parent()
            with contextlib.suppress(OSError):  # the network must not wait for its users; may be refused
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            carry(*files, delay_s, loss)
        finally:
            os._exit(1)
    for file in files:
        os.close(file)
    return process
