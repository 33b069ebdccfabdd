"""One rank of dptrain_comm.run: _rank.py ADDRESS PORT RANKS_PER_HOST PROGRAM [ARG]...

Sets what torchrun sets, from what mpirun says, and becomes the program.
"""
import os
import sys


def environment(variables, address: str, port: str, per_host: int) -> dict:
    rank, size = int(variables["OMPI_COMM_WORLD_RANK"]), int(variables["OMPI_COMM_WORLD_SIZE"])
    local = variables["OMPI_COMM_WORLD_LOCAL_RANK"]
    return {
        "RANK": str(rank), "LOCAL_RANK": local, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(per_host),
        "GROUP_RANK": str(rank // per_host), "GROUP_WORLD_SIZE": str(size // per_host), "NODE_RANK": str(rank // per_host),
        "ROLE_NAME": "default", "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": port,
        # By these PyTorch and Lightning see that somebody else has started the ranks.
        "TORCHELASTIC_RUN_ID": "dptrain_comm", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        # As torchrun: ranks that share a host do not each take all of its cores.
        "OMP_NUM_THREADS": variables.get("OMP_NUM_THREADS") or ("1" if per_host > 1 else str(len(os.sched_getaffinity(0))))}


def main() -> None:
    address, port, per_host, *program = sys.argv[1:]
    os.environ.update(environment(os.environ, address, port, int(per_host)))
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"dptrain_comm.run: {program[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
