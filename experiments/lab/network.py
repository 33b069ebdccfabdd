"""The lab's network: hosts at a switch, throttled links, and what lies between them.

    node1 eth0 --- node1 [ the lab's own network namespace:        ] node2 --- eth0 node2
     up: tbf        down: tbf      bridge br0                         ...

Each host is a network namespace whose eth0 is one end of a veth pair. The other end is a port of the bridge and has
the host's name. Sending is throttled at eth0, receiving at the port. So, as with a real cable, what a program sends
queues in its own host and holds the program back, and what many hosts send to one queues in the switch, which drops
what does not fit.

For a shared medium, delay and loss, every frame must pass one place. What comes in at a port is redirected there
(tc mirred) through one-way passages. The bridge sees it at their end:

    port --redirect--> medium_in (htb) = medium_out --redirect--> wire_in (netem) = wire_out --> bridge --> port

The bridge then cannot learn which host is at which port, so it is told. If the kernel has no netem, the wire is a
pair of TAP interfaces and a process that carries frames from one to the other (wire.py).
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import time

from lab import wire
from lab.namespaces import BIND, NEW_HOST_NAME, NEW_NETWORK, STATE, inside, mount, set_host_name, try_out, unshare
from lab.settings import METER, METER_NUMBER, LabError, Link, Settings, address, rate_text

_CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
_FRAME_BYTES = 1514  # of Ethernet, as the kernel counts it


def burst_bytes(bit_per_s: float) -> int:
    """What tbf lets through at once: 1.25 ms at this rate, at least 4 kB. On a busy machine the kernel's timers are
    late by about 0.1 ms, and tokens that exceed the burst by then are lost. (At 1 Gbit/s, 16 kB give 850 Mbit/s and
    64 kB give 941 Mbit/s.)"""
    return max(4096, round(bit_per_s / 8 * 1.25e-3))


def queue_bytes(bit_per_s: float) -> int:
    """The queue behind it: 20 ms, limited to 64 kB to 512 kB, as are the buffers of small switches and home
    routers."""
    return burst_bytes(bit_per_s) + min(max(round(bit_per_s / 8 * 20e-3), 64_000), 512_000)


def piece_bytes(bit_per_s: float, loss: float) -> int:
    """The most that TCP passes down in one piece (segmentation offload): 1 ms of the link, as TCP's pacing does, so
    that streams that share a link take turns. Frames are lost, not pieces, so with loss there is no offload."""
    return _FRAME_BYTES if loss else min(max(round(bit_per_s / 8 * 1e-3), _FRAME_BYTES), 65_536)


def socket_bytes(bit_per_s: float, delay_s: float) -> int:
    """The most that a TCP socket may buffer in each direction: four times what is in flight in a round trip, since
    the kernel also counts its own data for each frame. Linux's limit of 4 MB allows 120 Mbit/s of 1 Gbit/s at a
    delay of 100 ms."""
    return min(round(4 * bit_per_s / 8 * 2 * delay_s), 256_000_000)


def _batch(program: str, *lines: str) -> None:
    """Runs the lines by ip, tc or bridge in the lab's folder. An error names the first line that fails."""
    given = [line for line in lines if line]
    done = subprocess.run([program, "-batch", "-"], input="\n".join(given) + "\n", capture_output=True, text=True,
                          check=False, cwd=STATE)
    if done.returncode != 0:
        failed = re.search(r"Command failed -:(\d+)", done.stderr)
        line = given[int(failed[1]) - 1] if failed else "; ".join(given)
        reasons = [text for text in done.stderr.splitlines() if not text.startswith(("Command failed", "Warning"))]
        raise LabError(f"{program} {line}: {' '.join(reasons)} (is a module of the kernel missing?)")


def _can(program: str, line: str, says: str = "") -> bool:
    """Whether the command succeeds and its output contains the text."""
    done = subprocess.run([program, *line.split()], capture_output=True, text=True, check=False)
    return done.returncode == 0 and says in done.stdout


def _set_tbf(device: str, bit_per_s: float) -> None:
    """Replaces the tbf, whose queue is lost: it may hold pieces larger than the new burst, which tbf would never
    send."""
    _can("tc", f"qdisc del dev {device} root")
    _batch("tc", f"qdisc add dev {device} root tbf rate {round(bit_per_s)}bit "
           f"burst {burst_bytes(bit_per_s)} limit {queue_bytes(bit_per_s)}")


def _mac(number: int) -> str:
    return f"02:00:0a:63:00:{number:02x}"


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError):  # a container's /proc/sys may be read-only; then IPv6 sends a few packets
        pathlib.Path(path).write_text(text, encoding="ascii")


def _make_host(name: str, number: int, numbers: list[int]) -> None:
    """Makes a host: its namespaces, which files keep, and the cable to the switch."""
    child = os.fork()
    if child == 0:
        try:
            unshare(NEW_NETWORK | NEW_HOST_NAME)
            set_host_name(name)
            for kind in ("net", "uts"):
                file = STATE / "ns" / f"{name}.{kind}"
                file.touch()
                mount(f"/proc/self/ns/{kind}", str(file), "", BIND)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise LabError(f"the namespaces of {name} cannot be made")
    # A relative path, because an absolute one may have spaces, at which ip would end it.
    _batch("ip", f"link add {name} type veth peer name eth0 address {_mac(number)} netns ./ns/{name}.net")
    with inside(name):
        _write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")
        _batch("ip", "link set lo up", f"address add {address(number)}/24 dev eth0", "link set eth0 up")
        # Every host gets the others' hardware addresses: a question would take a round trip, and its answer may be
        # lost.
        _batch("ip", *(f"neighbour add {address(other)} lladdr {_mac(other)} dev eth0 nud permanent"
                       for other in numbers if other != number))
    _batch("ip", f"link set {name} master br0 up")


def _set_congestion(name: str) -> None:
    try:
        pathlib.Path(_CONGESTION).write_text(name, encoding="ascii")
    except OSError as error:
        known = pathlib.Path(_CONGESTION.replace("tcp_", "tcp_available_")).read_text(encoding="ascii").split()
        raise LabError(f"--congestion {name}: must be one of {', '.join(known)}, which this kernel has, and one "
                       "that it allows to labs: root can allow it by sysctl net.ipv4.tcp_allowed_congestion_control",
                       2) from error


def check(settings: Settings) -> None:
    """Throws LabError if this kernel has no such congestion control or no netem, before anything is changed."""
    def work() -> None:
        if settings.congestion != "auto":
            _set_congestion(settings.congestion)
        if (settings.delay_s or settings.loss) and settings.filter == "netem":
            _batch("tc", "qdisc add dev lo root netem delay 1ms")

    try_out(work)


def _choose_congestion(wanted: str, hosts: list[str]) -> str:
    """Sets TCP's congestion control in all hosts, which would otherwise have the machine's, and says which it is.
    Some machines use BBR, which pauses for 0.2 s every 10 s to measure the round trip; a whole ring of hosts then
    pauses."""
    for name in ("cubic", "reno") if wanted == "auto" else (wanted,):
        try:
            for host in hosts:
                with inside(host):
                    _set_congestion(name)
            return name
        except LabError:
            if wanted != "auto":
                raise
    with inside(hosts[0]):
        return pathlib.Path(_CONGESTION).read_text(encoding="ascii").strip()


def _make_passage(name: str, is_tap: bool) -> tuple[str, str]:
    """Makes a pair of interfaces: what is sent into the first comes out of the second."""
    ends = (f"{name}_in", f"{name}_out")
    if not is_tap:
        _batch("ip", f"link add {ends[0]} type veth peer name {ends[1]}")
    _batch("ip", *(f"link set {end} arp off up" for end in ends))
    return ends


def _redirect(port: str, to: str) -> None:
    _batch("tc", f"qdisc add dev {port} ingress",
           f"filter add dev {port} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev {to}")


def allow_buffers(host: str, bit_per_s: float, delay_s: float) -> None:
    """Raises TCP's limits in a host to what its link needs; a socket uses more only when its traffic needs it."""
    with inside(host):
        for kind in ("rmem", "wmem"):
            path = f"/proc/sys/net/ipv4/tcp_{kind}"
            least, first, most = pathlib.Path(path).read_text(encoding="ascii").split()
            if int(most) < socket_bytes(bit_per_s, delay_s):
                _write(path, f"{least} {first} {socket_bytes(bit_per_s, delay_s)}")


def throttle_sending(host: str, bit_per_s: int, loss: float) -> None:
    """Also used for the meter: like a host of the same rate it then holds back what it sends. Without that the
    switch would drop much of it."""
    piece = piece_bytes(bit_per_s, loss)
    with inside(host):
        _set_tbf("eth0", bit_per_s)
        _batch("ip", f"link set eth0 gso_max_size {piece} gso_max_segs {max(1, piece // 1448)}")


def _medium_rates(settings: Settings) -> list[str]:
    """The shared medium's classes. Each host has its own queue and the same right to send; a host that sends alone
    gets the whole rate (htb lends rate and takes turns)."""
    rate, burst, hosts = settings.rate_bit_per_s, burst_bytes(settings.rate_bit_per_s), settings.nodes + 1
    piece = piece_bytes(rate, settings.loss)
    queue = piece + max(32_000, queue_bytes(rate) // hosts)
    throttle_sending(METER, rate, settings.loss)
    lines = [f"class replace dev medium_in parent 1: classid 1:ffff htb rate {rate}bit "
             f"burst {burst} cburst {burst} quantum {piece}"]
    for number in (*range(1, hosts), METER_NUMBER):
        lines += [f"class replace dev medium_in parent 1:ffff classid 1:{number:x} htb rate {rate // hosts}bit "
                  f"ceil {rate}bit burst {piece} cburst {burst} quantum {piece}",
                  f"qdisc replace dev medium_in parent 1:{number:x} handle 1{number:02x}: bfifo limit {queue}"]
    return lines


def _make_medium(settings: Settings) -> None:
    _batch("tc", f"qdisc add dev medium_in root handle 1: htb default {METER_NUMBER:x}", *_medium_rates(settings), *(
        # Matches the last byte of the sender's hardware address, which lies before the point from which u32 counts.
        "filter add dev medium_in parent 1: protocol all u32 "
        f"match u16 0x{number:04x} 0x00ff at -4 classid 1:{number:x}"
        for number in range(1, settings.nodes + 1)))


def _choose_filter(settings: Settings) -> str:
    if settings.flip:  # netem's corruption is noticed by TCP
        return "tap"
    if not settings.delay_s and not settings.loss:
        return "none"
    if settings.filter != "auto":
        return settings.filter
    return "netem" if _can("tc", "qdisc add dev lo root netem delay 1ms") and _can("tc", "qdisc del dev lo root") \
        else "tap"


def build(settings: Settings) -> int:
    """Makes the whole network. The lab's holder calls it in new namespaces. Returns the wire's process, or 0."""
    settings.filter = _choose_filter(settings)
    settings.links = [Link(settings.rate_bit_per_s) for _ in range(settings.nodes)]
    _write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")
    _batch("ip", "link set lo up", "link add br0 type bridge mcast_snooping 0", "link set br0 up")
    hosts = [(name, k + 1) for k, name in enumerate(settings.names())] + [(METER, METER_NUMBER)]
    for name, number in hosts:
        _make_host(name, number, [other for _, other in hosts])
    settings.congestion = _choose_congestion(settings.congestion, [name for name, _ in hosts])
    for index in range(settings.nodes):
        _throttle(settings, index)
    allow_buffers(METER, settings.rate_bit_per_s, settings.delay_s)

    passages: list[tuple[str, str]] = []
    process = 0
    if settings.is_shared:
        passages.append(_make_passage("medium", False))
        _make_medium(settings)
    if settings.filter == "netem":
        passages.append(_make_passage("wire", False))
        # The links before it bound what can be in flight, so this limit (in pieces) is never reached.
        _batch("tc", f"qdisc add dev wire_in root netem limit 1000000 delay {round(1e6 * settings.delay_s)}us"
               f" loss {100 * settings.loss:g}%")
    elif settings.filter == "tap":
        process = wire.start("wire_in", "wire_out", settings.delay_s, settings.loss, settings.flip)
        passages.append(_make_passage("wire", True))
    if passages:
        for name, _ in hosts:
            _redirect(name, passages[0][0])
        for (_, end), (begin, _) in zip(passages, passages[1:]):
            _redirect(end, begin)
        last = passages[-1][1]
        _batch("ip", f"link set {last} master br0", f"link set {last} type bridge_slave learning off")
        _batch("bridge", *(f"fdb add {_mac(number)} dev {name} master static" for name, number in hosts))
    return process


def _throttle(settings: Settings, index: int) -> None:
    """Sets both directions of a link to the rate in `settings`."""
    name, rate = f"node{index + 1}", settings.links[index].rate_bit_per_s
    throttle_sending(name, rate, settings.loss)
    allow_buffers(name, rate, settings.delay_s)
    if not settings.is_shared:  # there the medium lets no more than its rate through anyway
        _set_tbf(name, rate)


def set_rate(settings: Settings, rate_bit_per_s: int, node: str | None) -> str:
    """Changes all links or one, also under running traffic. Returns what was done."""
    if node is not None and settings.is_shared:
        raise LabError("rate --node: all hosts of a shared medium have the same rate: leave out --node", 2)
    chosen = range(settings.nodes) if node is None else [settings.index(node)]
    for index in chosen:
        settings.links[index].rate_bit_per_s = rate_bit_per_s
        _throttle(settings, index)
    if node is None:
        settings.rate_bit_per_s = rate_bit_per_s
        if settings.is_shared:
            _batch("tc", *_medium_rates(settings))
    what = "all hosts" if node is None else f"node{chosen[0] + 1}"
    return f"{what}: {rate_text(rate_bit_per_s)}"


def set_one_way(settings: Settings, node: str, dead: str) -> str:
    """Loses at the switch all that a host sends ("up") or all that is sent to it ("down"); the carrier stays. ""
    mends it."""
    index = settings.index(node)
    name, link = f"node{index + 1}", settings.links[index]
    if link.is_cut:
        return f"{name}: is cut already"
    _can("tc", f"filter del dev {name} parent ffff: protocol all prio 1")
    _can("tc", f"qdisc del dev {name} root")
    if not settings.is_shared:
        _set_tbf(name, link.rate_bit_per_s)
    if dead == "up":  # where frames come in; the switch's lo takes none that are for others
        _can("tc", f"qdisc add dev {name} ingress")  # with a shared medium it is there
        _batch("tc", f"filter add dev {name} parent ffff: protocol all prio 1 u32 match u32 0 0 "
               "action mirred egress redirect dev lo")
    elif dead == "down":  # a queue into which no frame fits
        _batch("tc", f"qdisc replace dev {name} root bfifo limit 1")
    link.dead = dead
    return f"{name}: cut, only {'what it sends' if dead == 'up' else 'what it receives'}"


def set_cut(settings: Settings, node: str, is_cut: bool) -> str:
    """Pulls the cable at the switch, so that the host's interface has no carrier, or puts it back."""
    index = settings.index(node)
    name = f"node{index + 1}"
    if not is_cut and settings.links[index].dead:
        set_one_way(settings, node, "")
        return f"{name}: mended"
    if settings.links[index].is_cut == is_cut:
        return f"{name}: {'is cut' if is_cut else 'is not cut'} already"
    _batch("ip", f"link set {name} {'down' if is_cut else 'up'}")
    # The kernel tells the host up to a second later, and what the host sends until then is lost.
    end_s = time.monotonic() + 5
    with inside(name):
        while not is_cut and not _can("ip", "-br link show dev eth0", " UP ") and time.monotonic() < end_s:
            time.sleep(0.02)
    settings.links[index].is_cut = is_cut
    return f"{name}: {'cut' if is_cut else 'mended'}"
