"""Copies an exchange's sums into the gradients, some of which may be None."""
from __future__ import annotations

from ._gradients import Gradients, local


class Delivery:
    """A gradient that is None on all ranks stays None. If it is None on some ranks only, they count
    as zeros, and all ranks get the mean.

    A codec delivers residuals of earlier steps even if no rank has a gradient. These values wait in
    `late` for the next gradient.
    """

    def __init__(self) -> None:
        self.late: dict = {}  # tensors by slot
        self._used: set[int] = set()  # slots for which some rank had a gradient in some step

    def scale(self, factor: float) -> None:
        for values in self.late.values():
            values *= factor

    def deliver(self, gradients: Gradients, held: list, all_finite: bool, scale: float = 1.0) -> None:
        """held: slots and this rank's gradients, or None. scale: a factor of exchanged values."""
        import torch
        counts = [1.0] * len(gradients.slots)
        if gradients.counts is not None:
            counts = gradients.counts.tolist()
        else:
            for slot in (slot for slot, gradient in held if gradient is None):  # frozen
                counts[slot] = 0.0
        if all_finite:
            self._used.update(slot for slot, count in enumerate(counts) if count > 0.0)
        for slot, gradient in held:
            values = gradients.values[slot]
            # Includes residuals from a checkpoint that are delivered before the first gradient.
            if gradient is None and not all_finite and (slot not in self._used or not gradients.parameters[slot].requires_grad):
                continue
            if all_finite and counts[slot] == 0.0:
                if values.any():
                    self.late[slot] = self.late[slot] + values if slot in self.late else values.clone()
                continue
            parameter = gradients.parameters[slot]
            if gradient is None or (gradient is parameter.grad and 0 in gradient.stride() and gradient.numel() > 1):
                # An expanded gradient cannot be written: it has one value in several places.
                parameter.grad = torch.empty_like(parameter, dtype=None if gradient is None else gradient.dtype)
                gradient = local(parameter.grad)
            if not all_finite:  # makes gradient scalers on all ranks skip the step
                gradient.fill_(float("nan"))
            else:
                gradient.copy_(values + self.late.pop(slot) if slot in self.late else values)
                if scale != 1.0:
                    gradient.mul_(scale)
