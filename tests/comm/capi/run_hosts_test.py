"""python -m dptrain_comm.run on two hosts, without PyTorch: run_hosts_test.py PACKAGES.

The hosts are network namespaces with names and addresses of their own, joined by a link. Exit code 77: this system or user cannot
make any.
"""
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

PROGRAM = """
import json, os, socket
import dptrain_comm
dptrain_comm.start()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "DPTRAIN_TEST")
print(json.dumps([{name: os.environ.get(name) for name in names}, dptrain_comm.rank(), dptrain_comm.size(), socket.gethostname(),
                  os.getcwd()]) + "\\n", end="")
"""

# In place of ssh: options, the host, the command.
AGENT = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
host=$1
shift
exec ip netns exec {prefix}${{host##*.}} unshare --uts sh -c "hostname {prefix}${{host##*.}}; cd /; $*"
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def hosts_joined(prefix: str) -> None:
    """PREFIX1 with 10.99.7.1, PREFIX2 with 10.99.7.2."""
    for number in "12":
        ip("netns", "add", prefix + number)
    ip("link", "add", "link1", "netns", prefix + "1", "type", "veth", "peer", "name", "link2", "netns", prefix + "2")
    for number in "12":
        ip("-n", prefix + number, "addr", "add", f"10.99.7.{number}/24", "dev", "link" + number)
        ip("-n", prefix + number, "link", "set", "link" + number, "up")
        ip("-n", prefix + number, "link", "set", "lo", "up")


def trained(prefix: str, folder: pathlib.Path) -> list:
    agent = folder / "agent"
    agent.write_text(AGENT.format(prefix=prefix), encoding="utf-8")
    agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.path.abspath(sys.argv[1]), "PYTHONDONTWRITEBYTECODE": "1", "DPTRAIN_TEST": "handed on",
                   "OMPI_MCA_plm_rsh_agent": str(agent), "PRTE_MCA_plm_ssh_agent": str(agent)}  # of Open MPI 4 and 5
    words = [sys.executable, "-m", "dptrain_comm.run", "--nnodes", "2", "--nproc-per-node", "2", "--hosts", "10.99.7.1,10.99.7.2",
             "train.py"]
    done = subprocess.run(["ip", "netns", "exec", prefix + "1", "unshare", "--uts", "sh", "-c", f'hostname {prefix}1; exec "$@"', "sh", *words],
                          capture_output=True, text=True, timeout=100, cwd=folder, env=environment)
    assert done.returncode == 0, done
    return sorted((json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")), key=lambda row: row[1])


def main() -> int:
    prefix = f"dprun{os.getpid()}-"
    try:
        hosts_joined(prefix)
        with tempfile.TemporaryDirectory() as name:
            rows = trained(prefix, pathlib.Path(name))
            assert len(rows) == 4, rows
            for number, (variables, rank, size, host, folder) in enumerate(rows):
                where = number // 2 + 1
                assert (rank, size, host) == (number, 4, f"{prefix}{where}"), rows
                assert os.path.realpath(folder) == os.path.realpath(name), rows
                assert variables == {"RANK": str(number), "LOCAL_RANK": str(number % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
                                     "GROUP_RANK": str(where - 1), "MASTER_ADDR": "10.99.7.1", "GLOO_SOCKET_IFNAME": f"link{where}",
                                     "DPTRAIN_TEST": "handed on"}, rows
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: network namespaces cannot be made: {getattr(error, 'stderr', error)}")
        return 77
    finally:
        for number in "12":
            subprocess.run(["ip", "netns", "del", prefix + number], capture_output=True)
    print("two hosts of two ranks: passed")
    return 0


sys.exit(main())
