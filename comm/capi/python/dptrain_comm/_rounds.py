"""Rounds: ranks train alone for some steps, then exchange their parameters' changes (local SGD,
Stich 2019; with an outer optimiser DiLoCo, Douillard et al. 2023)."""
from __future__ import annotations

import ctypes
import numbers
import operator

from ._library import OPTIONS, Error, Exchange, Slot, check, size


def _number(name: str, value, least: float, below: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not least <= value < below:
        raise Error(2, f"Rounds(): {name} {value!r}: must be a number from {least:g} on and below {below:g}")
    return float(value)


class Rounds:
    """Call step() after each optimizer.step(). After every `every` steps the parameters become
    `common`, with the same bits on all ranks:

        velocity = outer_momentum * velocity + change       change: the mean change over all ranks
        common  += outer_lr * (change + outer_momentum * velocity)

    With outer_lr=1 and no momentum, common is the mean of all ranks' parameters. Finite
    floating-point buffers, such as running statistics, become the mean over all ranks, in fp32.

    model: all ranks get rank 0's parameters and buffers.
    compress, options: as in init(), without velocity=. auto needs an exchange at every step and is
    refused.
    optimizer: if given, residuals of earlier rounds are scaled down when its learning rate falls.
    total_steps: the number of optimiser steps in the training, so that ecq:bits=X spends more bits
    at its beginning.
    """

    def __init__(self, model, every: int, compress: str = "q8", *, outer_lr: float = 1.0, outer_momentum: float = 0.0, optimizer=None,
                 total_steps: int | None = None, **options):
        import torch
        from . import broadcast_parameters
        try:
            self.every = operator.index(every)
        except TypeError:
            self.every = 0
        if self.every < 1:
            raise Error(2, f"Rounds(): every {every!r}: must be a whole number, 1 or more")
        if isinstance(compress, str) and (compress.partition(":")[0] == "auto"):
            raise Error(2, f"Rounds(): {compress} follows the link from step to step; for rounds name a codec, such as q8 or ecq:bits=0.5")
        unknown = [name for name in options if name not in OPTIONS or name.startswith("trace") or name == "shards"]
        if unknown:
            raise Error(2, f"Rounds(): unknown option {unknown[0]}")
        check(compress=compress, **options)
        self._outer_lr = _number("outer_lr", outer_lr, 1e-6, 100)
        self._outer_momentum = _number("outer_momentum", outer_momentum, 0, 1)
        self._optimizer, self._total_steps = optimizer, total_steps
        broadcast_parameters(model)
        trained = [(name, p) for name, p in model.named_parameters() if p.numel() > 0]
        for name, p in trained:
            if p.is_complex():
                raise Error(2, f"Rounds(): the parameter {name} is complex; parameters are exchanged as real numbers of 32 bits")
        # Leaves out buffers such as a causal mask of minus infinity, which is not a statistic.
        buffers = [(name, b) for name, b in model.named_buffers() if b.is_floating_point() and b.numel() > 0 and bool(b.isfinite().all())]
        self._tensors = [tensor for _, tensor in (*trained, *buffers)]
        self._is_parameter = [True] * len(trained) + [False] * len(buffers)
        slots = [Slot(name, t.shape[0] if t.dim() > 1 else 1, t.numel() // (t.shape[0] if t.dim() > 1 else 1), t.dim() < 2)
                 for name, t in (*trained, *buffers)]
        exact = options.pop("exact", None) or []
        exact = [*([exact] if isinstance(exact, str) else exact), *(name for name, _ in buffers)]
        self.exchange = Exchange(slots, compress, exact=exact or None, **options)
        self._values = [torch.frombuffer((ctypes.c_float * t.numel()).from_address(self.exchange.address(k)), dtype=torch.float32).view(t.shape)
                        for k, t in enumerate(self._tensors)]
        self._common = [t.detach().to("cpu", torch.float32, copy=True) for t in self._tensors]
        self._velocity = [torch.zeros_like(one) for one, is_parameter in zip(self._common, self._is_parameter) if is_parameter]
        self.steps, self.rounds = 0, 0  # optimiser steps and exchanges so far
        self._rates: list[float] = []  # learning rates of the running round
        self._rate_before = 0.0

    def step(self) -> bool:
        """Call it after each optimizer.step(). Returns whether the round has ended; in that case
        the call was collective."""
        self.steps += 1
        if self._optimizer is not None:
            self._rates.append(max(float(group["lr"]) for group in self._optimizer.param_groups))
        if self.steps % self.every:
            return False
        self._exchange()
        return True

    def finish(self) -> None:
        """Ends a round early, for example at the end of a training. Collective."""
        if self.steps % self.every:
            self._exchange()
            self.steps += -self.steps % self.every

    def _exchange(self) -> None:
        import torch
        self._fade()
        with torch.no_grad():
            for values, common, tensor in zip(self._values, self._common, self._tensors):
                torch.sub(tensor.detach().to("cpu", torch.float32), common, out=values)
                values /= size()
            progress = -1.0 if self._total_steps is None else min(max(self.steps - self.every, 0) / self._total_steps, 1.0)
            self.exchange.begin_round(progress)
            for slot in range(len(self._values)):
                self.exchange.ready(slot)
            # If some rank's changes are not finite, the round is lost: all ranks continue from its
            # beginning.
            if self.exchange.finish_step():
                self._take()
            for common, tensor in zip(self._common, self._tensors):
                tensor.copy_(common)
        self.rounds += 1

    def _take(self) -> None:
        velocities = iter(self._velocity)
        for change, common, is_parameter in zip(self._values, self._common, self._is_parameter):
            if is_parameter:
                velocity = next(velocities)
                velocity.mul_(self._outer_momentum).add_(change)
                common.add_(change, alpha=self._outer_lr).add_(velocity, alpha=self._outer_lr * self._outer_momentum)
            else:
                common.add_(change)

    def _fade(self) -> None:
        """Scales residuals down when the learning rate has fallen, since they come from steps with
        earlier learning rates."""
        if not self._rates:
            return
        mean, self._rates = sum(self._rates) / len(self._rates), []
        if 0.0 < mean < self._rate_before:
            self.exchange.scale_residual(mean / self._rate_before)
        self._rate_before = mean or self._rate_before

    def state_dict(self) -> dict:
        """For this rank's checkpoint, in addition to the model's and the optimiser's states."""
        import torch
        return {"steps": self.steps, "rounds": self.rounds, "rates": list(self._rates), "rate_before": self._rate_before,
                "exchange": torch.frombuffer(bytearray(self.exchange.save()), dtype=torch.uint8),
                "common": [one.clone() for one in self._common], "velocity": [one.clone() for one in self._velocity]}

    def load_state_dict(self, state: dict) -> None:
        """Continues from this rank's state_dict(). Load the model's and the optimiser's states
        first. Call it on all ranks."""
        for mine, theirs, what in ((self._common, state["common"], "common"), (self._velocity, state["velocity"], "velocity")):
            if [one.shape for one in mine] != [one.shape for one in theirs]:
                raise Error(3, f"load_state_dict(): {what} has other shapes than this model")
        self.exchange.load(bytes(state["exchange"].cpu().numpy().tobytes()))
        for mine, theirs in ((self._common, state["common"]), (self._velocity, state["velocity"])):
            for one, other in zip(mine, theirs):
                one.copy_(other)
        self.steps, self.rounds = int(state["steps"]), int(state["rounds"])
        self._rates, self._rate_before = [float(rate) for rate in state["rates"]], float(state["rate_before"])

    def close(self) -> None:
        self._values = []
        self.exchange.close()
