"""State: what the hook and allreduce_gradients() keep from step to step."""
from __future__ import annotations

import contextlib
import dataclasses
import numbers
import os
import sys
import time

from . import _ranks, _saved_state
from ._delivery import Delivery
from ._gradients import Gradients, local, name_of
from ._library import OPTIMIZER_OPTIONS, OPTIONS, Error, Exchange, rank, size
from ._library import check as check_options
from ._loss_scale import LossScale
from ._overlap import Overlap, changed, twice
from ._run_log import RunLog
from ._saved_state import SavedState, StateError
from ._steps import Steps
from ._tensors import Tensors
from ._trace import Trace


def require_model(function: str, model) -> None:
    if not hasattr(model, "named_parameters"):
        raise Error(2, f"{function}() got {type(model).__name__}; it needs a torch.nn.Module: for several, "
                    "torch.nn.ModuleList([one, other])")
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise Error(2, f"{function}() got a model of FullyShardedDataParallel, each rank of which has other values: shard it by "
                    "fully_shard() over the ranks of a host, and give init() their number as shards")


def _check_numbers(total_steps, log, log_steps, about) -> None:
    if total_steps is not None and not (isinstance(total_steps, numbers.Real) and 1 <= total_steps < float("inf")):
        raise Error(2, f"total_steps {total_steps!r}: must be 1 or more")
    if not isinstance(log_steps, int) or log_steps < 0 or (log_steps > 0 and log is None):
        raise Error(2, f"log_steps {log_steps!r}: must be 1 or more, and needs log")
    if not isinstance(log, (str, os.PathLike, type(None))):
        raise Error(2, f"log {log!r}: must be the name of a new file")
    if not isinstance(about, (dict, type(None))):
        raise Error(2, f"about {about!r}: must be a dict, such as {{\"model\": \"resnet20\"}}")


def _steps_of(optimizer, clip_norm) -> Steps | None:
    if clip_norm is not None and not (isinstance(clip_norm, numbers.Real) and 0.0 < clip_norm < float("inf")):
        raise Error(2, f"clip_norm {clip_norm!r}: must be a number above 0")
    if optimizer is not None:
        return Steps(optimizer, clip_norm)
    if clip_norm is not None:
        raise Error(2, "clip_norm needs optimizer: without it torch.nn.utils.clip_grad_norm_() clips after the exchange")
    return None


class State:
    """Its exchange is made in the first step, when all parameters are known."""

    def __init__(self, compress: str = "auto", *, total_steps: int | None = None, model=None, log: str | None = None,
                 log_steps: int = 0, about: dict | None = None, optimizer=None, clip_norm: float | None = None, **options):
        if not isinstance(compress, str):
            raise Error(2, f"init({compress!r}): the first argument is a codec, such as \"auto\", \"q8\" or \"none\"")
        for name in options:
            if name not in OPTIONS or name in OPTIMIZER_OPTIONS:
                known = sorted(set(OPTIONS) - set(OPTIMIZER_OPTIONS))
                raise Error(2, f"init() knows no option {name}; it knows {', '.join(known)}, and about, clip_norm, log, log_steps, "
                            "model, optimizer and total_steps")
        self._steps = _steps_of(optimizer, clip_norm)
        if self._steps is not None:
            options.update(self._steps.options())
        check_options(compress=compress, **options)
        if options.get("shards", 1) > 1 and log is not None:
            raise Error(2, f"log {log}: with shards there is none")
        if options.get("shards", 1) > 1 and clip_norm is not None:
            raise Error(2, f"clip_norm {clip_norm}: with shards a rank does not see the norm of a gradient; clip after the exchange, without "
                        "optimizer")
        _check_numbers(total_steps, log, log_steps, about)
        if model is not None:
            require_model("init", model)
        _ranks.check()
        _ranks.watch(State)
        self._options = {"compress": compress, **options}
        self._total_steps = total_steps
        self._names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
        self._gradients: Gradients | None = None  # with the exchange
        self._held: list = []  # of this step: (parameter or its slot, gradient or None)
        self._futures: list = []
        self._unsent: list = []  # with clip_norm: parameters and gradients of the step's earlier buckets
        self._delivery = Delivery()
        self._loss_scale = LossScale()
        self._tensors = Tensors(options)
        self._waiting: SavedState | None = None  # for an exchange that is not there yet
        self._factor = 1.0  # of what waits
        self._overlap: Overlap | None = None
        self._early: dict = {}  # by slot, what has left in this step's backward: parameter, gradient and its version
        self._may_leave: bool | None = None  # in this step's backward; None: not known yet
        self._is_new_model = False  # a DistributedDataParallel whose first step is to come
        self._frozen: list = []  # parameters of the exchange that are not trained now, and None
        self._is_alone = False  # one rank: its gradient is the sum already
        self.step = 0
        self._log = None if log is None else RunLog(log, self._options, about or {}, log_steps)
        self._trace = Trace(options)
        if self._steps is not None:
            self._steps.watch()

    def __deepcopy__(self, memo) -> "State":
        """A copy of a model keeps this one: there is one exchange."""
        return self

    def __reduce__(self):
        """A model that is saved as a whole has a new state when it is loaded; state_dict() is what a checkpoint needs."""
        return State, (self._options["compress"],)

    # ---- for users

    def allreduce_gradients(self, model) -> None:
        """Each gradient of the model becomes the mean of all ranks'. After backward, before the optimiser's step.

        A parameter without a gradient counts as zeros if another rank has one, and gets the mean. If no rank has one, it stays
        without. Parameters may be frozen (requires_grad=False), and further ones may come, on all ranks in the same step.
        """
        import torch
        require_model("allreduce_gradients", model)
        self._names = {id(p): name for name, p in model.named_parameters()}
        with torch.no_grad():
            pairs = [(p, None if p.grad is None else local(p.grad)) for p in reversed(list(model.parameters()))
                     if p.requires_grad and local(p).numel() > 0]
        if self._gradients is None:
            _ranks.check()
            self._make_exchange([parameter for parameter, _ in pairs], any_may_lack_gradient=True)
        if self._held:  # some have left in backward
            for unknown in self._gradients.check(pairs):
                raise self._gradients.refuse(unknown)
            for parameter, gradient, version in self._early.values():
                if parameter.grad is not gradient or gradient._version != version:
                    raise changed(name_of(parameter, self._names))
            pairs = [pair for pair in pairs + self._frozen if self._gradients.slots[id(pair[0])] not in self._early]
        else:
            # Before anything leaves, so that nothing is on its way when this fails.
            pairs = self._follow_parameters(pairs)
            self._begin_step(pairs)
        self._send(pairs)
        if self._gradients.counts is not None and self._is_seen():
            self._gradients.count(self._held)
        self._finish_step()
        if self._overlap is not None:
            self._overlap.follow()

    def overlap(self, model) -> None:
        """Gradients of this module leave while backward goes on, and allreduce_gradients() sends the rest and waits. Where PyTorch
        before 2.1 has no hooks for it, nothing changes."""
        if self._overlap is not None:
            self._overlap.close()
        if Overlap.is_possible(model):
            self._overlap = Overlap(model, self._send_early)

    def no_sync(self):
        """A context for all but the last backward() of a step that has several, after overlap() or prepare()."""
        return contextlib.nullcontext() if self._overlap is None else self._overlap.no_sync()

    def all_reduce(self, tensor, name: str, compress: str = "q8"):
        """Replaces the tensor by the sum of all ranks', and returns it. On all ranks the same bits. Collective, between steps.

        name: what a codec has not sent of the tensor is sent with the next one of this name, which must have the same shape and
        codec. Each name has an exchange of its own, with a thread. A tensor that is not finite on some rank becomes NaN on all.
        """
        self._tensors.reduce(tensor, name, compress, 1.0)
        return tensor

    def all_mean(self, tensor, name: str, compress: str = "q8"):
        """As all_reduce(), the mean."""
        self._tensors.reduce(tensor, name, compress, 1.0 / size())
        return tensor

    def broadcast(self, tensor):
        """Replaces the tensor by rank 0's, of any type and exact, and returns it. Collective, between steps."""
        _ranks.broadcast(tensor)
        return tensor

    def epoch(self, *, samples: int, train_loss: float = float("nan"), train_accuracy: float = float("nan"),
              test_loss: float = float("nan"), test_accuracy: float = float("nan"), learning_rate: float = float("nan"),
              data_s: float = 0.0, eval_s: float = 0.0) -> None:
        """Ends an epoch and adds its row to the run log; without `log` nothing happens. Collective.

        samples: images of this rank in the epoch; the losses and accuracies (fractions) are this rank's, too, and those
        of all ranks are weighted by them. data_s: how long this rank waited for data. eval_s: how long this call comes
        after the training's end, since evaluation belongs to no epoch.
        """
        if self._log is None:
            return
        if self.exchange is None:
            raise Error(2, "epoch(): no step was made yet")
        self._log.epoch(self.exchange, self.step, samples, {
            "train_loss": train_loss, "train_accuracy": train_accuracy, "test_loss": test_loss,
            "test_accuracy": test_accuracy, "learning_rate": learning_rate}, data_s, eval_s)

    @property
    def exchange(self) -> "Exchange | None":
        """For statistics(), describe() and compare(); None before the first step."""
        return None if self._gradients is None else self._gradients.exchange

    def scale_residual(self, factor: float) -> None:
        """The loss has another scale from the next step on: factor is the new one over the old one. Residuals of earlier
        steps follow. Collective, between steps. For a PyTorch GradScaler this comes by itself."""
        if self._makes_steps():
            raise Error(2, "scale_residual(): steps of the optimizer do not depend on the scale of the loss; a GradScaler's is detected, "
                        "another one must be divided out before the exchange")
        if self._gradients is not None:
            self._scale_kept(factor)
        elif not 0.0 < factor < float("inf"):
            raise Error(2, f"a loss scale cannot become {factor} times as large; allowed: a finite number above 0")
        else:
            self._factor *= factor

    def state_dict(self, *, all_ranks: bool = False) -> dict:
        """For a checkpoint: the step, and the values that codecs have not sent yet, of which each rank has its own.

        all_ranks: collective; rank 0's dict holds the states of all ranks, for a checkpoint that rank 0 alone writes, and each
        rank takes its own out of it when it is loaded. Those of other ranks are empty.
        """
        if all_ranks:
            return self._state_of_all()
        now = self._waiting or SavedState()
        if self._gradients is not None:
            now = SavedState(exchange=self.exchange.save(), late=self._delivery.late, slots=self._gradients.slot_names)
        return dataclasses.replace(now, step=self.step, loss_scale=self._loss_scale.last,
                                   tensors={name: [saved] for name, saved in self._tensors.save().items()}).to_dict()

    def _state_of_all(self) -> dict:
        if self._options.get("shards", 1) > 1:
            raise Error(2, "state_dict(all_ranks=True): with shards each rank saves its own state")
        exchange = self.exchange or self._tensors.any_exchange()
        if exchange is None:
            raise Error(2, "state_dict(all_ranks=True): no step was made yet, and there is nothing to save")
        states = _saved_state.gathered(exchange, self.state_dict())
        return {"step": self.step, "size": size(), "ranks": states} if rank() == 0 else {}

    def load_state_dict(self, state: dict) -> None:
        """Goes on from the dict that this rank's state_dict() has returned, or rank 0's with all_ranks, also of another number of
        ranks: what waited on rank r then waits on rank r modulo their number. On all ranks, or on none; best before the first step. Raises StateError, with nothing changed, if it is damaged or does not fit."""
        saved = _saved_state.checked(state)
        if self._gradients is None:
            self._waiting, self._factor = saved, 1.0
        else:
            if saved.exchange is None and not saved.of_others and saved.step != self.step:
                raise StateError(f"the state is from before the first step and has nothing for an exchange that has made {self.step}; "
                                 "close() this state and make a new one by init()")
            self._load(saved)
        self._tensors.load(saved.tensors)
        self.step = saved.step
        self._loss_scale.last = saved.loss_scale

    def close(self) -> None:
        """The training is complete. Collective."""
        if self._trace.is_due and self.exchange:
            self._write_trace()
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None
        self._tensors.close()
        self._held, self._unsent, self._early, self._may_leave = [], [], {}, None
        if self._overlap is not None:
            self._overlap.close()
        if self._steps is not None:
            self._steps.close()

    # ---- a step

    def reduce_bucket(self, bucket):
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
        if self._gradients is not None and not self._is_new_model:
            unknown = self._gradients.check(pairs)
            if unknown:
                raise self._gradients.refuse(unknown[0])
            if bucket.index() == 0:
                self._begin_step(pairs)
            if self._needs_all_gradients():
                self._unsent += pairs
            else:
                self._send(pairs)
        else:
            # In its first step DDP has one bucket, or several, with parameters in the order of forward. Later on it has
            # them as backward makes their gradients, and so must the exchange, or nothing leaves before the end.
            self._held += reversed(pairs)
        if not bucket.is_last():
            return future
        if self._gradients is None or self._is_new_model:
            held, self._held = self._held, []
            _ranks.check_groups_of(held[0][0] if held else None)
            if self._gradients is None:
                self._make_exchange([parameter for parameter, _ in held])
            self._is_new_model = False
            held = self._follow_parameters(held)
            self._begin_step(held)
            self._send(held)
        elif self._unsent:
            unsent, self._unsent = self._unsent, []
            self._send(unsent + self._frozen)
        elif self._frozen:
            self._send(self._frozen)
        self._finish_step()
        futures, self._futures = self._futures, []
        for waiting, buffer in futures:
            waiting.set_result(buffer)
        return future

    def serve(self, ddp) -> None:
        """A DistributedDataParallel that gets the hook, perhaps a second time, with other parameters."""
        if self._gradients is not None or not self._names:
            self._names = {id(p): name for name, p in ddp.module.named_parameters()}
        self._is_new_model = self._gradients is not None

    def _follow_parameters(self, pairs: list) -> list:
        """Parameters of a step and their gradients. Returns them with those that are frozen now, which have none. Collective if there
        are new ones: the exchange is made anew, and what waits for the others stays."""
        if self._names:
            self._gradients.names = self._names
        new, missing = self._gradients.check(pairs), self._gradients.missing(pairs)
        trained = [parameter for parameter in missing if parameter.requires_grad]
        if trained and new:
            raise self._gradients.refuse(new[0])
        if trained:
            self._gradients.check_that_all_are_there({self._gradients.slots[id(parameter)] for parameter, _ in pairs})
        if new:
            self._take_in(new)
        self._frozen = [(parameter, None) for parameter in missing]
        return pairs + self._frozen

    def _take_in(self, new: list) -> None:
        began = time.perf_counter()
        earlier = self._gradients
        for parameter in new:
            earlier.check_kind(parameter)
            if self._makes_steps():
                self._steps.check_group(parameter, name_of(parameter, earlier.names))
        if self._trace.is_due:
            self._write_trace()
        options = {name: value for name, value in self._options.items() if not name.startswith("trace")}
        saved = earlier.exchange.save()
        if self._log is not None:
            self._log.exchange_ends(self.exchange)
        earlier.close()
        self._gradients = Gradients(earlier.parameters + new, earlier.names, options, earlier.has_counts, earlier.slot_names)
        if not self._is_alone:
            self._gradients.pin()
        if self._steps is not None:
            self._steps.attach(self._gradients, self._is_alone)
        self.exchange.merge([saved])
        if self._log is not None:
            self._log.goes_on(self.exchange, sum(p.numel() for p in self._gradients.parameters), time.perf_counter() - began)

    def _send_early(self, parameter) -> None:
        if self._gradients is None or self._needs_all_gradients():
            return
        if self._may_leave is None:  # further parameters come with allreduce_gradients()
            self._may_leave = self._overlap.knows_all(self._gradients.slots)
        if not self._may_leave:
            return
        if not self._held:
            trained = [(p, None) for p in self._gradients.parameters if p.requires_grad]
            self._frozen = [(p, None) for p in self._gradients.missing(trained)]
            self._begin_step([(parameter, local(parameter.grad))])
        slot = self._gradients.slots[id(parameter)]
        if slot in self._early:
            raise twice(name_of(parameter, self._names))
        self._early[slot] = parameter, parameter.grad, parameter.grad._version
        pairs = [(parameter, local(parameter.grad))]
        self._gradients.check(pairs)
        self._send(pairs)

    def _make_exchange(self, parameters: list, any_may_lack_gradient: bool = False) -> None:
        """any_may_lack_gradient: the ranks agree in each step on which parameters have a gradient. DDP does so itself."""
        began = time.perf_counter()
        waiting = self._waiting or SavedState()
        self._is_alone = self._replicas() == 1
        if any_may_lack_gradient and not waiting.has_counts and rank() == 0:
            print("dptrain_comm: the saved state is from an earlier version: parameters without a gradient on any rank get zeros, "
                  "as there", file=sys.stderr, flush=True)
        self._gradients = Gradients(parameters, self._names, self._options,
                                    any_may_lack_gradient and waiting.has_counts and not self._is_alone)
        try:
            if not self._is_alone:
                self._gradients.pin()
            if self._steps is not None:
                self._steps.attach(self._gradients, self._is_alone)
            self._load(waiting)
        except Error:  # a later call must not go on without it
            self._gradients.close()
            self._gradients = None
            raise
        self._waiting = None
        if self._factor != 1.0 and not self._makes_steps():
            self._scale_kept(self._factor)
        if self._log is not None:
            self._log.begin(self.exchange, self.step, sum(p.numel() for p in parameters), time.perf_counter() - began)

    def _load(self, saved: SavedState) -> None:
        saved = saved.for_slots(self._gradients.slot_names, self._gradients.shapes)
        try:
            if saved.of_others:
                self.exchange.merge(saved.of_others)
            elif saved.exchange is not None:
                self.exchange.load(saved.exchange)
        except Error as error:
            raise StateError(str(error)) if error.code == 3 else error
        self._delivery.late = saved.late

    def _replicas(self) -> int:
        """How many ranks exchange with each other."""
        return size() // self._options.get("shards", 1)

    def _is_seen(self) -> bool:
        """Whether the exchange has anything to do: on one rank only a trace."""
        return not self._is_alone or self._trace.is_due

    def _scale_kept(self, factor: float) -> None:
        self.exchange.scale_residual(factor)
        self._delivery.scale(factor)

    def _begin_step(self, pairs: list) -> None:
        """pairs: parameters and their gradients, of which some may be None; of the hook, those of the first bucket."""
        if self._log is not None:
            self._log.step_begins()
        if self._steps is not None:
            self._steps.begin_step()
        if not self._is_seen():
            return
        factor = self._loss_scale.change(pairs)
        if factor != 1.0 and not self._makes_steps():
            self._scale_kept(factor)
        progress = -1.0 if self._total_steps is None else min(self.step / self._total_steps, 1.0)
        self.exchange.begin_step(progress)

    def _makes_steps(self) -> bool:
        return self._steps is not None and self._steps.is_any

    def _needs_all_gradients(self) -> bool:
        return self._makes_steps() and self._steps.clip_norm is not None

    def _scale(self) -> float:
        """By which gradients are larger than what is exchanged: steps do not scale with the loss."""
        return self._loss_scale.last or 1.0 if self._makes_steps() else 1.0

    def _send(self, pairs: list) -> None:
        """With clip_norm, all of the step."""
        import torch
        share, is_seen = 1.0 / (self._replicas() * self._scale()), self._is_seen()
        if self._needs_all_gradients():
            share *= self._steps.clip_factor(pairs, self._scale())
        with torch.no_grad():
            for parameter, gradient in pairs:
                slot = self._gradients.slots[id(parameter)]
                self._held.append((slot, gradient))
                if not self._is_alone:
                    has_step = self._steps is not None and self._steps.makes(parameter)
                    decay = self._steps.decay_of(parameter) / self._replicas() if has_step else 0.0
                    self._gradients.put(slot, gradient, share, decay)
                if is_seen:
                    self.exchange.ready(slot)

    def _finish_step(self) -> None:
        import torch
        before = time.perf_counter()
        self._gradients.check_that_all_are_there({slot for slot, _ in self._held})
        all_finite = self.exchange.finish_step() if self._is_seen() else True
        self.step += 1
        if self._log is not None:
            self._log.step_ends(self.exchange, self.step, before, all_finite)
        if not self._is_alone:
            with torch.no_grad():
                self._delivery.deliver(self._gradients, self._held, all_finite, self._scale())
                if self._makes_steps():
                    self._steps.delivered([(self._gradients.parameters[slot], gradient) for slot, gradient in self._held],
                                          all_finite, self._scale())
        self._held, self._early, self._may_leave = [], {}, None
        if self._trace.step_ends():
            self._write_trace()

    def _write_trace(self) -> None:
        began = time.perf_counter()
        self._trace.write(self.exchange)
        if self._log is not None:
            self._log.leave_out(time.perf_counter() - began)
