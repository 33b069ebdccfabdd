"""State: the object that the hook and allreduce_gradients() use from step to step."""
from __future__ import annotations

import contextlib
import dataclasses
import numbers
import os

from . import _ranks, _saved_state
from ._buckets import Buckets
from ._gradient_exchange import GradientExchange
from ._gradients import local
from ._library import OPTIMIZER_OPTIONS, OPTIONS, Error, Exchange, rank, size
from ._library import check as check_options
from ._overlap import Overlap
from ._run_log import RunLog
from ._saved_state import SavedState, StateError
from ._steps import Steps
from ._tensors import Tensors


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
    """The exchange is made in the first step, when all parameters are known."""

    def __init__(self, compress: str = "auto", *, total_steps: int | None = None, model=None, log: str | None = None,
                 log_steps: int = 0, about: dict | None = None, optimizer=None, clip_norm: float | None = None, **options):
        if not isinstance(compress, str):
            raise Error(2, f"init({compress!r}): the first argument is a codec, such as \"auto\", \"q8\" or \"none\"")
        for name in options:
            if name not in OPTIONS or name in OPTIMIZER_OPTIONS:
                known = sorted(set(OPTIONS) - set(OPTIMIZER_OPTIONS))
                raise Error(2, f"init(): unknown option {name}; known: {', '.join(known)}, and about, clip_norm, log, log_steps, "
                            "model, optimizer and total_steps")
        steps = _steps_of(optimizer, clip_norm)
        if steps is not None:
            options.update(steps.options())
        check_options(compress=compress, **options)
        if options.get("shards", 1) > 1 and log is not None:
            raise Error(2, f"log {log}: not available with shards")
        if options.get("shards", 1) > 1 and clip_norm is not None:
            raise Error(2, f"clip_norm {clip_norm}: with shards a rank does not see the norm of a gradient; clip after the exchange, without "
                        "optimizer")
        _check_numbers(total_steps, log, log_steps, about)
        if model is not None:
            require_model("init", model)
        _ranks.check()
        _ranks.watch(State)
        options = {"compress": compress, **options}
        names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
        run_log = None if log is None else RunLog(log, options, about or {}, log_steps)
        self._core = GradientExchange(options, total_steps, names, steps, run_log)
        self._buckets = Buckets(self._core)
        self._overlap: Overlap | None = None
        self._tensors = Tensors(options)
        if steps is not None:
            steps.watch()

    def __deepcopy__(self, memo) -> "State":
        """A copy of a model refers to the same State, since there is only one exchange."""
        return self

    def __reduce__(self):
        """A pickled model gets a new State when it is loaded. Use state_dict() for checkpoints."""
        return State, (self._core.options["compress"],)

    # ---- for users

    def allreduce_gradients(self, model) -> None:
        """Replaces each gradient of the model by the mean over all ranks. Call it after backward,
        before the optimiser's step.

        If some ranks have no gradient for a parameter, they count as zeros, and all ranks get the
        mean. If no rank has one, it stays None. Parameters may be frozen (requires_grad=False) and
        new ones may be added, on all ranks in the same step.
        """
        import torch
        require_model("allreduce_gradients", model)
        core = self._core
        core.names = {id(p): name for name, p in model.named_parameters()}
        with torch.no_grad():
            pairs = [(p, None if p.grad is None else local(p.grad)) for p in reversed(list(model.parameters()))
                     if p.requires_grad and local(p).numel() > 0]
        if core.gradients is None:
            _ranks.check()
            core.make([parameter for parameter, _ in pairs], any_may_lack_gradient=True)
        if core.held:  # some gradients were sent during backward
            for unknown in core.gradients.check(pairs):
                raise core.gradients.refuse(unknown)
            self._overlap.check_unchanged()
            pairs = [pair for pair in pairs + core.frozen if core.gradients.slots[id(pair[0])] not in self._overlap.early]
        else:
            # First, so that nothing has been sent if this fails.
            pairs = core.follow_parameters(pairs)
            core.begin_step(pairs)
        core.send(pairs)
        if core.gradients.counts is not None and core.is_seen():
            core.gradients.count(core.held)
        core.finish_step()
        if self._overlap is not None:
            self._overlap.begin_step()
            self._overlap.follow()

    def overlap(self, model) -> None:
        """From now on gradients of this module are sent while backward is running;
        allreduce_gradients() sends the rest and waits. Does nothing before PyTorch 2.1, which lacks
        the hooks."""
        if self._overlap is not None:
            self._overlap.close()
        if Overlap.is_possible(model):
            self._overlap = Overlap(model, self._core)

    def no_sync(self):
        """A context manager for all but the last backward() of a step with several, after overlap()
        or prepare()."""
        return contextlib.nullcontext() if self._overlap is None else self._overlap.no_sync()

    def all_reduce(self, tensor, name: str, compress: str = "q8"):
        """Replaces the tensor by the sum over all ranks, with the same bits on all ranks, and
        returns it. Collective, between steps.

        name: identifies the residual: it is sent with the next tensor of this name, which must have
        the same shape and codec. Each name has its own exchange, with a thread. A tensor that is
        not finite on some rank becomes NaN on all ranks.
        """
        self._tensors.reduce(tensor, name, compress, 1.0)
        return tensor

    def all_mean(self, tensor, name: str, compress: str = "q8"):
        """Like all_reduce(), but the mean."""
        self._tensors.reduce(tensor, name, compress, 1.0 / size())
        return tensor

    def broadcast(self, tensor):
        """Replaces the tensor, of any type, by an exact copy of rank 0's, and returns it.
        Collective, between steps."""
        _ranks.broadcast(tensor)
        return tensor

    def epoch(self, *, samples: int, train_loss: float = float("nan"), train_accuracy: float = float("nan"),
              test_loss: float = float("nan"), test_accuracy: float = float("nan"), learning_rate: float = float("nan"),
              data_s: float = 0.0, eval_s: float = 0.0) -> None:
        """Ends an epoch and adds its row to the run log; does nothing without `log`. Collective.

        samples: the number of this rank's images in the epoch. The losses and accuracies
        (fractions) are this rank's, too; the log has their means over ranks, weighted by samples.
        data_s: the time for which this rank waited for data. eval_s: the time since training ended,
        which is not part of the epoch, for example an evaluation.
        """
        if self._core.log is None:
            return
        if self.exchange is None:
            raise Error(2, "epoch(): no step was made yet")
        self._core.log.epoch(self.exchange, self._core.step, samples, {
            "train_loss": train_loss, "train_accuracy": train_accuracy, "test_loss": test_loss,
            "test_accuracy": test_accuracy, "learning_rate": learning_rate}, data_s, eval_s)

    @property
    def exchange(self) -> "Exchange | None":
        """For statistics(), describe() and compare(); None before the first step."""
        return self._core.exchange

    @property
    def step(self) -> int:
        """The number of steps so far."""
        return self._core.step

    def scale_residual(self, factor: float) -> None:
        """Scales residuals along with the loss: factor is the loss scale from the next step on,
        divided by the old one. Collective, between steps. Not needed with PyTorch's GradScaler,
        which is followed automatically."""
        if self._core.makes_steps():
            raise Error(2, "scale_residual(): steps of the optimizer do not depend on the scale of the loss; a GradScaler's is detected, "
                        "another one must be divided out before the exchange")
        if self._core.gradients is not None:
            self._core.scale_kept(factor)
        elif not 0.0 < factor < float("inf"):
            raise Error(2, f"a loss scale cannot become {factor} times as large; allowed: a finite number above 0")
        else:
            self._core.waiting_factor *= factor

    def state_dict(self, *, all_ranks: bool = False) -> dict:
        """For a checkpoint: the step and this rank's residuals.

        all_ranks: collective. Rank 0's dict then has the states of all ranks, for a checkpoint that
        only rank 0 writes; when it is loaded, each rank takes its own. Other ranks' dicts are
        empty.
        """
        if all_ranks:
            return self._state_of_all()
        now = self._core.waiting or SavedState()
        if self._core.gradients is not None:
            now = SavedState(exchange=self.exchange.save(), late=self._core.delivery.late, slots=self._core.gradients.slot_names)
        return dataclasses.replace(now, step=self._core.step, loss_scale=self._core.loss_scale.last,
                                   tensors={name: [saved] for name, saved in self._tensors.save().items()}).to_dict()

    def _state_of_all(self) -> dict:
        if self._core.options.get("shards", 1) > 1:
            raise Error(2, "state_dict(all_ranks=True): with shards each rank saves its own state")
        exchange = self.exchange or self._tensors.any_exchange()
        if exchange is None:
            raise Error(2, "state_dict(all_ranks=True): no step was made yet, and there is nothing to save")
        states = _saved_state.gathered(exchange, self.state_dict())
        return {"step": self._core.step, "size": size(), "ranks": states} if rank() == 0 else {}

    def load_state_dict(self, state: dict) -> None:
        """Continues from the dict of this rank's state_dict(), or of rank 0's with all_ranks. The
        latter may come from another number of ranks: rank r's residual then goes to rank r modulo
        the number of ranks. Call it on all ranks or on none, best before the first step. Raises
        StateError, with nothing changed, if the state is damaged or does not fit."""
        saved = _saved_state.checked(state)
        if self._core.gradients is None:
            self._core.waiting, self._core.waiting_factor = saved, 1.0
        else:
            if saved.exchange is None and not saved.of_others and saved.step != self._core.step:
                raise StateError(f"the state is from before the first step and has nothing for an exchange that has made {self._core.step}; "
                                 "close() this state and make a new one by init()")
            self._core.load(saved)
        self._tensors.load(saved.tensors)
        self._core.step = saved.step
        self._core.loss_scale.last = saved.loss_scale

    def close(self) -> None:
        """Ends the exchange after the training. Collective."""
        self._core.close()
        self._buckets = Buckets(self._core)
        self._tensors.close()
        if self._overlap is not None:
            self._overlap.close()

    # ---- for the hook

    def reduce_bucket(self, bucket):
        return self._buckets.reduce(bucket)

    def serve(self, ddp) -> None:
        self._buckets.serve(ddp)
