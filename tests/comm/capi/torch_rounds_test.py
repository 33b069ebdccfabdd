"""Rounds, on every rank: torch_rounds_test.py PACKAGES."""
import copy
import sys

sys.dont_write_bytecode = True
from torch_support import LINK, dptrain_comm, passed, refused  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

RANK, SIZE = 0, 1  # of this process, below


def network() -> nn.Module:
    torch.manual_seed(5 + RANK)  # Rounds takes rank 0's
    return nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))


class Training:
    """Images whose class a fixed network of rank 0's seed says."""

    def __init__(self, every: int = 4, codec: str = "none", rate: float = 0.05, **options):
        self.net = network()
        self.optimizer = torch.optim.SGD(self.net.parameters(), rate, momentum=0.5)
        self.rounds = dptrain_comm.Rounds(self.net, every, codec, **LINK, **options) if every else None
        self.made = 0

    def step(self) -> float:
        draw = torch.Generator().manual_seed(1000 * self.made + RANK)
        images = torch.randn(32, 32, generator=draw)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(images), images[:, :8].argmax(1))
        loss.backward()
        self.optimizer.step()
        self.made += 1
        if self.rounds is not None:
            self.rounds.step()
        return loss.item()

    def run(self, steps: int) -> float:
        """The mean loss of the last ten steps, of all ranks."""
        losses = [self.step() for _ in range(steps)]
        last = torch.tensor(sum(losses[-10:]) / len(losses[-10:]))
        torch.distributed.all_reduce(last)
        return last.item() / SIZE

    def values(self) -> list:
        return [t.detach().clone() for t in (*self.net.parameters(), *self.net.buffers()) if t.is_floating_point()]


def means(tensors: list) -> list:
    found = [tensor.double() for tensor in tensors]
    for tensor in found:
        torch.distributed.all_reduce(tensor)
    return [tensor / SIZE for tensor in found]


def parameters_become_those_of_the_formula(outer_lr: float, outer_momentum: float) -> None:
    """Against the formula in double, with PyTorch's own sums."""
    training = Training(3, outer_lr=outer_lr, outer_momentum=outer_momentum)
    trained = len(list(training.net.parameters()))
    common = [one.double() for one in training.values()]
    velocity = [torch.zeros_like(one) for one in common]
    for _ in range(4):
        training.step(), training.step()
        before = copy.deepcopy(training.net.state_dict()), copy.deepcopy(training.optimizer.state_dict())
        made, rounds, training.rounds = training.made, training.rounds, None
        training.step()  # the same step as below, without the exchange
        changes = [own - old for own, old in zip(means(training.values()), common)]
        for k, change in enumerate(changes):
            velocity[k] = outer_momentum * velocity[k] + change
            common[k] = common[k] + (outer_lr * (change + outer_momentum * velocity[k]) if k < trained else change)
        training.net.load_state_dict(before[0])
        training.optimizer.load_state_dict(before[1])
        training.made, training.rounds = made, rounds
        training.step()
        for k, (own, wanted) in enumerate(zip(training.values(), common)):
            assert (own - wanted).abs().max() <= 2e-5, (k, (own - wanted).abs().max().item())
    assert training.rounds.rounds == 4
    training.rounds.close()


def replicas_are_the_same(codec: str) -> None:
    training = Training(4, codec, total_steps=22)
    for step in range(22):
        training.step()
        if step == 20 or step % 4 == 3:
            if step == 20:
                training.rounds.finish()
            for tensor in training.values():
                training.rounds.exchange.compare(tensor.contiguous().data_ptr(), tensor.numel())
    training.rounds.finish()
    training.rounds.close()


def the_loss_is_fp32s() -> None:
    losses = {}
    for codec in ("none", "q8", "ecq:bits=0.5"):
        training = Training(4, codec, outer_lr=0.7, outer_momentum=0.5, total_steps=240)
        losses[codec] = training.run(240)
        training.rounds.close()
    if RANK == 0:
        print("loss after 60 rounds of 4 steps:", {codec: round(loss, 4) for codec, loss in losses.items()}, flush=True)
    assert losses["none"] < 1.0 and losses["q8"] < 1.03 * losses["none"] and losses["ecq:bits=0.5"] < 1.15 * losses["none"], losses


def a_checkpoint_goes_on(codec: str) -> None:
    def make() -> Training:
        training = Training(4, codec, outer_momentum=0.5)
        training.rounds._optimizer = training.optimizer  # as optimizer= does
        return training

    def run(training: Training, steps: int) -> None:
        for _ in range(steps):
            training.optimizer.param_groups[0]["lr"] = 0.05 * 0.97 ** training.made
            training.step()

    training = make()
    run(training, 10)
    saved = copy.deepcopy((training.net.state_dict(), training.optimizer.state_dict(), training.rounds.state_dict()))
    run(training, 12)
    wanted = training.values()
    training.rounds.close()
    training = make()
    training.net.load_state_dict(saved[0])
    training.optimizer.load_state_dict(saved[1])
    training.rounds.load_state_dict(saved[2])
    training.made = 10
    run(training, 12)
    assert all(torch.equal(one, other) for one, other in zip(training.values(), wanted)), codec
    refused("common has other shapes", training.rounds.load_state_dict, {**saved[2], "common": saved[2]["common"][1:]}, code=3)
    training.rounds.close()


def a_round_that_is_not_finite_is_lost() -> None:
    training = Training(2, "q8")
    training.step(), training.step()
    before = training.values()
    training.step()
    if RANK == SIZE - 1:
        with torch.no_grad():
            training.net[0].weight[0, 0] = float("nan")
    training.made += 1
    training.rounds.step()
    assert all(torch.equal(one, other) for one, other in zip(training.values(), before))
    training.step(), training.step()
    assert all(torch.isfinite(one).all() for one in training.values())
    training.rounds.close()


def a_mask_is_no_statistic() -> None:
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

    net = Masked()
    rounds = dptrain_comm.Rounds(net, 1, "none", **LINK)
    before = net.weight.detach().clone()
    with torch.no_grad():
        net.weight += RANK + 1.0
    rounds.step()
    assert torch.allclose(net.weight, before + (SIZE + 1) / 2) and torch.isinf(net.mask).sum() == 28
    rounds.close()
    refused("the parameter weight is complex", dptrain_comm.Rounds, nn.Linear(2, 2, dtype=torch.complex64), 1)


def any_tensor_can_be_summed() -> None:
    """By the formula, with what a codec has not sent coming later, and after a checkpoint in the middle."""
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    for codec, bound in (("none", 1e-6), ("q8", 0.02), ("ecq:bits=1", 0.6)):
        state = dptrain_comm.init("q8", **LINK)
        went_in, came_out, single = torch.zeros(3, 150, 60), torch.zeros(3, 150, 60), 0.0
        for step in range(30):
            parts = torch.randn((size, 3, 150, 60), generator=torch.Generator().manual_seed(step))
            mine = parts[rank].clone()
            assert state.all_mean(mine, "difference", codec) is mine
            error = (mine - parts.mean(0)).norm() / parts.mean(0).norm()
            single = max(single, error.item())
            went_in += parts.mean(0)
            came_out += mine
            everyone = [torch.empty_like(mine) for _ in range(size)]
            torch.distributed.all_gather(everyone, mine)
            assert all(torch.equal(mine, one) for one in everyone)
            vector = torch.full((7,), float(rank + step), dtype=torch.float64)
            assert (state.all_reduce(vector, "vector", "none") - (size * (size - 1) / 2 + size * step)).abs().max() < 1e-5
            if step == 14 and size > 1:
                saved = state.state_dict()
                state.close()
                state = dptrain_comm.init("q8", **LINK)
                state.load_state_dict(saved)
                saved = state.state_dict(all_ranks=False)
        assert single < bound if codec != "ecq:bits=1" else single < 3, (codec, single)
        left = (went_in - came_out).norm() / went_in.norm()
        assert left < bound, (codec, left)  # feedback: the error of a sum of 30 is that of one call
        if size > 1:
            bad = torch.ones(3, 150, 60)
            if rank == 0:
                bad[0, 0, 0] = float("inf")
            assert state.all_mean(bad, "difference", codec).isnan().all()
            refused("another tensor needs another name", state.all_mean, torch.ones(4), "difference", codec)
            refused("another tensor needs another name", state.all_mean, torch.ones(3, 150, 60), "difference", "q4")
            refused("auto follows the link", state.all_mean, torch.ones(4), "other", "auto")
            refused("unknown codec", state.all_mean, torch.ones(4), "other", "q9")
            refused("must be text, the same on all ranks", state.all_mean, torch.ones(4), 5)
        refused("must be a dense tensor of floating point", state.all_mean, torch.ones(4, dtype=torch.int64), "other")
        sent = state.broadcast(torch.arange(5) + rank)
        assert sent.tolist() == list(range(5))
        state.close()


def wrong_use_is_one_sentence() -> None:
    net = network()
    for every in (0, -1, 1.5, "4", None):
        refused("every", dptrain_comm.Rounds, net, every)
    refused("auto follows the link", dptrain_comm.Rounds, net, 4, "auto")
    refused("q9: unknown codec", dptrain_comm.Rounds, net, 4, "q9")
    refused("outer_lr 0", dptrain_comm.Rounds, net, 4, outer_lr=0)
    refused("outer_momentum 1", dptrain_comm.Rounds, net, 4, outer_momentum=1)
    refused("Rounds(): unknown option outer", dptrain_comm.Rounds, net, 4, outer=1)
    refused("set optimizer, or use velocity=off", dptrain_comm.Rounds, net, 4, "ecq:bits=0.5,velocity=on")


dptrain_comm.init_process_group()
RANK, SIZE = dptrain_comm.rank(), dptrain_comm.size()
for outer in ((1.0, 0.0), (0.7, 0.9)):
    parameters_become_those_of_the_formula(*outer)
for spec in ("q8", "ecq:bits=0.5"):
    replicas_are_the_same(spec)
    a_checkpoint_goes_on(spec)
the_loss_is_fp32s()
a_round_that_is_not_finite_is_lost()
a_mask_is_no_statistic()
any_tensor_can_be_summed()
wrong_use_is_one_sentence()
torch.distributed.destroy_process_group()
passed()
