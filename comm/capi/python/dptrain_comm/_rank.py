"""One rank of dptrain_comm.run: _rank.py ADDRESS PORT RANKS_PER_HOST PROGRAM [ARG]...

Sets torchrun's environment variables from mpirun's, and executes the program.
"""
import fcntl
import os
import socket
import struct
import sys


def interface_of(address: str) -> str:
    """The network interface with this IPv4 address; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(any_socket.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


def show_interface(variables, address: str) -> None:
    """Sets gloo's interface to the one towards that host, unless the user has set it, or gloo finds
    it by this host's name. Debian's /etc/hosts gives a host's name a loopback address, to which
    other hosts cannot connect."""
    if variables.get("GLOO_SOCKET_IFNAME") or variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == variables.get("OMPI_COMM_WORLD_SIZE"):
        return
    try:
        if not socket.gethostbyname(socket.gethostname()).startswith("127."):
            return
    except OSError:
        pass
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing, only looks up the route
            own = probe.getsockname()[0]
            name = "" if own.startswith("127.") else interface_of(own)
    except OSError:
        return
    if name:
        variables["GLOO_SOCKET_IFNAME"] = name


def environment(variables, address: str, port: str, per_host: int) -> dict:
    rank, size = int(variables["OMPI_COMM_WORLD_RANK"]), int(variables["OMPI_COMM_WORLD_SIZE"])
    local = variables["OMPI_COMM_WORLD_LOCAL_RANK"]
    return {
        "RANK": str(rank), "LOCAL_RANK": local, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(per_host),
        "GROUP_RANK": str(rank // per_host), "GROUP_WORLD_SIZE": str(size // per_host), "NODE_RANK": str(rank // per_host),
        "ROLE_NAME": "default", "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": port,
        # These show PyTorch and Lightning that a launcher has started the ranks.
        "TORCHELASTIC_RUN_ID": "dptrain_comm", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        # Like torchrun: ranks that share a host must not each use all of its cores.
        "OMP_NUM_THREADS": variables.get("OMP_NUM_THREADS") or ("1" if per_host > 1 else str(len(os.sched_getaffinity(0))))}


def main() -> None:
    address, port, per_host, *program = sys.argv[1:]
    os.environ.update(environment(os.environ, address, port, int(per_host)))
    show_interface(os.environ, address)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"dptrain_comm.run: {program[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
