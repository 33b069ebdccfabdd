"""The exchange of a program's gradients, from its first step on: the common part of DDP's hook
(_buckets.py) and State.allreduce_gradients().

A step: follow_parameters(), begin_step(), send() of all parameters in any number of parts,
finish_step().
"""
from __future__ import annotations

import sys
import time

from ._delivery import Delivery
from ._gradients import Gradients, name_of
from ._library import Error, Exchange, rank, size
from ._loss_scale import LossScale
from ._run_log import RunLog
from ._saved_state import SavedState, StateError
from ._steps import Steps
from ._trace import Trace


class GradientExchange:
    """make() creates the exchange when all parameters are known; until then `gradients` is None."""

    def __init__(self, options: dict, total_steps: int | None, names: dict[int, str], steps: Steps | None, log: RunLog | None):
        """names: the parameters' names, by id. steps: the optimiser's, if they may be exchanged."""
        self.options, self.names, self.log = options, names, log
        self.gradients: Gradients | None = None
        self.held: list = []  # this step's pairs of slot and this rank's gradient, or None
        self.frozen: list = []  # pairs of parameters that are not trained now, and None
        self.delivery = Delivery()
        self.loss_scale = LossScale()
        self.waiting: SavedState | None = None  # loaded before the exchange exists
        self.waiting_factor = 1.0  # by which its residuals must be scaled
        self.step = 0
        self._total_steps = total_steps
        self._steps = steps
        self._is_alone = False  # one rank: its gradient already is the sum
        self._trace = Trace(options)

    @property
    def exchange(self) -> "Exchange | None":
        return None if self.gradients is None else self.gradients.exchange

    @property
    def replicas(self) -> int:
        """The number of ranks that exchange with each other."""
        return size() // self.options.get("shards", 1)

    def make(self, parameters: list, any_may_lack_gradient: bool = False) -> None:
        """Collective: creates the exchange. any_may_lack_gradient: in each step the ranks count the
        gradients of each parameter; not needed with DDP, which does this itself."""
        began = time.perf_counter()
        waiting = self.waiting or SavedState()
        self._is_alone = self.replicas == 1
        if any_may_lack_gradient and not waiting.has_counts and rank() == 0:
            print("dptrain_comm: the saved state is from an earlier version: parameters without a gradient on any rank get zeros, "
                  "as in that version", file=sys.stderr, flush=True)
        self.gradients = Gradients(parameters, self.names, self.options,
                                    any_may_lack_gradient and waiting.has_counts and not self._is_alone)
        try:
            if not self._is_alone:
                self.gradients.pin()
            if self._steps is not None:
                self._steps.attach(self.gradients, self._is_alone)
            self.load(waiting)
        except Error:  # a later call must not continue without the saved state
            self.gradients.close()
            self.gradients = None
            raise
        self.waiting = None
        if self.waiting_factor != 1.0 and not self.makes_steps():
            self.scale_kept(self.waiting_factor)
        if self.log is not None:
            self.log.begin(self.exchange, self.step, sum(p.numel() for p in parameters), time.perf_counter() - began)

    def load(self, saved: SavedState) -> None:
        saved = saved.for_slots(self.gradients.slot_names, self.gradients.shapes)
        try:
            if saved.of_others:
                self.exchange.merge(saved.of_others)
            elif saved.exchange is not None:
                self.exchange.load(saved.exchange)
        except Error as error:
            raise StateError(str(error)) if error.code == 3 else error
        self.delivery.late = saved.late

    # ---- parameters that come and go

    def follow_parameters(self, pairs: list) -> list:
        """pairs: a step's parameters and gradients. Returns them together with the parameters that
        are frozen now, which have no gradient. Collective if there are new parameters: it makes a
        new exchange, which keeps the residuals of the others."""
        if self.names:
            self.gradients.names = self.names
        new, missing = self.gradients.check(pairs), self.gradients.missing(pairs)
        trained = [parameter for parameter in missing if parameter.requires_grad]
        if trained and new:
            raise self.gradients.refuse(new[0])
        if trained:
            self.gradients.check_that_all_are_there({self.gradients.slots[id(parameter)] for parameter, _ in pairs})
        if new:
            self._take_in(new)
        self.frozen = [(parameter, None) for parameter in missing]
        return pairs + self.frozen

    def _take_in(self, new: list) -> None:
        began = time.perf_counter()
        earlier = self.gradients
        for parameter in new:
            earlier.check_kind(parameter)
            if self.makes_steps():
                self._steps.check_group(parameter, name_of(parameter, earlier.names))
        if self._trace.is_due:
            self._write_trace()
        options = {name: value for name, value in self.options.items() if not name.startswith("trace")}
        saved = earlier.exchange.save()
        if self.log is not None:
            self.log.exchange_ends(self.exchange)
        earlier.close()
        self.gradients = Gradients(earlier.parameters + new, earlier.names, options, earlier.has_counts, earlier.slot_names)
        if not self._is_alone:
            self.gradients.pin()
        if self._steps is not None:
            self._steps.attach(self.gradients, self._is_alone)
        self.exchange.merge([saved])
        if self.log is not None:
            self.log.goes_on(self.exchange, sum(p.numel() for p in self.gradients.parameters), time.perf_counter() - began)

    # ---- a step

    def is_seen(self) -> bool:
        """Whether the exchange has anything to do; on one rank only if a trace is due."""
        return not self._is_alone or self._trace.is_due

    def scale_kept(self, factor: float) -> None:
        self.exchange.scale_residual(factor)
        self.delivery.scale(factor)

    def begin_step(self, pairs: list) -> None:
        """pairs: parameters and their gradients, some of which may be None; from the hook, only the
        first bucket's."""
        if self.log is not None:
            self.log.step_begins()
        if self._steps is not None:
            self._steps.begin_step()
        if not self.is_seen():
            return
        factor = self.loss_scale.change(pairs)
        if factor != 1.0 and not self.makes_steps():
            self.scale_kept(factor)
        progress = -1.0 if self._total_steps is None else min(self.step / self._total_steps, 1.0)
        self.exchange.begin_step(progress)

    def makes_steps(self) -> bool:
        return self._steps is not None and self._steps.is_any

    def needs_all_gradients(self) -> bool:
        return self.makes_steps() and self._steps.clip_norm is not None

    def _scale(self) -> float:
        """The factor of gradients over exchanged values, since steps do not scale with the loss."""
        return self.loss_scale.last or 1.0 if self.makes_steps() else 1.0

    def send(self, pairs: list) -> None:
        """Sends gradients; with clip_norm, pairs must contain all of the step."""
        import torch
        share, is_seen = 1.0 / (self.replicas * self._scale()), self.is_seen()
        if self.needs_all_gradients():
            share *= self._steps.clip_factor(pairs, self._scale())
        with torch.no_grad():
            for parameter, gradient in pairs:
                slot = self.gradients.slots[id(parameter)]
                self.held.append((slot, gradient))
                if not self._is_alone:
                    has_step = self._steps is not None and self._steps.makes(parameter)
                    decay = self._steps.decay_of(parameter) / self.replicas if has_step else 0.0
                    self.gradients.put(slot, gradient, share, decay)
                if is_seen:
                    self.exchange.ready(slot)

    def finish_step(self) -> None:
        import torch
        before = time.perf_counter()
        self.gradients.check_that_all_are_there({slot for slot, _ in self.held})
        all_finite = self.exchange.finish_step() if self.is_seen() else True
        self.step += 1
        if self.log is not None:
            self.log.step_ends(self.exchange, self.step, before, all_finite)
        if not self._is_alone:
            with torch.no_grad():
                self.delivery.deliver(self.gradients, self.held, all_finite, self._scale())
                if self.makes_steps():
                    self._steps.delivered([(self.gradients.parameters[slot], gradient) for slot, gradient in self.held],
                                          all_finite, self._scale())
        self.held = []
        if self._trace.step_ends():
            self._write_trace()

    def _write_trace(self) -> None:
        began = time.perf_counter()
        self._trace.write(self.exchange)
        if self.log is not None:
            self.log.leave_out(time.perf_counter() - began)

    def close(self) -> None:
        """Ends the exchange after the training. Collective."""
        if self._trace.is_due and self.exchange:
            self._write_trace()
        if self.log is not None:
            self.log.close()
            self.log = None
        if self.gradients is not None:
            self.gradients.close()
            self.gradients = None
        self.held = []
        if self._steps is not None:
            self._steps.close()
