"""The dict that State.state_dict() returns and State.load_state_dict() takes. It is checked before
anything is changed.

    step        the number of steps so far
    exchange    the library's state (dptrain_comm_save_state), as bytes in a tensor; None before the
                first step
    rank, size  of the rank that has saved it; states of the first version lack these and all below
    loss_scale  of the last step; None before the first one
    slots       the parameters' names
    late        by slot: values that wait for the slot's next gradient (_delivery.py)
    tensors     by name: the library's states for State.all_reduce() and all_mean()

With all_ranks, rank 0's dict has instead:

    step, size
    ranks       each rank's dict, as torch.save() writes it, in a tensor of bytes
"""
from __future__ import annotations

import ctypes
import dataclasses
import io
import math
import operator

from ._library import Error, Exchange, rank, size

_MARK = b"dptrain_comm state "  # every state of the library begins so


class StateError(Error, ValueError):
    """A saved state is damaged or does not fit."""

    def __init__(self, message: str):
        super().__init__(3, f"load_state_dict(): {message}")


@dataclasses.dataclass
class SavedState:
    """A state to continue from; by default the state before the first step."""

    step: int = 0
    exchange: bytes | None = None
    # Instead of exchange: states to be merged.
    of_others: list = dataclasses.field(default_factory=list)
    loss_scale: float | None = None
    late: dict = dataclasses.field(default_factory=dict)  # the same on all ranks
    slots: list = dataclasses.field(default_factory=list)  # names; empty if the state lacks them
    tensors: dict = dataclasses.field(default_factory=dict)  # by name, for Tensors.load()
    has_counts: bool = True  # of gradients; False for states of the first version

    def to_dict(self) -> dict:
        import torch
        if self.of_others:
            raise Error(2, "state_dict(): the state that was loaded is of another number of ranks and becomes this one's in the next "
                        "step; save it after that")
        return {"step": self.step,
                "exchange": torch.frombuffer(bytearray(self.exchange), dtype=torch.uint8) if self.exchange else None,
                "rank": rank(), "size": size(), "loss_scale": self.loss_scale,
                "slots": list(self.slots),
                "late": {slot: values.clone() for slot, values in self.late.items()},
                "tensors": {name: torch.frombuffer(bytearray(saved[0]), dtype=torch.uint8) for name, saved in self.tensors.items()}}

    def for_slots(self, names: list, shapes: list) -> "SavedState":
        """This state for the exchange's parameters, which may differ from the saved ones, also in
        their order."""
        if not self.slots or self.slots == names:
            self._check_shapes(shapes)
            return self
        late = {names.index(self.slots[slot]): values for slot, values in self.late.items()
                if slot < len(self.slots) and self.slots[slot] in names}
        late = {slot: values for slot, values in late.items() if values.shape == shapes[slot]}
        own = self.of_others or ([self.exchange] if self.exchange else [])
        return dataclasses.replace(self, exchange=None, of_others=own, late=late, slots=names)

    def _check_shapes(self, shapes: list) -> None:
        for slot, values in self.late.items():
            if slot >= len(shapes):
                raise StateError(f"late has values for slot {slot}; the exchange has the slots 0 to {len(shapes) - 1}")
            if values.shape != shapes[slot]:
                raise StateError(f"late has values of the shape {list(values.shape)} for slot {slot}; its parameter has the shape "
                                 f"{list(shapes[slot])}")


def _described(value) -> str:
    """Describes a value briefly: a tensor or a dict may be as large as a model."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"a {type(value).__name__} of {value.dtype} and the shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__} of {len(text)} characters"


def _whole(state: dict, name: str, default: int) -> int:
    value = state.get(name, default)
    try:
        number = operator.index(value)  # works for NumPy and one-value tensors, too
    except (TypeError, RuntimeError, ValueError):
        number = -1
    if isinstance(value, bool) or number < 0:
        raise StateError(f"{name} is {_described(value)}; allowed: a whole number, 0 or more")
    return number


def _exchange(value) -> bytes | None:
    import torch
    if value is None:
        return None
    if not isinstance(value, torch.Tensor) or value.dtype != torch.uint8 or value.dim() != 1 or value.is_meta:
        raise StateError(f"exchange is {_described(value)}; allowed: None, or a tensor of torch.uint8 with one dimension")
    values = value.detach().cpu().contiguous()
    saved = ctypes.string_at(values.data_ptr(), values.numel()) if values.numel() > 0 else b""
    if not saved.startswith(_MARK):
        raise StateError(f"exchange has {len(saved)} bytes that are not a saved state of an exchange; allowed: the result of "
                         "this rank's state_dict()")
    return saved


def _loss_scale(value) -> float | None:
    if value is None:
        return None
    try:
        scale = float(value)
    except (TypeError, RuntimeError, ValueError):
        scale = math.nan
    if isinstance(value, (bool, str, bytes)) or not 0.0 < scale < math.inf:
        raise StateError(f"loss_scale is {_described(value)}; allowed: None, or a finite number above 0")
    return scale


def _late(value) -> dict:
    import torch
    if not isinstance(value, dict):
        raise StateError(f"late is {_described(value)}; allowed: a dict of tensors by slot")
    for slot, values in value.items():
        if isinstance(slot, bool) or not isinstance(slot, int) or slot < 0:
            raise StateError(f"late has the key {_described(slot)}; allowed: the number of a slot, 0 or more")
        is_dense = isinstance(values, torch.Tensor) and values.dtype == torch.float32 and values.layout == torch.strided
        if not is_dense or values.is_meta or not torch.isfinite(values).all():
            raise StateError(f"late has {_described(values)} for slot {slot}; allowed: a dense tensor of torch.float32 with finite "
                             "values")
    return {slot: values.detach().cpu().clone() for slot, values in value.items()}


def _slots(value) -> list:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise StateError(f"slots is {_described(value)}; allowed: a list of the parameters' names")
    return list(value)


def _tensors(value) -> dict:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise StateError(f"tensors is {_described(value)}; allowed: a dict of saved states by name")
    states = {name: _exchange(saved) for name, saved in value.items()}
    return {name: [saved] for name, saved in states.items() if saved}


def gathered(exchange: Exchange, state: dict) -> list:
    """All ranks' states on rank 0, each as bytes in a tensor; an empty list on other ranks.
    Collective."""
    import torch
    if state["loss_scale"] is not None:  # PyTorch 1 loads no plain numbers with weights_only
        state = {**state, "loss_scale": torch.tensor(state["loss_scale"], dtype=torch.float64)}
    written = io.BytesIO()
    torch.save(state, written)
    return [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in exchange.gather_bytes(written.getvalue())]


def _unpacked(value, of_rank: int) -> dict:
    """Unpacks one rank's state of the list of all ranks' states."""
    import torch
    if not isinstance(value, torch.Tensor) or value.dtype != torch.uint8 or value.dim() != 1 or value.is_meta:
        raise StateError(f"ranks has {_described(value)} for rank {of_rank}; allowed: a tensor of torch.uint8 with one dimension")
    try:
        return torch.load(io.BytesIO(value.detach().cpu().contiguous().numpy().tobytes()), weights_only=True)
    except Exception as error:  # zipfile, pickle and PyTorch raise many kinds
        raise StateError(f"the state of rank {of_rank} is damaged or cut off ({type(error).__name__})") from None


def _own_of(state: dict) -> SavedState:
    """This rank's state from the dict of all ranks' states. If that has another number of ranks,
    all of them, to be merged."""
    states = state["ranks"]
    if not isinstance(states, (list, tuple)) or not states:
        raise StateError(f"ranks is {_described(states)}; allowed: a list of every rank's state, as state_dict(all_ranks=True) of rank 0 "
                         "has returned")
    if len(states) == size():
        return _checked_of(_unpacked(states[rank()], rank()), rank(), size())
    every = [_checked_of(_unpacked(one, r), r, len(states)) for r, one in enumerate(states)]
    own = [saved.exchange for saved in every]
    tensors = {name: [one for saved in every for one in saved.tensors.get(name, [])] for name in every[0].tensors}
    return dataclasses.replace(every[0], exchange=None, of_others=own if all(own) else [], tensors=tensors)


def _checked_of(state, of_rank: int, of_size: int) -> SavedState:
    """The checked state. Raises StateError unless rank `of_rank` of `of_size` has saved it."""
    if not isinstance(state, dict) or "step" not in state or "exchange" not in state:
        has = (f"this is {_described(state)}" if not isinstance(state, dict) else
               f"this has {', '.join(map(str, list(state)[:10]))}" if state else "this is empty")
        raise StateError(f"it needs the dict of this rank's state_dict(), with step and exchange; {has}")
    its_rank, its_size = _whole(state, "rank", of_rank), _whole(state, "size", of_size)
    if (its_rank, its_size) != (of_rank, of_size):
        raise StateError(f"the state belongs to rank {its_rank} of {its_size}, but this is rank {of_rank} of {of_size}: each rank must load "
                         "its own state. To continue with another number of ranks, save with state_dict(all_ranks=True)")
    return SavedState(step=_whole(state, "step", 0), exchange=_exchange(state["exchange"]),
                      loss_scale=_loss_scale(state.get("loss_scale")), late=_late(state.get("late", {})), slots=_slots(state.get("slots", [])),
                      tensors=_tensors(state.get("tensors", {})), has_counts="late" in state)


def checked(state) -> SavedState:
    """The checked state of this rank. Raises StateError unless `state` is from this rank's
    state_dict(), or from rank 0's with all_ranks."""
    if isinstance(state, dict) and "ranks" in state:
        return _own_of(state)
    return _checked_of(state, rank(), size())
