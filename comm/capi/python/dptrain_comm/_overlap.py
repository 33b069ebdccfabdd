"""Gradients of a module without DistributedDataParallel, which leave while its backward pass goes on."""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from ._gradients import local
from ._library import Error


class Overlap:
    """Calls send(parameter) for each gradient that backward has completed, from the second step on, and not within no_sync()."""

    def __init__(self, model, send: Callable):
        self._model, self._send = model, send
        self._hooks: dict = {}  # by a parameter's id
        self._is_paused = False
        self._one_at_a_time = threading.Lock()
        self.follow()

    @staticmethod
    def is_possible(model) -> bool:
        """PyTorch 2.1 and later has hooks for it."""
        return all(hasattr(parameter, "register_post_accumulate_grad_hook") for parameter in model.parameters())

    def follow(self) -> None:
        """Parameters may have been added, or frozen and trained again."""
        for parameter in self._model.parameters():
            if parameter.requires_grad and id(parameter) not in self._hooks and local(parameter.detach()).numel() > 0:
                self._hooks[id(parameter)] = parameter.register_post_accumulate_grad_hook(self._completed)

    def knows_all(self, slots: dict) -> bool:
        """Whether every trained parameter is in the exchange."""
        return all(id(p) in slots for p in self._model.parameters() if p.requires_grad and id(p) in self._hooks)

    def _completed(self, parameter) -> None:
        if not self._is_paused:
            with self._one_at_a_time:  # autograd has a thread for each device
                self._send(parameter)

    @contextlib.contextmanager
    def no_sync(self):
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was_paused

    def close(self) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}


def changed(name: str) -> Error:
    return Error(2, f"the gradient of {name} was changed between backward(), in which it has left, and allreduce_gradients(): change "
                 "gradients after it (also GradScaler.unscale_() and clip_grad_norm_()), or use init() in place of prepare()")


def twice(name: str) -> Error:
    return Error(2, f"backward() has completed the gradient of {name} a second time since the last allreduce_gradients(): all but the last "
                 "backward() of a step belong within state.no_sync()")
