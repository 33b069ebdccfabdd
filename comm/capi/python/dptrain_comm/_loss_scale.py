"""Follows the loss scale of PyTorch's GradScaler, so that what an exchange keeps from earlier steps has the gradient's scale.

A GradScaler multiplies the loss, and with it every gradient, by a number that it changes during a training. Its method
scale() is wrapped, so that the backward pass of a scaled loss leaves a note of the scaler. Gradient hooks of that loss run
before those of all parameters, and so before any bucket leaves.
"""
from __future__ import annotations

import functools
import sys

_scaler = None  # of the last backward pass, until LossScale.change() takes it


def _note(scaler, outputs) -> None:
    """The backward pass of these tensors, which the scaler has multiplied, is one of a scaled loss."""
    def note(_gradient) -> None:
        global _scaler
        _scaler = scaler

    for output in (outputs if isinstance(outputs, (tuple, list)) else [outputs]):
        if hasattr(output, "register_hook") and output.requires_grad:
            output.register_hook(note)


def watch() -> None:
    """Wraps scale() of PyTorch's scalers, once."""
    import torch
    for owner in (torch.cuda.amp, getattr(torch, "amp", None)):
        kind = getattr(owner, "GradScaler", None)
        scale = vars(kind).get("scale") if kind is not None else None
        if scale is None or hasattr(scale, "notes_scaler"):  # later ones inherit it
            continue

        @functools.wraps(scale)
        def noted(self, outputs, _scale=scale):
            scaled = _scale(self, outputs)
            if self.is_enabled():
                _note(self, scaled)
            return scaled

        noted.notes_scaler = True  # type: ignore[attr-defined]
        kind.scale = noted


def _has_unscaled(scaler) -> bool:
    stages = [getattr(state.get("stage"), "name", "") for state in getattr(scaler, "_per_optimizer_states", {}).values()]
    return "UNSCALED" in stages


class LossScale:
    """The scale of the last step's loss; 1 without a scaler."""

    def __init__(self) -> None:
        self.last: float | None = None  # before the first step
        self._has_warned = False
        watch()

    def change(self) -> float:
        """The scale of this step's loss over that of the last one. Once a step, when its backward pass has begun."""
        global _scaler
        scaler, _scaler = _scaler, None
        if scaler is not None and _has_unscaled(scaler):
            # Each rank would decide by its own gradient alone whether to make the step.
            if not self._has_warned:
                print("dptrain_comm: GradScaler.unscale_() was called before the exchange; call it after allreduce_gradients(), "
                      "so that all ranks see the same infinities", file=sys.stderr, flush=True)
            self._has_warned = True
            scaler = None
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        last, self.last = self.last, scale
        return 1.0 if last is None or last == scale or not 0.0 < scale < float("inf") else scale / last
