"""python -m dptrain_comm.run, without PyTorch: run_test.py PACKAGES. Really started on this host; what it would type for others."""
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from dptrain_comm import run  # noqa: E402

PROGRAM = """
import json, os, sys
import dptrain_comm
dptrain_comm.start()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
print(json.dumps([{name: os.environ[name] for name in names}, dptrain_comm.rank(), dptrain_comm.size(), sys.argv[1:]]) + "\\n", end="")
sys.exit(int(sys.argv[1]) if dptrain_comm.rank() == 0 and sys.argv[1].isdecimal() else 0)
"""


def started(folder: pathlib.Path, *words: str, code: int = 0) -> list:
    environment = {**os.environ, "PYTHONPATH": sys.argv[1], "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run([sys.executable, "-m", "dptrain_comm.run", *words], capture_output=True, text=True, timeout=120, cwd=folder,
                          env=environment)
    assert done.returncode == code, (words, done)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def really() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
        lines = started(folder, "--nproc_per_node=3", "--standalone", "train.py", "--nnodes", "7", "-m")
        assert sorted(rank for _, rank, _, _ in lines) == [0, 1, 2], lines
        for variables, rank, size, words in lines:
            assert (size, words) == (3, ["--nnodes", "7", "-m"]), lines
            assert variables["RANK"] == variables["LOCAL_RANK"] == str(rank), lines
            assert variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "3" and variables["OMP_NUM_THREADS"] == "1", lines
            assert variables["MASTER_ADDR"] == "127.0.0.1" and variables["MASTER_PORT"] == lines[0][0]["MASTER_PORT"], lines
        assert len(started(folder, "--nproc-per-node", "2", "--master-port", "12345", "-m", "train", "x")) == 2
        assert started(folder, "--no-python", sys.executable, "train.py", "x")[0][3] == ["x"]
        started(folder, "--nproc-per-node", "2", "train.py", "3", code=3)


@contextlib.contextmanager
def environment(**named):
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def on_others() -> None:
    with environment(PYTHONPATH="/p", DPTRAIN_COMM_LIBRARY="/l", RUN_TEST_OTHER="x"):
        words = run.command_of(["--nnodes", "2", "--nproc-per-node", "4", "--hosts", "one,two,three", "t.py", "--lr", "1"])
    text = " ".join(words)
    assert "-np 8 --map-by ppr:4:node:oversubscribe" in text and "--host one:4,two:4 " in text, text
    assert "-x DPTRAIN_COMM_LIBRARY" in text and "-x PYTHONPATH" in text and "RUN_TEST_OTHER" not in text, text
    assert text.endswith(f" one 29500 4 {sys.executable} -u t.py --lr 1"), text
    words = run.command_of(["--nnodes=2:2", "--hosts=one,two", "--rdzv-endpoint", "10.0.0.1:77", "--rdzv-backend", "c10d", "t.py"])
    assert words[-6:-3] == ["10.0.0.1", "77", "1"], words
    words = " ".join(run.command_of(["--hosts", "one,two", "t.py"]))  # all of them
    assert "-np 2 " in words and "--host one:1,two:1 " in words, words
    # Other hosts of a job do not find rank 0 by this host's own name for itself.
    here = socket.gethostname()
    with environment(SLURM_JOB_ID="1"):
        for words in (["--nnodes", "2"], ["--nnodes", "2", "--hosts", f"{here},two"]):
            address = run.command_of([*words, "t.py"])[-6]
            assert address not in ("localhost", here) and not address.startswith("127."), address
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("# hosts\n\nfirst slots=2\nsecond slots=2\n")
        file.flush()
        words = run.command_of(["--nnodes", "2", "--hostfile", file.name, "--master-port", "5", "t.py"])
        assert words[words.index("--hostfile") + 1] == file.name and words[-6:-3] == ["first", "5", "1"], words


def refusals() -> None:
    cases = ((["--nnodes", "2", "t.py"], "--nnodes 2: which hosts?"), (["--nnodes", "1:2", "t.py"], "the number of hosts is fixed"),
             (["--nproc-per-node", "0", "t.py"], "--nproc-per-node 0: must be"), (["--nnodes", "x", "t.py"], "--nnodes x: must be"),
             ([], "no SCRIPT given"), (["--hosts", "a", "--nnodes", "2", "t.py"], "names 1 hosts, and --nnodes is 2"),
             (["--node-rank", "1", "t.py"], "start this on the first host alone"), (["--max-restarts", "3", "t.py"], "--max-restarts 3"),
             (["--hostfile", "/no/such", "t.py"], "--hostfile /no/such: cannot be read"),
             (["--hosts", "a", "--hostfile", "b", "t.py"], "exclude each other"),
             (["--hosts", f"two,{socket.gethostname()}", "t.py"], "must be the first one, or start this on two"),
             (["--master-port", "99999", "t.py"], "--master-port 99999: must be 1 to 65535"))
    jobs = {name: os.environ.pop(name) for name in ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS") if name in os.environ}
    for words, sentence in cases:
        try:
            run.command_of(words)
        except run.UsageError as error:
            assert sentence in str(error), (words, str(error))
        else:
            raise AssertionError(f"{words}: no error")
    os.environ.update(jobs)


refusals()
on_others()
really()
