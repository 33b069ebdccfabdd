"""What the hook keeps from step to step, on every rank: a changed loss scale, and saved states: torch_state_test.py PACKAGES.

Exit code 77: this Python has no torch.
"""
import sys

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
except ImportError as missing:
    print(f"skipped: {missing}; pip install torch")
    sys.exit(77)

sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import dptrain_comm  # noqa: E402
from dptrain_comm import _loss_scale  # noqa: E402

torch.set_num_threads(1)
LINK = {"link_bit_per_s": 1e8}
CODECS = ("q4", "topk:ratio=0.01", "powersgd:rank=2", "ecq:bits=0.35", "threshold:alpha=500", "auto:min=0.5,max=0.5")


class Scaler(torch.cuda.amp.GradScaler):
    """A GradScaler that works without a GPU in every version of PyTorch, with scales that the test chooses."""

    def __init__(self):
        super().__init__(enabled=False)
        self.number = 65536.0

    def is_enabled(self):
        return True

    def get_scale(self):
        return self.number


def wrapped_scale(scaler, loss):
    """GradScaler.scale() asks for a GPU in PyTorch 1; this is what it makes of a loss, seen as the package sees it."""
    scaled = loss * scaler.number
    _loss_scale._note(scaler, scaled)
    return scaled


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 30))


def batch(step: int):
    draw = torch.Generator().manual_seed(100 * dptrain_comm.rank() + step)
    x = torch.randn(16, 64, generator=draw)
    return x, (x.sum(1) > 0).long()


def gradients(codec: str, how: str, second: float) -> list:
    """Of 20 steps without an optimiser, as numbers of an unscaled loss. From the 10th on the scale is `second`."""
    state = dptrain_comm.init(codec, **LINK)
    net, scaler, found = network(), Scaler(), []
    ddp = DistributedDataParallel(net) if how == "hook" else net
    if how == "hook":
        ddp.register_comm_hook(state, dptrain_comm.hook)
    for step in range(20):
        scale = 65536.0 if step < 10 else second
        net.zero_grad()
        x, y = batch(step)
        loss = F.cross_entropy(ddp(x), y)
        if how == "by hand":
            if step == 10:
                state.scale_residual(second / 65536.0)
            (loss * scale).backward()
        else:
            scaler.number = scale
            wrapped_scale(scaler, loss).backward()
        if how != "hook":
            state.allreduce_gradients(net)
        if step == 14:  # a checkpoint in between knows the scale
            saved = state.state_dict()
            state.close()
            state = dptrain_comm.init(codec, **LINK)
            state.load_state_dict(saved)
            if how == "hook":
                ddp = DistributedDataParallel(net)
                ddp.register_comm_hook(state, dptrain_comm.hook)
        found.append([p.grad / scale for p in net.parameters()])
    state.close()
    return found


def a_changed_loss_scale_changes_nothing() -> None:
    for codec in CODECS:
        for how in ("hook", "allreduce", "by hand"):
            wanted, found = (gradients(codec, how, second) for second in (65536.0, 4096.0))
            for step, (a, b) in enumerate(zip(wanted, found)):
                for number, (x, y) in enumerate(zip(a, b)):
                    assert torch.equal(x, y), (codec, how, step, number, (x - y).norm() / x.norm())


def a_scaler_is_noticed() -> None:
    """By scale() itself, where this PyTorch has a scaler for the processor."""
    state = dptrain_comm.init("topk:ratio=0.01", **LINK)
    kind = torch.cuda.amp.GradScaler
    assert hasattr(kind.scale, "notes_scaler") and kind.scale.__name__ == "scale"
    dptrain_comm.init("q8", **LINK)
    assert not hasattr(kind.scale.__wrapped__, "notes_scaler"), "wrapped twice"
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        net = network()
        factors = []
        for step in range(3):
            x, y = batch(step)
            net.zero_grad()
            scaler.scale(F.cross_entropy(net(x), y)).backward()
            before = state._loss_scale.last
            state.allreduce_gradients(net)
            factors.append((before, state._loss_scale.last))
            scaler.update(scaler.get_scale() / 2)
        assert factors == [(None, 1024.0), (1024.0, 512.0), (512.0, 256.0)], factors
        F.cross_entropy(net(x), y).backward()  # not scaled
        state.allreduce_gradients(net)
        assert state._loss_scale.last == 1.0
    state.close()


def refused(code: int, words: str, call, *arguments) -> None:
    try:
        call(*arguments)
    except dptrain_comm.Error as error:
        assert error.code == code and words in str(error) and "\n" not in str(error), (error.code, str(error))
    else:
        raise AssertionError(f"no error: {words}")


def a_state_is_that_of_its_rank() -> None:
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    net = network()

    def step(state) -> None:
        net.zero_grad()
        x, y = batch(0)
        F.cross_entropy(net(x), y).backward()
        state.allreduce_gradients(net)

    state = dptrain_comm.init("q4", **LINK)
    step(state)
    saved = state.state_dict()
    for is_there in (True, False):
        if not is_there:
            state.close()
            state = dptrain_comm.init("q4", **LINK)
        refused(3, "with step and exchange; this is empty", state.load_state_dict, {})
        refused(3, "this has step", state.load_state_dict, {"step": 3})
        refused(3, "this is a list", state.load_state_dict, [])
        refused(3, "step is -1 and exchange a NoneType", state.load_state_dict, {"step": -1, "exchange": None})
        refused(3, f"that of rank {rank + 1} of {size}, and this is rank {rank} of {size}", state.load_state_dict,
                {**saved, "rank": rank + 1})
        refused(3, f"that of rank {rank} of {size + 2}, and", state.load_state_dict, {**saved, "size": size + 2})
    state.load_state_dict({name: saved[name] for name in ("step", "exchange")})  # as earlier versions had it
    state.load_state_dict(saved)
    step(state)
    assert state.step == 2
    refused(3, "is from before the first step", state.load_state_dict, dptrain_comm.State("q4").state_dict())
    state.close()
    if size > 1:
        state = dptrain_comm.init("q4", **LINK)
        if rank == 0:
            state.load_state_dict(saved)
        refused(3, "rank 0 goes on from step 1, rank 1 begins at step 0: every rank must load", step, state)
        state.close()


dptrain_comm.init_process_group()
a_changed_loss_scale_changes_nothing()
a_scaler_is_noticed()
a_state_is_that_of_its_rank()
torch.distributed.destroy_process_group()
print(f"rank {dptrain_comm.rank()} of {dptrain_comm.size()}: all passed")
