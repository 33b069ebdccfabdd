"""Follows the loss scale of PyTorch's GradScaler, so that an exchange's residuals keep the
gradient's scale.

A GradScaler multiplies the loss, and thus every gradient, by a number that changes during a
training. This module wraps the scaler's methods, also in derived classes such as FSDP's
ShardedGradScaler:

    scale()     the backward pass of the scaled loss notes the scaler. Gradient hooks of the loss
                run before the hooks of all parameters, hence before any bucket is sent
    unscale_()  notes the optimiser whose gradients are no longer scaled
    update()    ends an iteration and removes a remaining note, which comes from a training without
                an exchange
"""
from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable

from ._library import Error

_noted: list = []  # scalers of the backward passes since the last LossScale.change()
# By scaler: all that it has unscaled.
_optimizers: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


def _note(scaler, outputs):
    """Registers hooks that note the scaler in the backward pass of these scaled losses. Returns the
    losses."""
    def note(_gradient) -> None:
        if not any(one is scaler for one in _noted):
            _noted.append(scaler)

    if hasattr(outputs, "register_hook"):
        if outputs.requires_grad:
            outputs.register_hook(note)
    elif isinstance(outputs, (list, tuple)):
        for output in outputs:
            _note(scaler, output)
    elif isinstance(outputs, Iterable):  # a lazy sequence stays lazy
        return map(functools.partial(_note, scaler), outputs)
    return outputs


def _after_scale(scaler, outputs, _arguments):
    return _note(scaler, outputs) if scaler.is_enabled() else outputs


def _after_unscale(scaler, result, arguments):
    if arguments:
        _optimizers.setdefault(scaler, weakref.WeakSet()).add(arguments[0])
    return result


def _after_update(scaler, result, _arguments):
    _noted[:] = [one for one in _noted if one is not scaler]
    return result


def _wrap(kind: type) -> None:
    """Wraps the methods that this class defines itself, once; inherited ones are wrapped in the
    base class."""
    for name, after in (("scale", _after_scale), ("unscale_", _after_unscale), ("update", _after_update)):
        method = vars(kind).get(name)
        if method is None or hasattr(method, "notes_scaler"):
            continue

        @functools.wraps(method)
        def noted(self, *arguments, _method=method, _after=after, **named):
            return _after(self, _method(self, *arguments, **named), [*arguments, *named.values()])

        noted.notes_scaler = True  # type: ignore[attr-defined]
        setattr(kind, name, noted)


def _wrap_all(kind: type) -> None:
    _wrap(kind)
    for derived in kind.__subclasses__():
        _wrap_all(derived)


def watch() -> None:
    """Wraps the methods of all scaler classes, including classes derived later."""
    import torch
    for owner in (torch.cuda.amp, getattr(torch, "amp", None)):
        kind = getattr(owner, "GradScaler", None)
        if kind is None:
            continue
        _wrap_all(kind)
        if "__init_subclass__" not in vars(kind):
            def wrap_derived(cls, _kind=kind, **named) -> None:
                super(_kind, cls).__init_subclass__(**named)
                _wrap(cls)

            kind.__init_subclass__ = classmethod(wrap_derived)


def _unscaled(scaler) -> set[int]:
    """The ids of the parameters whose gradients unscale_() has divided since the last step() or
    update()."""
    states = getattr(scaler, "_per_optimizer_states", {})
    return {id(parameter) for optimizer in _optimizers.get(scaler, ())
            if id(optimizer) in states and getattr(states[id(optimizer)].get("stage"), "name", "") == "UNSCALED"
            for group in optimizer.param_groups for parameter in group["params"]}


def _is_any(gradient) -> bool:
    return gradient is not None and bool(gradient.detach().any())


class LossScale:
    """The scale of the last step's loss; 1 without a scaler."""

    def __init__(self) -> None:
        self.last: float | None = None  # before the first step
        self._scaler = None  # of the last step
        self._has_warned = False
        watch()

    def change(self, pairs: list) -> float:
        """Returns the scale of this step's loss divided by the last one's. Call it once a step,
        when its backward pass has begun.

        pairs: the exchanged parameters and gradients, as far as they are known. If all gradients
        are None or zeros, this rank may have made no backward pass while others have: the scaler of
        the last step is used.
        """
        scalers = _noted[:]
        _noted.clear()
        if not scalers and self._scaler is not None and not any(_is_any(gradient) for _, gradient in pairs):
            scalers = [self._scaler]
        parameters = [parameter for parameter, gradient in pairs if gradient is not None]
        scales = sorted({self._scale_of(scaler, parameters) for scaler in scalers} or {1.0})
        if len(scales) > 1:
            raise Error(2, f"the losses of this step have the scales {' and '.join(f'{scale:g}' for scale in scales)}: exchange the "
                        "gradients of each scaler's backward pass before the next one, or use one scaler for all")
        self._scaler = scalers[-1] if scalers else None
        last, self.last = self.last, scales[0]
        if last is None or last == self.last:
            return 1.0
        return self.last / last

    def _scale_of(self, scaler, parameters: list) -> float:
        scale = float(scaler.get_scale())
        unscaled = _unscaled(scaler)
        is_unscaled = [id(parameter) in unscaled for parameter in parameters]
        if not any(is_unscaled):
            return scale if 0.0 < scale < float("inf") else self.last or 1.0
        if not all(is_unscaled):
            raise Error(2, "some gradients of this step are scaled, and GradScaler.unscale_() has divided others: call it after "
                        "allreduce_gradients()")
        # unscale_() looks for infinities in this rank's gradient only, so ranks might decide
        # differently whether to make the step.
        if not self._has_warned:
            print("dptrain_comm: GradScaler.unscale_() was called before the exchange; call it after allreduce_gradients(), "
                  "so that all ranks see the same infinities", file=sys.stderr, flush=True)
        self._has_warned = True
        return 1.0
