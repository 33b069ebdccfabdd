"""The hook of PyTorch's DistributedDataParallel, and allreduce_gradients, on every rank: torch_test.py PACKAGES."""
import json
import os
import shutil
import sys
import tempfile
import time
from unittest import mock

sys.dont_write_bytecode = True
from torch_support import LINK, dptrain_comm, passed, refused  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

# In PyTorch 1 and the first of 2 the first bucket has a whole MB, whatever bucket_cap_mb says, which this network does not fill.
torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 50_000
LINK = {**LINK, "bucket_bytes": 65536}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                         nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 64),
                         nn.ReLU(), nn.Linear(64, 10)).to(memory_format=torch.channels_last)


class Training:
    """SGD on this rank's part of drawn images."""

    def __init__(self, state, through_ddp: bool = True):
        self.state, self.net = state, network()
        self.ddp = DistributedDataParallel(self.net, bucket_cap_mb=0.05) if through_ddp else self.net
        if through_ddp and state is not None:
            self.ddp.register_comm_hook(state, dptrain_comm.hook)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        draw = torch.Generator().manual_seed(100 + dptrain_comm.rank())
        self.images = torch.randn(160, 3, 8, 8, generator=draw)
        self.labels = (self.images.mean((1, 2, 3)) * 60).long().clamp(-5, 4) + 5

    def backward(self, step: int) -> None:
        part = slice(16 * (step % 10), 16 * (step % 10) + 16)
        self.optimizer.zero_grad()
        F.cross_entropy(self.ddp(self.images[part]), self.labels[part]).backward()
        if self.ddp is self.net:
            dptrain_comm.allreduce_gradients(self.net, self.state)

    def run(self, steps: range) -> torch.Tensor:
        for step in steps:
            self.backward(step)
            self.optimizer.step()
        return self.parameters()

    def parameters(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])


def fp32_is_what_ddp_computes() -> None:
    expected = Training(None).run(range(12))
    for through_ddp in (True, False):
        state = dptrain_comm.init("none", **LINK)
        found = Training(state, through_ddp).run(range(12))
        # Two sums have the same bits in any order; more have not.
        most = 0 if dptrain_comm.size() <= 2 else 1e-5
        assert (found - expected).abs().max().item() <= most, (through_ddp, (found - expected).abs().max())
        state.close()


def replicas_are_the_same(codec: str) -> None:
    state = dptrain_comm.init(codec, total_steps=20, **LINK)
    training = Training(state)
    start = training.parameters()
    found = training.run(range(20))
    state.exchange.compare(found.data_ptr(), found.numel())
    assert not torch.equal(start, found) and torch.isfinite(found).all()
    taken = state.exchange.statistics()
    exact = 20 * 4 * found.numel() * 2 * (dptrain_comm.size() - 1) / dptrain_comm.size()
    assert taken["sent_bytes"] <= (1.02 if codec == "none" else 0.3) * exact, (taken, exact)
    assert (0.01 < taken["bits"] < 4) == (dptrain_comm.size() > 1 and codec != "q8"), taken
    state.close()


def nothing_is_lost(codec: str) -> None:
    """The sum of all inputs is the sum of all outputs and of the residuals. By the triangle inequality, since these are known by their
    norms alone; a codec that forgot a residual would be far beyond it after so many steps."""
    state = dptrain_comm.init(codec, **LINK)
    net = network()
    draw = torch.Generator().manual_seed(7)
    went_in = [torch.zeros(p.shape, dtype=torch.float64) for p in net.parameters()]
    came_out = [torch.zeros_like(total) for total in went_in]
    for _ in range(30):
        for parameter, total in zip(net.parameters(), went_in):
            parts = torch.randn((dptrain_comm.size(), *parameter.shape), generator=draw) * 0.01 + 0.002
            parameter.grad = parts[dptrain_comm.rank()].clone()
            total += parts.double().mean(0)
        state.allreduce_gradients(net)
        for total, parameter in zip(came_out, net.parameters()):
            total += parameter.grad.double()
    missing = sum((a - b).square().sum() for a, b in zip(went_in, came_out)).sqrt().item()
    squares = sum(bucket["residual_squares"] for bucket in state.exchange.take("")[1:])
    waiting = sum(norm for norm, in state.exchange.gather([squares ** 0.5]))
    if dptrain_comm.rank() == 0:
        assert missing <= 1.001 * waiting + 1e-4 and (waiting > 0) == (dptrain_comm.size() > 1), (codec, missing, waiting)
    state.close()


def a_checkpoint_goes_on(codec: str) -> None:
    state = dptrain_comm.init(codec, total_steps=12, **LINK)
    training = Training(state)
    training.run(range(6))
    saved = {"net": {k: v.clone() for k, v in training.net.state_dict().items()}, "exchange": state.state_dict(),
             "optimizer": training.optimizer.state_dict()}
    saved["optimizer"]["state"] = {k: {"momentum_buffer": v["momentum_buffer"].clone()} for k, v in saved["optimizer"]["state"].items()}
    expected = training.run(range(6, 12))
    state.close()

    state = dptrain_comm.init(codec, total_steps=12, **LINK)
    training = Training(state)
    training.net.load_state_dict(saved["net"])
    training.optimizer.load_state_dict(saved["optimizer"])
    state.load_state_dict(saved["exchange"])
    assert torch.equal(training.run(range(6, 12)), expected), codec
    state.close()


def a_gradient_that_is_not_finite_is_seen_by_all() -> None:
    state = dptrain_comm.init("q8", **LINK)
    training = Training(state)
    training.run(range(2))
    if dptrain_comm.rank() == dptrain_comm.size() - 1:
        training.images[32, 0, 0, 0] = float("inf")
    training.backward(2)
    # One rank keeps its gradient as it is.
    are_all = (p.grad.isnan().all() if dptrain_comm.size() > 1 else not p.grad.isfinite().all() for p in training.net.parameters())
    assert any(are_all) if dptrain_comm.size() == 1 else all(are_all)
    training.optimizer.zero_grad()
    for module in training.net:
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    training.backward(3)
    assert all(torch.isfinite(p.grad).all() for p in training.net.parameters())
    state.close()


def a_training_has_a_log_and_a_trace() -> None:
    try:
        import h5py
    except ImportError:
        print("without h5py there is no log to test")
        return
    folder = tempfile.mkdtemp() if dptrain_comm.rank() == 0 else "/"
    path, trace = os.path.join(folder, "run.h5"), os.path.join(folder, "trace.json")
    state = dptrain_comm.init("q8", log=path, log_steps=2, trace=trace, trace_first=2, trace_steps=4,
                              about={"model": "small", "epochs": 2}, **LINK)
    training = Training(state)
    training.net[0].weight.register_hook(lambda _: time.sleep(0.02))  # its gradient comes last, and late
    for epoch in range(2):
        training.run(range(4))
        state.epoch(samples=64, train_loss=2.0 - epoch, learning_rate=0.05)
    sent = state.exchange.statistics()["sent_bytes"]
    state.close()
    if dptrain_comm.rank() == 0:
        with h5py.File(path) as log:
            assert log.attrs["finished"] == 1 and log["model"].attrs["parameters"] == training.parameters().numel()
            assert log["epochs"]["train_loss"].tolist() == [2.0, 1.0] and log["config"].attrs["compress"] == "q8"
            assert log["epochs"]["samples"].tolist() == [64 * dptrain_comm.size()] * 2
            of_rank_0 = log["ranks"][:][log["ranks"]["rank"] == 0]
            assert of_rank_0["sent_bytes"].sum() == sent and (of_rank_0["backward_s"] > 0).all(), (of_rank_0, sent)
            steps = log["steps"][:]
        assert steps["step"].tolist() == [2, 4, 6, 8] and steps["epoch"].tolist() == [0, 0, 1, 1]
        assert (steps["sent_bytes"] == sent / 8).all(), (steps, sent)
        assert (abs(steps["step_s"] - steps["forward_s"] - steps["backward_s"] - steps["exposed_comm_s"]) < 1e-9).all()
        assert steps["step_s"].sum() < of_rank_0["epoch_s"].sum() and (steps["backward_s"] > 0.02).all()
        with open(trace) as file:
            buckets_leave_while_backward_goes_on(json.load(file)["traceEvents"])
        shutil.rmtree(folder)


def buckets_leave_while_backward_goes_on(events: list[dict]) -> None:
    slices = [e for e in events if e["ph"] == "X"]
    processes = sorted({e["pid"] for e in slices})
    assert len(processes) == dptrain_comm.size() and {e["args"]["step"] for e in slices} == {3, 4, 5, 6}
    for process in processes:
        overlaps = []
        for step in range(3, 7):
            mine = [e for e in slices if e["pid"] == process and e["args"]["step"] == step]
            ready = [e["ts"] + e["dur"] for e in mine if e["cat"] == "backward"]  # a slot's slice ends when it is ready
            begins = [e["ts"] for e in mine if e["cat"] == "bucket"]
            whole = {e["name"]: e for e in mine if e["cat"] in ("step", "part")}
            assert len(ready) == 9 and set(whole) == {f"step {step}", "backward", "exposed wait"}, mine
            assert max(ready) <= whole["exposed wait"]["ts"] + 0.01, mine
            if dptrain_comm.size() > 1:
                # Nothing leaves before it is ready, and all has come when the step ends.
                assert min(begins) > min(ready) and max(begins) < whole[f"step {step}"]["ts"] + whole[f"step {step}"]["dur"]
                overlaps.append(min(begins) < max(ready))
        assert any(overlaps) == (dptrain_comm.size() > 1), slices


def wrong_use_is_one_sentence() -> None:
    refused("unknown option topolgy; known: bucket_bytes, codecs, exact,", dptrain_comm.init, "q8", topolgy="ring")
    refused("q9: unknown codec", dptrain_comm.init, "q9")
    refused("star", dptrain_comm.init, "q8", topology="star")
    refused("timeout_s 0: must be above 0", dptrain_comm.init, "q8", timeout_s=0)
    refused("log_steps 1: must be 1 or more, and needs log", dptrain_comm.init, "q8", log_steps=1)
    ddp = DistributedDataParallel(network())
    ddp.register_comm_hook(None, dptrain_comm.hook)
    try:
        ddp(torch.zeros(1, 3, 8, 8)).sum().backward()
    except RuntimeError as error:  # PyTorch 1 hands on a hook's error as an error of its own, with the place behind its text
        assert "hook() got None, no state" in str(error), str(error)
    else:
        raise AssertionError("a hook without its state said nothing")

    state = dptrain_comm.init("none", **LINK)
    training = Training(state, through_ddp=False)
    training.run(range(1))
    refused("the parameter 9.bias is not in the exchange", state.allreduce_gradients, network())
    state.close()
    state = dptrain_comm.init("none", **LINK)
    training = Training(state, through_ddp=False)
    training.run(range(1))
    refused("has no gradient in this step, and had one in the first", state.allreduce_gradients, training.net[:-1])
    state.close()

    state = dptrain_comm.init("none", **LINK)
    words = nn.Embedding(10, 4, sparse=True)
    words(torch.tensor([1, 2])).sum().backward()
    refused("the parameter weight has a sparse gradient", state.allreduce_gradients, words)
    state.close()
    state = dptrain_comm.init("none", **LINK)
    refused("the parameter bias is complex", state.allreduce_gradients, nn.Linear(2, 2, dtype=torch.complex64))
    state.close()


def gradients_like_those_of_ddp(steps) -> None:
    """steps(ddp) makes backward passes and returns the parameters; without the hook and with it."""
    found = []
    for state in (None, dptrain_comm.init("none", **LINK)):
        torch.manual_seed(3)
        found.append([p.grad if p.grad is None else p.grad.clone() for p in steps(state)])
        if state is not None:
            state.close()
    for expected, got in zip(*found):
        assert (expected is None) == (got is None)
        assert expected is None or (expected - got).abs().max() <= 1e-5 * expected.abs().max() + 1e-7


def with_hook(net: nn.Module, state, **options) -> DistributedDataParallel:
    ddp = DistributedDataParallel(net, **options)
    if state is not None:
        ddp.register_comm_hook(state, dptrain_comm.hook)
    return ddp


def accumulation_and_unused_parameters() -> None:
    draw = torch.Generator().manual_seed(dptrain_comm.rank())
    images = torch.randn(5, 4, 3, 8, 8, generator=draw)

    def accumulated(state):
        net = network()
        ddp = with_hook(net, state)
        ddp(images[0]).square().sum().backward()
        with ddp.no_sync():
            ddp(images[1]).square().sum().backward()
        ddp(images[2]).square().sum().backward()
        return net.parameters()

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.common, self.first, self.second, self.never = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x, is_first):
            return (self.first if is_first else self.second)(self.common(x))

    def branched(state):
        net = Branches()
        ddp = with_hook(net, state, find_unused_parameters=True)
        for step in range(3):
            net.zero_grad()
            ddp(images[step], (step + dptrain_comm.rank()) % 2 == 0).square().sum().backward()
        return net.parameters()

    gradients_like_those_of_ddp(accumulated)
    gradients_like_those_of_ddp(branched)


def other_types_are_exchanged_in_fp32() -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        state = dptrain_comm.init("none", **LINK)
        net = nn.Linear(3, 2).to(dtype)
        for number, parameter in enumerate(net.parameters()):
            parameter.grad = torch.full_like(parameter, 1.5 + number + dptrain_comm.rank())
        state.allreduce_gradients(net)
        for number, parameter in enumerate(net.parameters()):
            expected = 1.5 + number + (dptrain_comm.size() - 1) / 2
            assert parameter.grad.dtype == dtype and (parameter.grad == expected).all(), (dtype, parameter.grad)
        state.close()


def memory_is_pinned_for_gpus() -> None:
    """With a driver that only writes down what it was asked for: there is no GPU here."""
    class Driver:
        calls: list = []
        answer = 0

        def cudaHostRegister(self, address, size, flags):
            self.calls.append(("lock", address, size, flags))
            return self.answer

        def cudaHostUnregister(self, address):
            self.calls.append(("unlock", address))
            return 0

    driver = Driver()
    with mock.patch.object(torch.cuda, "cudart", lambda: driver), mock.patch.object(nn.Parameter, "is_cuda", True, create=True):
        for driver.answer in (0, 1):
            driver.calls.clear()
            state = dptrain_comm.init("none", **LINK)
            net = nn.Linear(300, 20)
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            state.allreduce_gradients(net)
            address = state.exchange.address(1)  # the weights, which lie before the bias
            state.close()
            lock = ("lock", address, 4 * 20 * 301, 0)
            expected = [] if dptrain_comm.size() == 1 else [lock, ("unlock", address)] if driver.answer == 0 else [lock]
            assert driver.calls == expected, (driver.calls, expected)


def two_networks(codecs: list) -> torch.Tensor:
    """A generator and a discriminator, each in a DDP of its own; codecs: of their states, None for DDP's own exchange."""
    torch.manual_seed(4)
    nets = [nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 64)), nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))]
    make, judge = (DistributedDataParallel(net) for net in nets)
    states = [dptrain_comm.prepare(ddp, codec, **LINK) for ddp, codec in zip((make, judge), codecs) if codec is not None]
    optimizers = [torch.optim.SGD(net.parameters(), 0.05, momentum=0.5) for net in nets]
    draw = torch.Generator().manual_seed(200 + dptrain_comm.rank())
    for _ in range(6):
        real, noise = torch.randn(16, 64, generator=draw), torch.randn(16, 8, generator=draw)
        optimizers[1].zero_grad()
        (F.softplus(judge(make(noise).detach())).mean() + F.softplus(-judge(real)).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        F.softplus(-judge(make(noise))).mean().backward()  # also makes gradients of the discriminator, through its hook
        optimizers[0].step()
    for state in states:
        assert state.step > 0
        state.close()
    return torch.cat([p.detach().reshape(-1) for net in nets for p in net.parameters()])


def networks_have_states_of_their_own() -> None:
    wanted = two_networks([None, None])
    assert torch.allclose(two_networks(["none", "none"]), wanted, rtol=1e-5, atol=1e-6)
    coarse = two_networks(["q8", "q4"])
    off = (coarse - wanted).abs().max().item()
    assert off < 0.05 and (off > 0) == (dptrain_comm.size() > 1), off


dptrain_comm.init_process_group()
fp32_is_what_ddp_computes()
for spec in ("q8", "ecq:bits=0.5", "auto:max=2"):
    replicas_are_the_same(spec)
for spec in ("q8", "ecq:bits=0.5", "auto:min=0.5,max=0.5"):
    a_checkpoint_goes_on(spec)
for spec in ("q8", "q4", "ecq:bits=0.5", "topk:ratio=0.1"):
    nothing_is_lost(spec)
a_gradient_that_is_not_finite_is_seen_by_all()
a_training_has_a_log_and_a_trace()
wrong_use_is_one_sentence()
accumulation_and_unused_parameters()
other_types_are_exchanged_in_fp32()
memory_is_pinned_for_gpus()
networks_have_states_of_their_own()
torch.distributed.destroy_process_group()
Training(dptrain_comm.init("q8", **LINK), through_ddp=False).run(range(1))  # the end of the program closes what is open
passed()
