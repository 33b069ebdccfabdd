"""Optimisers whose steps the exchange makes, on every rank: torch_steps_test.py PACKAGES."""
import sys

sys.dont_write_bytecode = True
from torch_support import LINK, dptrain_comm, passed, refused  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

if not hasattr(torch.optim.Optimizer, "register_step_pre_hook"):
    print("skipped: PyTorch before 2.0 has no hooks around an optimiser's step")
    sys.exit(77)

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95)),
}
TARGET = torch.randn(64, 30, generator=torch.Generator().manual_seed(9))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 30))


def batch(step: int):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1000 * dptrain_comm.rank() + step))
    return x, (x @ TARGET).argmax(1)


class Scaler:
    """What a GradScaler does to a loss and to gradients, in every version of PyTorch and without a GPU."""

    def __init__(self):
        from dptrain_comm import _loss_scale
        self.note, self.number = _loss_scale._note, 1024.0

    def get_scale(self):
        return self.number

    def scale(self, loss):
        return self.note(self, loss * self.number)

    def unscale(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self.number


def train(compress: str, kind: str, steps: int, how: str = "hook", clip=None, scaler=None, resume_at=None, knows=True):
    """Returns the loss of the last steps on all ranks, the parameters and the bytes that this rank has sent."""
    net = network()
    optimizer = OPTIMIZERS[kind](net.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - 0.5 * step / steps)
    named = {"optimizer": optimizer, "clip_norm": clip} if knows else {}

    def start():
        state = dptrain_comm.init(compress, model=net, **named, **LINK)
        if how != "hook":
            return state, net
        ddp = DistributedDataParallel(net)
        ddp.register_comm_hook(state, dptrain_comm.hook)
        return state, ddp

    state, model = start()
    late = []
    for step in range(steps):
        if step == resume_at:
            kept = state.state_dict()
            state.close()
            state, model = start()
            state.load_state_dict(kept)
        optimizer.zero_grad()
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if how != "hook":
            state.allreduce_gradients(net)
        if scaler is not None:
            scaler.unscale(optimizer)
        optimizer.step()
        scheduler.step()
        if step >= steps - 20:
            late.append(loss.item())
    mean = torch.tensor(sum(late) / len(late))
    torch.distributed.all_reduce(mean)
    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    if dptrain_comm.size() > 1:
        state.exchange.compare(flat.data_ptr(), flat.numel())
    sent = state.exchange.statistics()["sent_bytes"] if dptrain_comm.size() > 1 else 0
    state.close()
    return mean.item() / dptrain_comm.size(), flat, sent


def few_bits_keep_the_loss() -> None:
    for kind in OPTIMIZERS:
        exact = train("none", kind, 120)[0]
        steps = train("ecq:bits=0.5,velocity=on", kind, 120)[0]
        assert steps < 1.1 * exact + 0.02, (kind, exact, steps)
    if dptrain_comm.size() > 1:  # what the steps are for
        assert train("ecq:bits=0.5", "adamw", 120, knows=False)[0] > 1.2 * exact


def both_ways_and_scaled_losses_give_the_same() -> None:
    for kind in ("sgd", "adamw"):
        _, hook, _ = train("ecq:bits=0.5,velocity=on", kind, 30)
        _, by_hand, _ = train("ecq:bits=0.5,velocity=on", kind, 30, "by hand")
        # Buckets follow the order in which gradients were first seen.
        assert (hook - by_hand).norm() < 0.05 * hook.norm(), kind
        _, scaled, _ = train("ecq:bits=0.5,velocity=on", kind, 30, "by hand", scaler=Scaler())
        assert torch.equal(by_hand, scaled), kind  # by a power of 2


def a_state_goes_on() -> None:
    for kind in ("sgd", "adamw"):
        _, whole, _ = train("ecq:bits=0.5,velocity=masked", kind, 30, "by hand")
        _, parts, _ = train("ecq:bits=0.5,velocity=masked", kind, 30, "by hand", resume_at=17)
        assert torch.equal(whole, parts), kind


def clipping_counts() -> None:
    _, free, _ = train("ecq:bits=0.5,velocity=on", "sgd", 20, "by hand")
    _, clipped, _ = train("ecq:bits=0.5,velocity=on", "sgd", 20, "by hand", clip=0.01)
    first = torch.cat([p.detach().reshape(-1) for p in network().parameters()])
    assert (clipped - first).norm() < 0.2 * (free - first).norm()
    # The codec exchanges gradients: the sum is clipped.
    _, clipped, _ = train("q8", "sgd", 20, "by hand", clip=0.01)
    assert (clipped - first).norm() < 0.2 * (free - first).norm()


def auto_follows_the_optimizer() -> None:
    if dptrain_comm.size() == 1:
        return
    known, unknown = train("auto:max=0.5", "adamw", 40)[2], train("auto", "adamw", 40, knows=False)[2]
    assert unknown > 3 * known, (known, unknown)


def a_step_that_is_not_finite_is_skipped() -> None:
    net = network()
    optimizer = OPTIMIZERS["adamw"](net.parameters())
    state = dptrain_comm.init("ecq:bits=0.5,velocity=on", optimizer=optimizer, model=net, **LINK)
    for step in range(6):
        optimizer.zero_grad()
        x, y = batch(step)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        if step == 3 and dptrain_comm.rank() == dptrain_comm.size() - 1:
            net[0].weight.grad[0, 0] = float("inf")
        weight = net[0].weight.detach().clone()
        state.allreduce_gradients(net)
        if dptrain_comm.size() > 1 or step != 3:
            optimizer.step()
            assert torch.equal(weight, net[0].weight) == (step == 3)
            assert all(bool(one.isfinite().all()) for one in net.parameters())
        assert net[0].weight.grad is not None
    state.close()


def wrong_use_is_refused() -> None:
    net = network()
    p = list(net.parameters())
    refused("optimizer RMSprop: the exchange knows the steps of torch.optim.SGD, Adam and AdamW", dptrain_comm.init, "auto",
            optimizer=torch.optim.RMSprop(p))
    refused("the exchange does not know amsgrad=True", dptrain_comm.init, "auto", optimizer=torch.optim.Adam(p, amsgrad=True))
    groups = [{"params": p[:1], "betas": (0.8, 0.9)}, {"params": p[1:]}]
    refused("its groups have the betas (0.8, 0.9) and (0.9, 0.999)", dptrain_comm.init, "auto", optimizer=torch.optim.AdamW(groups))
    refused("clip_norm needs optimizer", dptrain_comm.init, "auto", clip_norm=1.0)
    refused("clip_norm 0: must be a number above 0", dptrain_comm.init, "auto", optimizer=torch.optim.AdamW(p), clip_norm=0)
    refused("init(): unknown option beta1", dptrain_comm.init, "auto", beta1=0.5)
    refused("ecq:bits=0.1,velocity=on exchanges the optimiser's steps: set optimizer", dptrain_comm.init, "ecq:bits=0.1,velocity=on")
    if dptrain_comm.size() == 1:
        return
    optimizer = torch.optim.AdamW(p[:2])
    state = dptrain_comm.init("ecq:bits=0.5,velocity=on", optimizer=optimizer, model=net, **LINK)
    x, y = batch(0)
    F.cross_entropy(net(x), y).backward()
    refused("the parameter 2.weight is in no parameter group of the optimizer", state.allreduce_gradients, net)
    state.close()
    optimizer = torch.optim.AdamW(p)
    state = dptrain_comm.init("ecq:bits=0.5,velocity=on", optimizer=optimizer, model=net, **LINK)
    state.allreduce_gradients(net)
    refused("do not depend on the scale of the loss", state.scale_residual, 2.0)
    torch.nn.utils.clip_grad_norm_(p, 0.1)
    refused("the gradients were changed between the exchange and optimizer.step()", optimizer.step)
    state.allreduce_gradients(net)
    refused("the gradients hold steps of the optimizer", state.allreduce_gradients, net)
    optimizer.step()
    refused("optimizer.step() without an exchange since the last one", optimizer.step)
    state.allreduce_gradients(net)
    optimizer.param_groups[0]["betas"] = (0.85, 0.999)
    refused("optimizer: betas has become (0.85, 0.999), but the exchange still uses (0.9, 0.999)", optimizer.step)
    state.close()
    optimizer.step()  # as always


def a_closure_may_make_the_exchange() -> None:
    found = []
    for has_closure in (False, True):
        net = network()
        optimizer = OPTIMIZERS["adamw"](net.parameters())
        state = dptrain_comm.init("ecq:bits=0.5,velocity=on", optimizer=optimizer, model=net, **LINK)
        for step in range(5):
            def exchanged():
                optimizer.zero_grad()
                x, y = batch(step)
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                state.allreduce_gradients(net)
                return loss
            if has_closure:
                assert optimizer.step(exchanged).item() > 0
            else:
                exchanged()
                optimizer.step()
            if step == 2:  # its groups are new ones
                optimizer.load_state_dict(optimizer.state_dict())
                optimizer.param_groups[0]["weight_decay"] = 0.0
        found.append(torch.cat([p.detach().reshape(-1) for p in net.parameters()]))
        state.close()
    assert torch.equal(*found)


def parameters_without_a_gradient_stay() -> None:
    net = nn.ModuleDict({"used": nn.Linear(64, 30), "unused": nn.Linear(20, 20)})
    optimizer = OPTIMIZERS["sgd"](net.parameters())

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net["used"](x)

    model = Half()
    state = dptrain_comm.init("ecq:bits=0.5,velocity=on", optimizer=optimizer, model=model, **LINK)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    ddp.register_comm_hook(state, dptrain_comm.hook)
    before = net["unused"].weight.detach().clone(), net["used"].weight.detach().clone()
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(step)
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    assert torch.equal(before[0], net["unused"].weight) and not torch.equal(before[1], net["used"].weight)
    state.close()


dptrain_comm.init_process_group()
wrong_use_is_refused()
few_bits_keep_the_loss()
both_ways_and_scaled_losses_give_the_same()
a_state_goes_on()
clipping_counts()
auto_follows_the_optimizer()
a_step_that_is_not_finite_is_skipped()
a_closure_may_make_the_exchange()
parameters_without_a_gradient_stay()
torch.distributed.destroy_process_group()
passed()
