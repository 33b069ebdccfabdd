"""Delay and loss for kernels without netem: a process that carries frames from one TAP interface to another.

It carries one direction, first in, first out. Frames keep the header of virtio, so that pieces of segmentation
offload (up to 64 kB) are carried whole: 4 hosts that send at 1 Gbit/s each take half a core. With loss every frame
is carried by itself. A core carries about 50,000 frames per second, which is about 400 Mbit/s over all hosts,
acknowledgements included.

It can also flip bits as a faulty card or memory does before the checksum is made: TCP's checksum is right again, so
that only the programs can notice.
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
_VIRTIO_BYTES, _NEEDS_CHECKSUM, _PROTOCOL_TCP = 10, 1, 6
_FULL_BYTES = 1000
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


def _tcp_of(frame: bytes) -> tuple[int, int]:
    """Where the TCP header of a frame over IPv4 begins, and its data; (0, 0) of other frames."""
    ip = _VIRTIO_BYTES + 14
    if len(frame) < ip + 40 or frame[ip - 2:ip] != b"\x08\x00" or frame[ip] >> 4 != 4 or frame[ip + 9] != _PROTOCOL_TCP:
        return 0, 0
    tcp = ip + 4 * (frame[ip] & 15)
    return tcp, tcp + 4 * (frame[tcp + 12] >> 4)


def is_full(frame: bytes) -> bool:
    """Whether it carries a kilobyte or more of TCP's data."""
    tcp, data = _tcp_of(frame)
    return tcp > 0 and len(frame) - data >= _FULL_BYTES


def flipped(frame: bytes) -> bytes:
    """A full frame with another bit in the middle of its data, and with TCP's checksum of that."""
    tcp, data = _tcp_of(frame)
    at = data + (len(frame) - data) // 4 * 2  # the sum is of words of two bytes, from the header's begin on
    damaged = bytearray(frame)
    damaged[at] ^= 1
    if not frame[0] & _NEEDS_CHECKSUM:  # otherwise nobody has made the checksum yet
        # RFC 1624, equation 3.
        old, new = (int.from_bytes(x[at:at + 2], "big") for x in (frame, damaged))
        total = (~int.from_bytes(frame[tcp + 16:tcp + 18], "big") & 0xFFFF) + (~old & 0xFFFF) + new
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        damaged[tcp + 16:tcp + 18] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(damaged)


def carry(begin: int, end: int, delay_s: float, loss: float, flip: int) -> None:
    """For ever."""
    full = 0
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
                    if flip and is_full(frame):
                        full += 1
                        if full % flip == 0:
                            frame = flipped(frame)
                    waiting.append((now + delay_s, frame))
        while waiting and waiting[0][0] <= clock():
            with contextlib.suppress(OSError):  # a frame for an interface that is just down
                os.write(end, waiting.popleft()[1])
        if rest_s and len(waiting) > 8:
            time.sleep(rest_s)


def start(begin: str, end: str, delay_s: float, loss: float, flip: int) -> int:
    """Makes both interfaces and returns the process that carries between them."""
    files = _open_tap(begin), _open_tap(end)
    process = os.fork()
    if process == 0:
        try:
            die_with_parent()
            with contextlib.suppress(OSError):  # the network must not wait for its users; may be refused
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            carry(*files, delay_s, loss, flip)
        finally:
            os._exit(1)
    for file in files:
        os.close(file)
    return process
