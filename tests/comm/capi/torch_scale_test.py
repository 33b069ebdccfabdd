"""A loss scale that changes, on every rank: torch_scale_test.py PACKAGES."""
import enum
import sys

sys.dont_write_bytecode = True
from torch_support import LINK, dptrain_comm, passed, refused  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from dptrain_comm import _loss_scale  # noqa: E402

try:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
except (ImportError, ValueError):  # PyTorch 1.13 with Python 3.11
    class ShardedGradScaler(torch.cuda.amp.GradScaler):
        def scale(self, outputs):
            return outputs

        def unscale_(self, optimizer):
            pass

HAS_SCALER = hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler")  # that works without a GPU
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
    """Gradients of 20 steps without an optimiser, as numbers of an unscaled loss. From the 10th on the scale is `second`."""
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
    if HAS_SCALER and dptrain_comm.size() > 1:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        net = network()
        factors = []
        for step in range(3):
            x, y = batch(step)
            net.zero_grad()
            scaler.scale(F.cross_entropy(net(x), y)).backward()
            before = state._core.loss_scale.last
            state.allreduce_gradients(net)
            factors.append((before, state._core.loss_scale.last))
            scaler.update(scaler.get_scale() / 2)
        assert factors == [(None, 1024.0), (1024.0, 512.0), (512.0, 256.0)], factors
        F.cross_entropy(net(x), y).backward()  # not scaled
        state.allreduce_gradients(net)
        assert state._core.loss_scale.last == 1.0
    state.close()


def a_scaler_of_another_training_is_forgotten() -> None:
    """A training without an exchange has ended an iteration: its scaler says nothing about the next one's."""
    if dptrain_comm.size() == 1:
        return
    state, net = dptrain_comm.init("q8", **LINK), network()
    earlier, scaler = Scaler(), Scaler()
    earlier.number = 8.0
    x, y = batch(0)
    for one in (earlier, scaler):
        net.zero_grad()
        wrapped_scale(one, F.cross_entropy(net(x), y)).backward()
        if one is earlier:
            one.update()
    state.allreduce_gradients(net)
    assert state._core.loss_scale.last == scaler.number, state._core.loss_scale.last
    state.close()


class Loop:
    """Steps of a program with scalers, without changing the weights, and the unscaled gradients that each of them delivers."""

    def __init__(self, codec: str, make_scaler, is_constant: bool, through_ddp: bool):
        self.state = dptrain_comm.init(codec, **LINK)
        self.nets = [network(), network()]
        self.both = nn.ModuleList(self.nets)
        self.run = self.nets[0]
        if through_ddp:
            self.run = DistributedDataParallel(self.nets[0])
            self.run.register_comm_hook(self.state, dptrain_comm.hook)
        self.through_ddp, self.is_constant = through_ddp, is_constant
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=0.0) for net in self.nets]
        self.make_scaler = make_scaler
        self.found: list = []

    def scaler(self, scale: float):
        return self.make_scaler("cpu", init_scale=scale, growth_interval=3)

    def end(self, scaler, scale: float) -> None:
        scaler.update(scale if self.is_constant else None)

    def exchange(self) -> None:
        if not self.through_ddp:
            self.state.allreduce_gradients(self.both)

    def loss(self, net, step: int):
        x, y = batch(step)
        self.both.zero_grad(set_to_none=True)
        return F.cross_entropy(net(x), y)

    def clip_and_step(self, scaler, which: int) -> None:
        scaler.unscale_(self.optimizers[which])
        self.found.append([p.grad.clone() for p in self.nets[which].parameters()])
        nn.utils.clip_grad_norm_(self.nets[which].parameters(), 1.0)
        scaler.step(self.optimizers[which])

    def growing(self) -> None:
        """The scale grows every third step, and shrinks after one in which a rank overflows."""
        scaler = self.scaler(1024.0)
        for step in range(12):
            loss = self.loss(self.run, step)
            if step == 7 and dptrain_comm.rank() == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            self.exchange()
            self.clip_and_step(scaler, 0)
            self.end(scaler, 1024.0)
            if step == 10:
                scaler.update(1024.0 if self.is_constant else 4096.0)
        assert scaler.get_scale() == (1024.0 if self.is_constant else 4096.0), scaler.get_scale()

    def two_optimizers(self) -> None:
        scaler = self.scaler(1024.0)
        net = self.nets[0]
        parts = [torch.optim.SGD(layer.parameters(), lr=0.0) for layer in (net[0], net[2])]
        for step in range(8):
            scaler.scale(self.loss(self.run, step)).backward()
            self.exchange()
            for optimizer in parts:
                scaler.unscale_(optimizer)
            self.found.append([p.grad.clone() for p in net.parameters()])
            for optimizer in parts:
                scaler.step(optimizer)
            self.end(scaler, 1024.0)

    def two_networks(self) -> None:
        """One after the other in each step, as in a GAN: the first one's optimiser has stepped when the second one's turn comes."""
        scaler = self.scaler(1024.0)
        for step in range(8):
            for which in (0, 1):
                scaler.scale(self.loss(self.nets[which], 2 * step + which)).backward()
                self.exchange()
                self.clip_and_step(scaler, which)
            self.end(scaler, 1024.0)

    def two_scalers(self) -> None:
        scalers = [self.scaler(1024.0), self.scaler(1024.0 if self.is_constant else 32.0)]
        for step in range(8):
            for which in (0, 1):
                scaler = scalers[which]
                scaler.scale(self.loss(self.nets[which], 2 * step + which)).backward()
                self.exchange()
                self.clip_and_step(scaler, which)
                self.end(scaler, 1024.0)


def scalers_of_pytorch_change_nothing() -> None:
    """Deliveries are the same as with a constant scale, bit for bit: scales are powers of two."""
    if not HAS_SCALER:
        return
    for make_scaler, way, through_ddp in (
            (torch.amp.GradScaler, Loop.growing, True), (torch.amp.GradScaler, Loop.growing, False),
            (ShardedGradScaler, Loop.growing, True), (ShardedGradScaler, Loop.two_optimizers, False),
            (torch.amp.GradScaler, Loop.two_optimizers, True), (torch.amp.GradScaler, Loop.two_networks, False),
            (torch.amp.GradScaler, Loop.two_scalers, False)):
        for codec in ("topk:ratio=0.01", "ecq:bits=0.35"):
            found = []
            for is_constant in (True, False):
                loop = Loop(codec, make_scaler, is_constant, through_ddp)
                way(loop)
                loop.state.close()
                found.append(loop.found)
            for step, (a, b) in enumerate(zip(*found)):
                assert all(torch.equal(x, y) or not x.isfinite().all() for x, y in zip(a, b)), (make_scaler, way, codec, step)


def kinds_of_scalers_are_watched() -> None:
    dptrain_comm.init("q8", **LINK)

    class Later(torch.cuda.amp.GradScaler):
        def scale(self, outputs):
            return super().scale(outputs)

        def unscale_(self, optimizer):
            return super().unscale_(optimizer)

    for kind in (ShardedGradScaler, Later):
        for name in ("scale", "unscale_"):
            assert hasattr(vars(kind)[name], "notes_scaler") and vars(kind)[name].__name__ == name, (kind, name)

    # Outputs in lists, and one by one.
    scaler = Scaler()
    leaf = torch.ones(3, requires_grad=True)
    for outputs in ([leaf * 2, (leaf * 3,)], map(lambda factor: leaf * factor, (2, 3))):
        _loss_scale._noted.clear()
        first, *_ = _loss_scale._note(scaler, outputs)
        assert not _loss_scale._noted
        first.sum().backward()
        assert _loss_scale._noted == [scaler]
    _loss_scale._noted.clear()


def scales_that_cannot_be_followed_are_refused() -> None:
    state = dptrain_comm.init("topk:ratio=0.01", **LINK)
    net, scaler, other = network(), Scaler(), Scaler()
    x, y = batch(0)

    def backward(of: Scaler) -> None:
        wrapped_scale(of, F.cross_entropy(net(x), y)).backward()

    backward(scaler)
    state.allreduce_gradients(net)
    # A rank without a batch does as the others, with gradients of None or zeros.
    for to_none in (True, False):
        net.zero_grad(set_to_none=to_none)
        if dptrain_comm.rank() == 0:
            backward(scaler)
        state.allreduce_gradients(net)
        assert dptrain_comm.size() == 1 or state._core.loss_scale.last == 65536.0, to_none

    if dptrain_comm.size() > 1:  # one rank has nothing that a scale could be wrong for
        other.number = 1024.0
        net.zero_grad()
        backward(scaler)
        backward(other)
        refused("the losses of this step have the scales 1024 and 65536", state.allreduce_gradients, net)
        net.zero_grad()
        backward(scaler)
        optimizer = torch.optim.SGD(net[0].parameters(), lr=0.1)
        _loss_scale._after_unscale(scaler, None, [optimizer])
        scaler._per_optimizer_states = {id(optimizer): {"stage": enum.Enum("OptState", "UNSCALED").UNSCALED}}
        refused("GradScaler.unscale_() has divided others", state.allreduce_gradients, net)
        net.zero_grad()
        backward(scaler)
        optimizer.add_param_group({"params": list(net[2].parameters())})
        state.allreduce_gradients(net)
        assert state._core.loss_scale.last == 1.0
    state.close()


dptrain_comm.init_process_group()
a_changed_loss_scale_changes_nothing()
a_scaler_is_noticed()
a_scaler_of_another_training_is_forgotten()
scalers_of_pytorch_change_nothing()
kinds_of_scalers_are_watched()
scales_that_cannot_be_followed_are_refused()
torch.distributed.destroy_process_group()
passed()
