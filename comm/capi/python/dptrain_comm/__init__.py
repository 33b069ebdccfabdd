"""dptrain's exchange of gradients for PyTorch: compressed for slow networks, with two more lines in a program.

With DistributedDataParallel, started by mpirun:

    state = dptrain_comm.init("auto")
    ddp.register_comm_hook(state, dptrain_comm.hook)

Without it:

    state = dptrain_comm.init("auto")
    dptrain_comm.broadcast_parameters(model)
    ...
    loss.backward()
    state.allreduce_gradients(model)        # each gradient becomes the mean of all ranks'
    optimizer.step()

or, for the defaults, dptrain_comm.allreduce_gradients(model) without a state.

What compresses how is said by `dptrain --help` and in dptrain_comm.h, whose functions this module calls.
"""
from __future__ import annotations

import ctypes
import functools
import sys
import time
from collections.abc import Callable

from ._library import OPTIONS as _OPTIONS
from ._library import Error, Exchange, Slot, finalize, process_group_address, rank, size, start, version
from ._library import broadcast as _broadcast
from ._library import check as _check_options
from ._library import is_child as _is_child
from ._loss_scale import LossScale as _LossScale
from ._run_log import RunLog as _RunLog

__all__ = ["Error", "Exchange", "Slot", "State", "allreduce_gradients", "broadcast_parameters", "finalize", "hook", "init",
           "init_process_group", "rank", "size", "start", "version"]


_COUNTS = "number of ranks with a gradient"  # a slot


def init(compress: str = "auto", **options) -> "State":
    """Starts MPI, if the program has not, and makes the state of hook() and allreduce_gradients().

    options: topology, exact (names of parameters that are sent in fp32, with * and ?), seed, bucket_bytes, timeout_s,
    link_bit_per_s (dptrain_comm_options in dptrain_comm.h);
    total_steps: how many steps the training has, so that ecq:bits=X spends more bits at its beginning;
    model: whose parameters have the names that messages and `exact` use;
    log: the name of a new file for the run log, to which State.epoch() adds a row (needs h5py);
    log_steps: N, and every N-th step has a row there, too;
    trace: the name of a new file that shows what all ranks do when, for ui.perfetto.dev;
    trace_first, trace_steps: its steps, 20 after the first 5;
    about: what else the log says of the run, such as {"model": "resnet20", "dataset": "cifar10", "epochs": 5}.
    """
    start()
    if _is_child():  # a worker that imports the script: its state is never used
        options.pop("log", None), options.pop("log_steps", None)
    return State(compress, **options)


def init_process_group(backend: str = "gloo", **arguments) -> None:
    """torch.distributed.init_process_group() for the ranks that mpirun has started, which DDP needs."""
    import torch.distributed
    start()
    if _is_child():
        return
    torch.distributed.init_process_group(backend, init_method=f"tcp://{process_group_address()}", rank=rank(),
                                         world_size=size(), **arguments)


_default_state = None


def allreduce_gradients(model, state: "State | None" = None) -> None:
    """State.allreduce_gradients() of that state; without one, of a state that the first call makes by init()."""
    global _default_state
    if state is None:
        if _default_state is None:
            _default_state = init()
        state = _default_state
    state.allreduce_gradients(model)


def broadcast_parameters(model) -> None:
    """Rank 0's parameters and buffers on all ranks. Before the first step."""
    import torch
    start()
    if _is_child():
        return
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            values = tensor.detach().cpu().contiguous()
            if values.numel() > 0:
                _broadcast(values.data_ptr(), values.numel() * values.element_size())
                tensor.copy_(values)


def hook(state: "State", bucket):
    """DistributedDataParallel's communication hook: a bucket leaves while backward goes on, with DDP's bucket_cap_mb of 1 or
    less sooner than with its default.

    The last bucket's call waits for all sums, since backward ends there.
    """
    if not isinstance(state, State):
        raise Error(2, f"hook() got {state!r}, no state: ddp.register_comm_hook(dptrain_comm.init(...), dptrain_comm.hook)")
    return state.reduce_bucket(bucket)


def _pin(values: list, device) -> Callable[[], None] | None:
    """Locks the floats of an exchange in memory, from and to which that GPU then copies at full speed. Returns what undoes it, or
    None where the driver refuses; copies then work all the same.
    """
    import torch
    first = min(tensor.data_ptr() for tensor in values)
    end = max(tensor.data_ptr() + tensor.numel() * tensor.element_size() for tensor in values)
    if int(torch.cuda.cudart().cudaHostRegister(first, end - first, 0)) == 0:
        return lambda: torch.cuda.cudart().cudaHostUnregister(first)
    try:  # CUDA keeps the error until somebody asks, which would be the program's next kernel
        torch.ones(1, device=device)
    except RuntimeError:
        pass
    return None


def _checked_state(state) -> tuple[int, bytes | None]:
    """Step and exchange of a state_dict() of this rank. States of earlier versions do not say whose they are."""
    import torch
    if not isinstance(state, dict) or "step" not in state or "exchange" not in state:
        has = f"this is a {type(state).__name__}" if not isinstance(state, dict) else f"this has {', '.join(map(str, state))}" if state else "this is empty"
        raise Error(3, f"load_state_dict() needs what state_dict() of this rank has returned, with step and exchange; {has}")
    step, saved = state["step"], state["exchange"]
    if not isinstance(step, int) or step < 0 or not (saved is None or isinstance(saved, torch.Tensor)):
        raise Error(3, f"load_state_dict(): step is {step!r} and exchange a {type(saved).__name__}; a whole number and a tensor or "
                    "None are allowed")
    of_rank, of_size = state.get("rank", rank()), state.get("size", size())
    if (of_rank, of_size) != (rank(), size()):
        raise Error(3, f"load_state_dict(): the state is that of rank {of_rank} of {of_size}, and this is rank {rank()} of {size()}: "
                    "each rank loads the state that it has saved; with another number of ranks, none does")
    return step, None if saved is None else saved.cpu().numpy().tobytes()


def _check_ranks(group=None) -> None:
    """The ranks of torch.distributed, or of a group of it, must be those of the exchange, which mpirun has started."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized() or _is_child():
        return
    torchs, mine = (distributed.get_rank(group), distributed.get_world_size(group)), (rank(), size())
    if torchs != mine:
        name = "torch.distributed" if group is None else "DistributedDataParallel's process_group"
        raise Error(2, f"this process is rank {torchs[0]} of {torchs[1]} in {name}, and rank {mine[0]} of {mine[1]} in the exchange, "
                    "which has all ranks of mpirun: start the program by mpirun -np N python3 train.py, with "
                    "dptrain_comm.init_process_group() and without a process_group of fewer ranks")


def _watch_groups() -> None:
    """Wraps DDP's register_comm_hook, once: a hook does not see whose process group it serves."""
    from torch.nn.parallel import DistributedDataParallel
    register = DistributedDataParallel.register_comm_hook
    if hasattr(register, "checks_ranks"):
        return

    @functools.wraps(register)
    def checked(self, state, hook, *arguments, **named):
        if isinstance(state, State):
            _check_ranks(self.process_group)
        return register(self, state, hook, *arguments, **named)

    checked.checks_ranks = True  # type: ignore[attr-defined]
    DistributedDataParallel.register_comm_hook = checked


class State:
    """What is kept from step to step. Its exchange is made in the first step, when all parameters are known."""

    def __init__(self, compress: str = "auto", *, total_steps: int | None = None, model=None, log: str | None = None,
                 log_steps: int = 0, about: dict | None = None, **options):
        if not isinstance(compress, str):
            raise Error(2, f"init({compress!r}): the first argument is a codec, such as \"auto\", \"q8\" or \"none\"")
        if total_steps is not None and total_steps < 1:
            raise Error(2, f"total_steps {total_steps}: must be 1 or more")
        for name in options:
            if name not in _OPTIONS:
                raise Error(2, f"init() knows no option {name}; it knows {', '.join(sorted(_OPTIONS))}, and its own ones")
        _check_options(compress=compress, **options)
        if log_steps < 0 or (log_steps > 0 and log is None):
            raise Error(2, f"log_steps {log_steps}: must be 1 or more, and needs log")
        if "torch" in sys.modules and sys.modules["torch"].distributed.is_available():
            _check_ranks()
            _watch_groups()
        self._options = {"compress": compress, **options}
        self._total_steps = total_steps
        self._names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
        self._exchange: Exchange | None = None
        self._parameters: list = []  # keeps them alive, so that their ids stay theirs
        self._slots: dict[int, int] = {}  # by id of the parameter
        self._values: list = []
        self._held: list = []  # of this step: (parameter or its slot, gradient or None)
        self._counts: torch.Tensor | None = None  # by slot: how many ranks have a gradient, in an exchange of allreduce_gradients()
        self._used: set[int] = set()  # slots for which some rank had a gradient in some step
        self._late: dict = {}  # by slot: what codecs have delivered since some rank had a gradient
        self._futures: list = []
        self._saved: bytes | None = None
        self._is_saved_with_counts = True  # not in states of allreduce_gradients() of earlier versions
        self._loss_scale = _LossScale()
        self._factor = 1.0  # of what was saved, for an exchange that is not there yet
        self._is_alone = False  # one rank: its gradient is the sum already
        self.step = 0
        self._log = None if log is None else _RunLog(log, self._options, about or {}, log_steps)
        self._steps_of_trace = 0  # that are still to come
        self._is_trace_due = False

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
        without.
        """
        self._names = {id(p): name for name, p in model.named_parameters()}
        pairs = [(p, p.grad) for p in reversed(list(model.parameters())) if p.requires_grad and p.numel() > 0]
        if self._exchange is None:
            _check_ranks()
            self._make_exchange([parameter for parameter, _ in pairs], any_may_lack_gradient=True)
        # Before anything leaves, so that nothing is on its way when this fails.
        self._check(pairs)
        self._check_that_all_are_there({self._slots[id(parameter)] for parameter, _ in pairs})
        self._begin_step(pairs)
        self._send(pairs)
        self._finish_step()

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
        if self._exchange is None:
            raise Error(2, "epoch(): no step was made yet")
        self._log.epoch(self._exchange, self.step, samples, {
            "train_loss": train_loss, "train_accuracy": train_accuracy, "test_loss": test_loss,
            "test_accuracy": test_accuracy, "learning_rate": learning_rate}, data_s, eval_s)

    @property
    def exchange(self) -> "Exchange | None":
        """For statistics(), describe() and compare(); None before the first step."""
        return self._exchange

    def scale_residual(self, factor: float) -> None:
        """The loss has another scale from the next step on: factor is the new one over the old one. What is kept of earlier
        steps follows. Collective, between steps. For a PyTorch GradScaler this comes by itself."""
        if self._exchange is not None:
            self._scale_kept(factor)
        elif not 0.0 < factor < float("inf"):
            raise Error(2, f"a loss scale cannot become {factor} times as large; allowed: a finite number above 0")
        else:
            self._factor *= factor

    def state_dict(self) -> dict:
        """For this rank's checkpoint: what codecs have not sent yet, and the step. Each rank has its own."""
        import torch
        saved = self._exchange.save() if self._exchange else self._saved
        return {"step": self.step, "exchange": torch.frombuffer(bytearray(saved), dtype=torch.uint8) if saved else None,
                "rank": rank(), "size": size(), "loss_scale": self._loss_scale.last,
                "late": {slot: values.clone() for slot, values in self._late.items()}}

    def load_state_dict(self, state: dict) -> None:
        """What this rank's state_dict() has returned. On all ranks, or on none; best before the first step."""
        step, saved = _checked_state(state)
        if self._exchange is not None:
            if saved is None and step != self.step:
                raise Error(3, f"the saved state is from before the first step and has nothing for an exchange that has made "
                            f"{self.step}; close() this state and make a new one by init()")
            if saved is not None:
                self._exchange.load(saved)
        else:
            self._saved, self._factor = saved, 1.0
            self._is_saved_with_counts = "late" in state
        self._late = {slot: values.clone() for slot, values in state.get("late", {}).items()}
        self.step = step
        self._loss_scale.last = state.get("loss_scale")

    def close(self) -> None:
        """The training is complete. Collective."""
        if self._is_trace_due and self._exchange:
            self._write_trace()
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._exchange:
            self._values, self._counts = [], None
            self._exchange.close()
            self._exchange = None

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
            _check_ranks()
        pairs = [(p, g) for p, g in zip(parameters, gradients) if p.numel() > 0]
        if self._exchange is not None:
            if bucket.index() == 0:
                self._begin_step()
            self._send(pairs)
        else:
            # In the first step DDP has one bucket, or several, with parameters in the order of forward. Later on it has
            # them as backward makes their gradients, and so must the exchange, or nothing leaves before the end.
            self._held += reversed(pairs)
        if not bucket.is_last():
            return future
        if self._exchange is None:
            held, self._held = self._held, []
            self._make_exchange([parameter for parameter, _ in held])
            self._begin_step()
            self._send(held)
        self._finish_step()
        futures, self._futures = self._futures, []
        for waiting, buffer in futures:
            waiting.set_result(buffer)
        return future

    def _make_exchange(self, parameters: list, any_may_lack_gradient: bool = False) -> None:
        """any_may_lack_gradient: the ranks agree in each step on which parameters have a gradient. DDP does so itself."""
        import torch
        began = time.perf_counter()
        slots = []
        for number, parameter in enumerate(parameters):
            if parameter.is_complex():
                raise Error(2, f"{self._name(parameter)} is complex; gradients are exchanged as real numbers of 32 bits")
            rows = parameter.shape[0] if parameter.dim() > 1 else 1
            slots.append(Slot(self._names.get(id(parameter), f"parameter {number}"), rows, parameter.numel() // max(rows, 1),
                              parameter.dim() < 2))
        self._is_alone = size() == 1
        options = dict(self._options)
        counts = len(slots)
        has_counts = any_may_lack_gradient and not self._is_alone and self._is_saved_with_counts
        if has_counts:
            slots.append(Slot(_COUNTS, 1, counts, True))
            exact = options.get("exact") or []
            options["exact"] = [*([exact] if isinstance(exact, str) else exact), _COUNTS]
        elif not self._is_saved_with_counts and any_may_lack_gradient and rank() == 0:
            print("dptrain_comm: the saved state is from an earlier version: parameters without a gradient on any rank get zeros, "
                  "as there", file=sys.stderr, flush=True)
        self._exchange = Exchange(slots, **options)
        self._parameters = parameters
        self._slots = {id(parameter): slot for slot, parameter in enumerate(parameters)}
        self._values = [self._floats(slot, p.numel()).view(p.shape) for slot, p in enumerate(parameters)]
        self._counts = self._floats(counts, counts) if has_counts else None
        devices = [parameter.device for parameter in parameters if parameter.is_cuda]
        if devices and not self._is_alone:
            self._exchange.before_close = _pin(self._values, devices[0])
        if self._saved:
            self._exchange.load(self._saved)
            self._saved = None
        if self._factor != 1.0:
            self._scale_kept(self._factor)
        if self._log is not None:
            self._log.begin(self._exchange, self.step, sum(p.numel() for p in parameters), time.perf_counter() - began)
        if self._options.get("trace"):
            self._is_trace_due = True
            self._steps_of_trace = self._options.get("trace_first", 5) + self._options.get("trace_steps", 20)

    def _floats(self, slot: int, count: int):
        import torch
        return torch.frombuffer((ctypes.c_float * count).from_address(self._exchange.address(slot)), dtype=torch.float32)

    def _name(self, parameter) -> str:
        return f"the parameter {self._names.get(id(parameter), 'of the shape ' + str(list(parameter.shape)))}"

    def _is_seen(self) -> bool:
        """Whether the exchange has anything to do: on one rank only a trace."""
        return not self._is_alone or self._is_trace_due

    def _scale_kept(self, factor: float) -> None:
        self._exchange.scale_residual(factor)
        for values in self._late.values():
            values *= factor

    def _begin_step(self, pairs: list | None = None) -> None:
        """pairs: parameters and their gradients, of which some may be None."""
        if self._log is not None:
            self._log.step_begins()
        if not self._is_seen():
            return
        factor = self._loss_scale.change()
        if factor != 1.0:
            self._scale_kept(factor)
        progress = -1.0 if self._total_steps is None else min(self.step / self._total_steps, 1.0)
        self._exchange.begin_step(progress)
        if self._counts is not None:
            self._counts.fill_(1.0)
            for parameter, gradient in pairs or []:
                if gradient is None:
                    self._counts[self._slots[id(parameter)]] = 0.0
            self._exchange.ready(len(self._slots))

    def _check(self, pairs: list) -> None:
        import torch
        for parameter, gradient in pairs:
            if id(parameter) not in self._slots:
                raise Error(2, f"{self._name(parameter)} was not there in the first step; the exchange needs the same ones always")
            if gradient is not None and gradient.layout != torch.strided:
                raise Error(2, f"{self._name(parameter)} has a sparse gradient; the exchange needs dense ones (sparse=False)")

    def _check_that_all_are_there(self, slots: set[int]) -> None:
        if len(slots) < len(self._slots):
            missing = self._parameters[min(set(range(len(self._slots))) - slots)]
            raise Error(2, f"{self._name(missing)} has no gradient in this step, and had one in the first; the exchange needs "
                        "the same ones always")

    def _send(self, pairs: list) -> None:
        import torch
        self._check(pairs)
        share, is_seen = 1.0 / size(), self._is_seen()
        with torch.no_grad():
            for parameter, gradient in pairs:
                slot = self._slots[id(parameter)]
                self._held.append((slot, gradient))
                if not self._is_alone:
                    values = self._values[slot]
                    if gradient is None:
                        values.zero_()
                    elif gradient.device.type == "cpu" and gradient.dtype == torch.float32:
                        torch.mul(gradient, share, out=values)
                    else:
                        values.copy_(gradient).mul_(share)
                if is_seen:
                    self._exchange.ready(slot)

    def _finish_step(self) -> None:
        import torch
        before = time.perf_counter()
        self._check_that_all_are_there({slot for slot, _ in self._held})
        all_finite = self._exchange.finish_step() if self._is_seen() else True
        self.step += 1
        if self._log is not None:
            self._log.step_ends(self._exchange, self.step, before, all_finite)
        if not self._is_alone:
            with torch.no_grad():
                self._deliver(all_finite)
        self._held = []
        self._steps_of_trace -= 1
        if self._steps_of_trace == 0 and self._is_trace_due:
            self._write_trace()

    def _deliver(self, all_finite: bool) -> None:
        import torch
        counts = [1.0] * len(self._slots) if self._counts is None else self._counts.tolist()
        if all_finite:
            self._used.update(slot for slot, count in enumerate(counts) if count > 0.0)
        for slot, gradient in self._held:
            values = self._values[slot]
            if gradient is None and slot not in self._used:
                continue
            if all_finite and counts[slot] == 0.0:
                # The codec delivers what is left of earlier steps; the next gradient has it.
                if values.any():
                    self._late[slot] = self._late[slot] + values if slot in self._late else values.clone()
                continue
            if gradient is None:
                gradient = self._parameters[slot].grad = torch.empty_like(self._parameters[slot])
            if not all_finite:  # all ranks must see that the step is to be skipped, as gradient scalers do
                gradient.fill_(float("nan"))
            elif slot in self._late:
                gradient.copy_(values + self._late.pop(slot))
            else:
                gradient.copy_(values)

    def _write_trace(self) -> None:
        """A trace that cannot be written ends nothing; close() tries again."""
        began = time.perf_counter()
        try:
            self._exchange.write_trace()
            self._is_trace_due = False
        except Error as error:
            if error.code != 3:
                raise
            if rank() == 0:
                print(f"dptrain_comm: {error}; training goes on", file=sys.stderr, flush=True)
        if self._log is not None:
            self._log.leave_out(time.perf_counter() - began)
