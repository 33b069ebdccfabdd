"""The buckets of DistributedDataParallel's communication hook."""
from __future__ import annotations

from . import _ranks
from ._gradient_exchange import GradientExchange
from ._library import Error


class Buckets:
    """Reduces DDP's buckets, which arrive one after the other. DDP waits for the futures that
    reduce() returns."""

    def __init__(self, core: GradientExchange):
        self._core = core
        self._gathered: list = []  # parameters and gradients of a DDP model's first step
        self._unsent: list = []  # with clip_norm: parameters and gradients of earlier buckets
        self._futures: list = []
        self._is_new_model = False  # a DistributedDataParallel that has not made its first step

    def serve(self, ddp) -> None:
        """Called when a DistributedDataParallel registers the hook, perhaps a second time, with
        other parameters."""
        if self._core.gradients is not None or not self._core.names:
            self._core.names = {id(p): name for name, p in ddp.module.named_parameters()}
        self._is_new_model = self._core.gradients is not None

    def reduce(self, bucket):
        import torch
        parameters, gradients = bucket.parameters(), bucket.gradients()
        future = torch.futures.Future(devices=[bucket.buffer().device] if bucket.buffer().is_cuda else None)
        self._futures.append((future, bucket.buffer()))
        if bucket.buffer().layout != torch.strided:
            raise Error(2, f"a parameter of the shape {list(bucket.buffer().shape)} has a sparse gradient; the exchange needs dense "
                        "ones (sparse=False)")
        if bucket.index() == 0:
            _ranks.check()
        pairs = [(p, g) for p, g in zip(parameters, gradients) if p.numel() > 0]
        if self._core.gradients is not None and not self._is_new_model:
            unknown = self._core.gradients.check(pairs)
            if unknown:
                raise self._core.gradients.refuse(unknown[0])
            if bucket.index() == 0:
                self._core.begin_step(pairs)
            if self._core.needs_all_gradients():
                self._unsent += pairs
            else:
                self._core.send(pairs)
        else:
            # In DDP's first step the buckets have the parameters in the order of forward. Later
            # they have the order in which backward makes gradients. The exchange needs this order,
            # or nothing is sent before backward ends.
            self._gathered += reversed(pairs)
        if not bucket.is_last():
            return future
        if self._core.gradients is None or self._is_new_model:
            gathered, self._gathered = self._gathered, []
            _ranks.check_groups_of(gathered[0][0] if gathered else None)
            if self._core.gradients is None:
                self._core.make([parameter for parameter, _ in gathered])
            self._is_new_model = False
            gathered = self._core.follow_parameters(gathered)
            self._core.begin_step(gathered)
            self._core.send(gathered)
        elif self._unsent:
            unsent, self._unsent = self._unsent, []
            self._core.send(unsent + self._core.frozen)
        elif self._core.frozen:
            self._core.send(self._core.frozen)
        self._core.finish_step()
        futures, self._futures = self._futures, []
        for waiting, buffer in futures:
            waiting.set_result(buffer)
        return future
