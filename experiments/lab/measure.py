"""What a link really does: goodput of one TCP stream, and round trips of ICMP echoes, idle and beside the stream.

Both ends are in this process, because a socket belongs to the network in which it was made. The other end of every
measured link is the meter, a host whose own link is at least as fast, so that a figure is that of one link.
"""
from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import struct
import threading
import time

from lab.namespaces import inside

_PIECE = 1 << 18


@dataclasses.dataclass
class Echoes:
    round_trips_s: list[float]
    sent: int

    def median_s(self) -> float | None:
        return sorted(self.round_trips_s)[len(self.round_trips_s) // 2] if self.round_trips_s else None


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


class Pinger:
    """Sends ICMP echo requests from a host."""

    def __init__(self, node: str, address: str):
        with inside(node):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.connect((address, 0))
        self._number = os.getpid() & 0xFFFF

    def close(self) -> None:
        self._socket.close()

    def run(self, count: int, interval_s: float, patience_s: float, stop: threading.Event | None = None) -> Echoes:
        """Sends one request every interval until it has sent `count` or `stop` is set, and then waits for late
        answers."""
        sent_at: dict[int, float] = {}
        round_trips: list[float] = []
        next_s = time.monotonic()
        while len(round_trips) < count:
            now = time.monotonic()
            is_sending = len(sent_at) < count and not (stop and stop.is_set())
            if is_sending and now >= next_s:
                head = struct.pack("!BBHHH", 8, 0, 0, self._number, len(sent_at))
                payload = bytes(48)
                head = struct.pack("!BBHHH", 8, 0, _checksum(head + payload), self._number, len(sent_at))
                sent_at[len(sent_at)] = time.monotonic()
                with contextlib.suppress(OSError):  # no carrier: the request is lost
                    self._socket.send(head + payload)
                next_s = now + interval_s
            elif not is_sending and (not sent_at or len(round_trips) == len(sent_at)
                                     or now > max(sent_at.values()) + patience_s):
                break
            wait_s = max(0.0, next_s - time.monotonic()) if is_sending else 0.05
            if select.select([self._socket], [], [], wait_s)[0]:
                packet, arrived = self._socket.recv(2048), time.monotonic()
                kind, _, _, number, sequence = struct.unpack("!BBHHH", packet[20:28])
                if kind == 0 and number == self._number and sequence in sent_at:
                    round_trips.append(arrived - sent_at[sequence])
        return Echoes(round_trips, len(sent_at))


def ping(node: str, address: str, count: int = 10, interval_s: float = 0.02, patience_s: float = 1.0) -> Echoes:
    pinger = Pinger(node, address)
    try:
        return pinger.run(count, interval_s, patience_s)
    finally:
        pinger.close()


def _send(sender: socket.socket, stop: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while not stop.is_set():
            sender.sendall(bytes(_PIECE))


def stream(source: str, destination: str, address: str, warm_up_s: float, seconds: float,
           pinger: Pinger | None = None) -> tuple[float, Echoes | None]:
    """Measures the bits per second of payload that arrive at `destination`, which has this address, and the round
    trips meanwhile."""
    with inside(destination):
        listener = socket.create_server((address, 0))
    listener.settimeout(10)
    with inside(source):
        sender = socket.socket()
    stop, echoes = threading.Event(), []
    with listener, sender:
        sender.settimeout(10)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        threads = [threading.Thread(target=_send, args=(sender, stop), daemon=True)]
        if pinger:
            threads.append(threading.Thread(target=lambda: echoes.append(pinger.run(10**6, 0.02, 1.0, stop)),
                                            daemon=True))
        with receiver:
            receiver.settimeout(10)
            room, received = bytearray(_PIECE), 0
            for thread in threads:
                thread.start()
            begin = time.monotonic() + warm_up_s
            while time.monotonic() < begin:
                receiver.recv_into(room)
            begin = now = time.monotonic()
            while now < begin + seconds:
                received += receiver.recv_into(room)
                now = time.monotonic()
            stop.set()
            receiver.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(15)
    return 8 * received / (now - begin), echoes[0] if echoes else None
