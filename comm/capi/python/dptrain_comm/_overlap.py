"""Sends gradients of a module without DistributedDataParallel during its backward pass."""
from __future__ import annotations

import contextlib
import threading

from ._gradient_exchange import GradientExchange
from ._gradients import local, name_of
from ._library import Error


class Overlap:
    """Sends each gradient when backward has completed it, from the second step on, except within
    no_sync()."""

    def __init__(self, model, core: GradientExchange):
        self._model, self._core = model, core
        self._hooks: dict = {}  # by a parameter's id
        self._is_paused = False
        self._one_at_a_time = threading.Lock()
        self.begin_step()
        self.follow()

    @staticmethod
    def is_possible(model) -> bool:
        """Whether PyTorch has the necessary hooks (2.1 and later)."""
        return all(hasattr(parameter, "register_post_accumulate_grad_hook") for parameter in model.parameters())

    def begin_step(self) -> None:
        """Prepares the next step, which begins with the next backward pass."""
        self.early: dict = {}  # sent gradients, by slot: parameter, gradient and its version
        self._may_leave: bool | None = None  # None: not decided yet

    def follow(self) -> None:
        """Registers hooks for parameters that were added, or are trained again."""
        for parameter in self._model.parameters():
            if parameter.requires_grad and id(parameter) not in self._hooks and local(parameter.detach()).numel() > 0:
                self._hooks[id(parameter)] = parameter.register_post_accumulate_grad_hook(self._completed)

    def check_unchanged(self) -> None:
        for parameter, gradient, version in self.early.values():
            if parameter.grad is not gradient or gradient._version != version:
                raise Error(2, f"the gradient of {name_of(parameter, self._core.names)} was changed between backward(), in which it has left, "
                            "and allreduce_gradients(): change gradients after it (also GradScaler.unscale_() and clip_grad_norm_()), or "
                            "use init() in place of prepare()")

    def _completed(self, parameter) -> None:
        if not self._is_paused:
            with self._one_at_a_time:  # autograd has a thread for each device
                self._send(parameter)

    def _send(self, parameter) -> None:
        core, gradients = self._core, self._core.gradients
        if gradients is None or core.needs_all_gradients():
            return
        # Not if there are new parameters: allreduce_gradients() adds them.
        if self._may_leave is None:
            self._may_leave = all(id(p) in gradients.slots for p in self._model.parameters() if p.requires_grad and id(p) in self._hooks)
        if not self._may_leave:
            return
        pairs = [(parameter, local(parameter.grad))]
        gradients.check(pairs)
        if not core.held:
            core.frozen = [(p, None) for p in gradients.parameters if not p.requires_grad]
            core.begin_step(pairs)
        slot = gradients.slots[id(parameter)]
        if slot in self.early:
            raise Error(2, f"backward() has completed the gradient of {name_of(parameter, core.names)} a second time since the last "
                        "allreduce_gradients(): all but the last backward() of a step belong within state.no_sync()")
        self.early[slot] = parameter, parameter.grad, parameter.grad._version
        core.send(pairs)

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
