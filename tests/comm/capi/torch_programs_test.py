"""What programs do with DistributedDataParallel, with the hook and without it, on every rank: torch_programs_test.py PACKAGES.

The codec `none` must give DDP's parameters: to the last bit on two ranks, where the order of a sum does not matter. Parts that
this PyTorch does not have, or whose package is not there, are named and left out.
"""
import contextlib
import importlib.util
import os
import shutil
import sys

sys.dont_write_bytecode = True
from torch_support import LINK, dptrain_comm, passed  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
STEPS, BATCH = 6, 8
COMPILER = "a compiler"
IS_2 = int(torch.__version__.split(".")[0]) >= 2


class Net(nn.Module):
    """Images of 8 x 8 pixels in, four classes out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.out = nn.Linear(16 * 16, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return self.out(F.max_pool2d(self.second(x), 2).flatten(1))


class Checkpointed(Net):
    """Its activations are computed again in backward."""

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint
        x = checkpoint(lambda one: F.relu(self.norm(self.first(one))), x, use_reentrant=False)
        return self.out(F.max_pool2d(self.second(x), 2).flatten(1))


class Adapters(nn.Module):
    """LoRA by peft: the weights are frozen, and two factors of each learn."""

    def __init__(self):
        import peft
        super().__init__()
        torch.manual_seed(7)
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 4))
        self.net = peft.get_peft_model(net, peft.LoraConfig(r=4, target_modules=["1", "3"], init_lora_weights=False))

    def forward(self, x):
        return self.net(x)


class OwnNames(nn.Module):
    """A network of a package, made by `make`."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(7)
        self.net = make()

    def forward(self, x):
        return self.net(F.interpolate(x, size=(32, 32)))


def vision_transformer() -> nn.Module:
    import timm
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=4, pretrained=False)


def shuffled() -> nn.Module:
    import torchvision
    return torchvision.models.shufflenet_v2_x0_5(num_classes=4)


def batches(count: int = STEPS):
    draw = torch.Generator().manual_seed(31 + dptrain_comm.rank())
    for _ in range(count):
        x = torch.randn(BATCH, 3, 8, 8, generator=draw)
        yield x, x.mean((2, 3)).argmax(1)


def plain(ddp, optimizer) -> None:
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


def accumulated(ddp, optimizer) -> None:
    """Two backward passes a step, of which the last one alone exchanges."""
    for number, (x, y) in enumerate(batches()):
        with contextlib.nullcontext() if number % 2 else ddp.no_sync():
            F.cross_entropy(ddp(x), y).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def mixed(ddp, optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(ddp(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def joined(ddp, optimizer) -> None:
    """Rank 0 has more batches than the others."""
    with ddp.join():
        for x, y in batches(STEPS if dptrain_comm.rank() == 0 else STEPS - 2):
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


def in_channels_last(ddp, optimizer) -> None:
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(ddp(x.to(memory_format=torch.channels_last)), y).backward()
        optimizer.step()


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)


def adam(net):
    return torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), 1e-3)


def sharded(net):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)


def trained(make, with_hook: bool, loop=plain, optimizer=sgd, compiled: bool = False, **options) -> torch.Tensor:
    net = make()
    ddp = DistributedDataParallel(net, **options)
    state = dptrain_comm.prepare(ddp, "none", **LINK) if with_hook else None
    loop(torch.compile(ddp) if compiled else ddp, optimizer(net))
    if state is not None:
        assert state.step > 0 or dptrain_comm.size() == 1, "the exchange has seen no step"
        state.close()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


# Name, arguments of trained(), what it needs: a package, PyTorch 2, or that and a compiler of C++.
CASES = [
    ("DDP", dict(make=Net), None),
    ("static_graph", dict(make=Net, static_graph=True), None),
    ("find_unused_parameters", dict(make=Net, find_unused_parameters=True), None),
    ("gradient_as_bucket_view", dict(make=Net, gradient_as_bucket_view=True), None),
    ("bucket_cap_mb=0.01", dict(make=Net, bucket_cap_mb=0.01), None),
    ("no_sync", dict(make=Net, loop=accumulated), None),
    ("join with uneven inputs", dict(make=Net, loop=joined), None),
    ("channels_last", dict(make=lambda: Net().to(memory_format=torch.channels_last), loop=in_channels_last), None),
    ("activation checkpointing", dict(make=Checkpointed), 2),
    ("autocast, GradScaler and clip_grad_norm_", dict(make=Net, loop=mixed), 2),
    ("ZeroRedundancyOptimizer", dict(make=Net, optimizer=sharded), 2),
    ("AdamW", dict(make=Net, optimizer=adam), None),
    ("torch.compile", dict(make=Net, compiled=True), COMPILER),
    ("LoRA of peft", dict(make=Adapters, optimizer=adam), "peft"),
    ("ViT of timm", dict(make=lambda: OwnNames(vision_transformer), optimizer=adam), "timm"),
    ("ShuffleNet of torchvision", dict(make=lambda: OwnNames(shuffled)), "torchvision"),
]


def missing(needs: "int | str | None") -> str:
    """What is not there, or an empty text."""
    if needs in (2, COMPILER) and not IS_2:
        return "PyTorch 2"
    if needs == COMPILER:
        return "" if shutil.which("g++") else "g++"
    return needs if isinstance(needs, str) and importlib.util.find_spec(needs) is None else ""


def main() -> None:
    for name, arguments, needs in CASES:
        if missing(needs):
            if dptrain_comm.rank() == 0:
                print(f"{name}: not tried, without {missing(needs)}", flush=True)
            continue
        wanted, found = (trained(with_hook=with_hook, **arguments) for with_hook in (False, True))
        difference = (wanted - found).abs().max().item()
        bound = 0.0 if dptrain_comm.size() <= 2 else 1e-5
        assert difference <= bound and bool(torch.isfinite(found).all()), (name, difference)
        if dptrain_comm.rank() == 0:
            print(f"{name}: the largest difference from DDP is {difference:g}", flush=True)


dptrain_comm.init_process_group()
main()
torch.distributed.destroy_process_group()
passed()
