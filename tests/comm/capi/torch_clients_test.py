"""Programs of other libraries, started by dptrain_comm.run: torch_clients_test.py PACKAGES.

Each trains on two ranks, once without the exchange, by PyTorch's own DDP, and once with it. The codec `none` must give the same
loss to the last digits, and a training that goes on from a checkpoint in the middle the same weights as one that was not
interrupted. Parts whose package is not there are named and left out. The same file is the program:
torch_clients_test.py PACKAGES program HOW CODEC FOLDER [resume].
"""
import importlib.util
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from torch_support import LINK, PACKAGES, dptrain_comm  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

EPOCHS, BATCH, IMAGES = 4, 16, 256  # of both ranks together

# ---- the programs


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))


def data() -> torch.utils.data.TensorDataset:
    images = torch.randn(IMAGES, 64, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(images, images[:, :4].argmax(1))


def report(net: nn.Module, loss: float, rank: int) -> None:
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).double().abs().sum().item()
    sys.stdout.write(f"trained: rank {rank}, loss {loss:.9g}, weights {weights:.12g}\n")
    sys.stdout.flush()


def by_hand(codec: str, folder: str, resume: bool, accelerator=None) -> None:
    """A program as torchrun's manual has it, or the same with Accelerate."""
    sampler = None
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    if accelerator is None:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        ddp = nn.parallel.DistributedDataParallel(net)
        sampler = torch.utils.data.DistributedSampler(data(), shuffle=False)
        batches = torch.utils.data.DataLoader(data(), BATCH // 2, sampler=sampler)
    else:
        batches = torch.utils.data.DataLoader(data(), BATCH // 2)
        ddp, optimizer, batches = accelerator.prepare(net, optimizer, batches)
        rank = accelerator.process_index
    state = None if codec == "ddp" else dptrain_comm.prepare(ddp, codec, **LINK)
    path = os.path.join(folder, "checkpoint.pt")
    first = 0
    if resume:
        saved = torch.load(path, weights_only=not torch.__version__.startswith("1."))  # whose optimisers' numbers PyTorch 1 refuses
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.load_state_dict(saved["exchange"])
        first = EPOCHS // 2
    loss = torch.zeros(())
    for epoch in range(first, EPOCHS):
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(x), y)
            loss.backward() if accelerator is None else accelerator.backward(loss)
            optimizer.step()
        if state is not None and epoch + 1 == EPOCHS // 2:
            exchange = state.state_dict(all_ranks=True)
            if rank == 0 and not resume:
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "exchange": exchange}, path)
    report(net, loss.item(), rank)
    torch.distributed.destroy_process_group()


def accelerated(codec: str, folder: str, resume: bool) -> None:
    import accelerate
    by_hand(codec, folder, resume, accelerate.Accelerator(cpu=True))


def with_lightning(codec: str, folder: str, resume: bool) -> None:
    import lightning
    if codec != "ddp":
        import dptrain_comm.lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.last = network(), 0.0

        def training_step(self, batch, _):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.last = loss.item()
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)

    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="{epoch}", every_n_epochs=2, save_top_k=-1)
    callbacks = [] if codec == "ddp" else [dptrain_comm.lightning.Exchange(codec, **LINK)]
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
                                enable_model_summary=False, callbacks=[*callbacks, checkpoints])
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(data(), BATCH // 2, shuffle=False),
                ckpt_path=os.path.join(folder, "epoch=1.ckpt") if resume else None)
    report(module, module.last, trainer.global_rank)


def with_trainer(codec: str, folder: str, resume: bool) -> None:
    import transformers
    if codec != "ddp":
        import dptrain_comm.transformers

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    args = transformers.TrainingArguments(folder, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH // 2, use_cpu=True,
                                          learning_rate=1e-2, save_strategy="steps", save_steps=IMAGES // BATCH * EPOCHS // 2,
                                          report_to=[], disable_tqdm=True, logging_steps=1, seed=5, max_grad_norm=0)
    examples = [{"x": x, "labels": y} for x, y in data()]
    trainer = transformers.Trainer(model=Model(), args=args, train_dataset=examples)
    if codec != "ddp":
        trainer.add_callback(dptrain_comm.transformers.Exchange(trainer, codec, **LINK))
    trainer.train(resume_from_checkpoint=os.path.join(folder, f"checkpoint-{args.save_steps}") if resume else None)
    report(trainer.model, trainer.state.log_history[-2].get("loss", 0.0), args.process_index)


PROGRAMS = {"torch": by_hand, "accelerate": accelerated, "lightning": with_lightning, "transformers": with_trainer}

# ---- the test


def run(how: str, codec: str, folder: str, *more: str) -> list:
    folder = os.path.join(folder, codec)
    os.makedirs(folder, exist_ok=True)
    words = [sys.executable, "-m", "dptrain_comm.run", "--nproc-per-node", "2", __file__, PACKAGES, "program", how, codec, folder, *more]
    environment = {**os.environ, "PYTHONPATH": PACKAGES, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, env=environment)
    rows = sorted(line for line in done.stdout.splitlines() if line.startswith("trained"))
    assert done.returncode == 0 and len(rows) == 2, (how, codec, more, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    assert len({row.split("weights")[1] for row in rows}) == 1, (how, codec, rows)
    return rows


def figures(rows: list) -> list:
    return [[float(word.split()[-1]) for word in row.split(",")[1:]] for row in rows]


def main() -> None:
    for how in PROGRAMS:
        if importlib.util.find_spec(how) is None:
            print(f"without {how}: not tried; pip install {how}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            wanted, exact = figures(run(how, "ddp", folder)), figures(run(how, "none", folder))
            for one, other in zip(wanted, exact):
                assert all(abs(a - b) <= 1e-4 * abs(a) for a, b in zip(one, other)), (how, wanted, exact)
            whole = run(how, "q4", folder)
            assert run(how, "q4", folder, "resume") == whole, (how, whole)
            assert figures(whole) != exact, (how, "q4 changes nothing")
            version = importlib.import_module(how).__version__
            print(f"{how} {version}: DDP {wanted[0]}, none {exact[0]}, q4 {figures(whole)[0]}, q4 resumed: the same", flush=True)


if len(sys.argv) > 2:
    _, _, _, HOW, CODEC, FOLDER, *RESUME = sys.argv
    PROGRAMS[HOW](CODEC, FOLDER, bool(RESUME))
else:
    main()
