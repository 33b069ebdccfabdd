"""Programs of the hook under launchers of PyTorch, really started: torch_launch_test.py PACKAGES MPIRUN.

Each ends with a sentence if the launcher's processes are no ranks of MPI, and trains under mpirun. Without accelerate or
lightning their parts are left out. The same file is the program: torch_launch_test.py PACKAGES program HOW.
"""
import importlib.util
import os
import subprocess
import sys

sys.dont_write_bytecode = True
from torch_support import LINK, PACKAGES, dptrain_comm  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

# ---- the program


def trained(net: nn.Module, exchange, step) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        step().backward()
        exchange()
        optimizer.step()
    report(net)


def report(net: nn.Module) -> None:
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).double().abs().sum().item()
    sys.stdout.write(f"trained: rank {dptrain_comm.rank()} of {dptrain_comm.size()}, weights {weights:.12g}\n")
    sys.stdout.flush()


def through_ddp(make_group) -> None:
    make_group()
    ddp = DistributedDataParallel(nn.Linear(8, 4))
    ddp.register_comm_hook(dptrain_comm.init("q8", **LINK), dptrain_comm.hook)
    trained(ddp.module, lambda: None, lambda: ddp(torch.randn(4, 8)).square().sum())


def by_hand(_rank: int = 0) -> None:
    net = nn.Linear(8, 4)
    dptrain_comm.broadcast_parameters(net)
    state = dptrain_comm.init("q8", **LINK)
    trained(net, lambda: state.allreduce_gradients(net), lambda: net(torch.randn(4, 8)).square().sum())


def together(_rank: int, all_are_here) -> None:
    all_are_here.wait()  # one that begins when another has ended may take its identity
    by_hand()
    all_are_here.wait()


def spawned() -> None:
    torch.multiprocessing.spawn(together, nprocs=2, args=(torch.multiprocessing.get_context("spawn").Barrier(2),))


def one_loads() -> None:
    """Rank 1 alone goes back to an earlier state in the middle of a run. The error of one rank must end all of them."""
    net = nn.Linear(300, 100)
    state = dptrain_comm.init("q4", **LINK)
    saved: dict = {}
    for step in range(6):
        if step == 2:
            saved = state.state_dict()
        if step == 5 and dptrain_comm.rank() == 1:
            state.load_state_dict(saved)
        net.zero_grad()
        net(torch.randn(4, 300)).square().sum().backward()
        state.allreduce_gradients(net)


def accelerated() -> None:
    import accelerate
    dptrain_comm.init_process_group()
    accelerator = accelerate.Accelerator(cpu=True)
    net, optimizer = accelerator.prepare(nn.Linear(8, 4), torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1))
    if isinstance(net, DistributedDataParallel):
        net.register_comm_hook(dptrain_comm.init("q8", **LINK), dptrain_comm.hook)
    trained(net, lambda: None, lambda: net(torch.randn(4, 8)).square().sum())


def with_lightning(devices: int, starts_first: bool) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(8, 4)

        def training_step(self, batch, _):
            return self.net(batch[0]).square().sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Exchange(lightning.Callback):
        def on_fit_start(self, trainer, module):
            dptrain_comm.broadcast_parameters(module)
            self.state = dptrain_comm.init("q8", model=module, **LINK)

        def on_before_optimizer_step(self, trainer, module, optimizer):
            self.state.allreduce_gradients(module)

    if starts_first:
        dptrain_comm.start()
    trainer = lightning.Trainer(accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=1,
                                callbacks=[Exchange()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False)
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 8)), batch_size=4))
    report(module)


def sparse() -> None:
    """An error in a hook, which PyTorch 1 takes for one of its own."""
    dptrain_comm.init_process_group()
    ddp = DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
    ddp.register_comm_hook(dptrain_comm.init("q8", **LINK), dptrain_comm.hook)
    ddp(torch.tensor([1, 2])).sum().backward()


PROGRAMS = {"sparse": sparse, "one_loads": one_loads, "ddp": lambda: through_ddp(dptrain_comm.init_process_group),
            "torchs_group": lambda: through_ddp(lambda: torch.distributed.init_process_group("gloo")),
            "by_hand": by_hand, "spawned": spawned, "accelerate": accelerated,
            "lightning": lambda: with_lightning(1, True), "lightning_of_two": lambda: with_lightning(2, False),
            "lightning_of_two_started": lambda: with_lightning(2, True)}

# ---- the test


def has(package: str) -> bool:
    if importlib.util.find_spec(package) is None:
        print(f"without {package}: its launcher was not tried; pip install {package}", flush=True)
        return False
    return True


def run(launcher: list, how: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "DPTRAIN_COMM_RANK"}
    return subprocess.run([*launcher, __file__, PACKAGES, "program", how], capture_output=True, text=True, timeout=120,
                          env=environment)


def refused(launcher: list, how: str, words: str, code: int = 2, remedy: str = "mpirun -np 2") -> None:
    """One process reports the error, or several that are not in time to be ended by the launcher. Of processes with the
    same identity one for each rank may train, together."""
    done = run(launcher, how)
    text = done.stdout + done.stderr
    rows = sorted(line for line in text.splitlines() if line.startswith("trained"))
    is_one_job = how == "spawned" and [row[:22] for row in rows] == ["trained: rank 0 of 2, ", "trained: rank 1 of 2, "]
    assert done.returncode == code and words in text and (not rows or is_one_job), (launcher, how, done.returncode, text)
    assert remedy in text and "SIGSEGV" not in text and "Segmentation" not in text, (launcher, how, text)


def trains(launcher: list, how: str, ranks: int) -> None:
    done = run(launcher, how)
    rows = sorted(line for line in done.stdout.splitlines() if line.startswith("trained"))
    assert done.returncode == 0 and len(rows) == ranks, (launcher, how, done)
    assert all(row.startswith(f"trained: rank {rank} of {ranks}, ") for rank, row in enumerate(rows)), (launcher, how, rows)
    assert len({row.split("weights")[1] for row in rows}) == 1, (launcher, how, rows)


def launched(mpirun: str) -> None:
    python, torchrun = [sys.executable], [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    under_mpi = [mpirun, "-np", "2", *python]
    for how in ("ddp", "by_hand"):
        trains(python, how, 1)
        trains(under_mpi, how, 2)
    refused(under_mpi, "sparse", "has a sparse gradient", 2, "sparse=False")
    refused(under_mpi, "one_loads", "rank 0 continues from step 5, but rank 1 from step 2: every rank must load", 3,
            "or no rank may load a state")
    refused([mpirun, "-np", "3", *python], "one_loads", " continues from step ", 3, "rank 1 ")
    refused(under_mpi, "spawned", "of this job is taken by process", 1)  # torch's own code, whatever the processes end with
    if torch.__version__.startswith("1.") and sys.version_info >= (3, 11):
        print("torchrun of PyTorch 1 fails in Python 3.11 and was not tried", flush=True)
    else:
        for how in ("ddp", "torchs_group"):
            refused(torchrun, how, "WORLD_SIZE=2 (set by ", 1)
        refused([mpirun, "-np", "2", *torchrun], "by_hand", "of this job is taken by process", 1)
    if has("accelerate"):
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1",
                  "--mixed_precision", "no", "--dynamo_backend", "no"]
        trains(under_mpi, "accelerate", 2)
        refused([*launch, "--multi_gpu"], "accelerate", "WORLD_SIZE=2 (set by ", 1)
        trains([*launch, "--cpu"], "by_hand", 1)  # without a host file it starts one process
    if has("lightning"):
        trains(under_mpi, "lightning", 2)
        refused(python, "lightning_of_two", "WORLD_SIZE=2 (set by ")
        refused(python, "lightning_of_two_started", "rank 0 of 2 in torch.distributed (WORLD_SIZE=2)")
        refused(under_mpi, "lightning_of_two", "devices=1 in Lightning")


if __name__ == "__main__":
    if sys.argv[2] == "program":
        PROGRAMS[sys.argv[3]]()
    else:
        launched(sys.argv[2])
        print("all passed")
