"""Sums of tensors other than a step's gradients, for example changes of parameters."""
from __future__ import annotations

import ctypes

from ._library import Error, Exchange, Slot, check, size


class Tensors:
    """Tensors by name. Each name has its own exchange, which keeps the codec's state."""

    def __init__(self, options: dict):
        self._options = {name: value for name, value in options.items() if name in ("seed", "timeout_s", "link_bit_per_s")}
        self._made: dict[str, tuple] = {}  # exchange, its values, codec
        # States for later exchanges; several: to be merged.
        self._saved: dict[str, list[bytes]] = {}

    def reduce(self, tensor, name: str, compress: str, share: float) -> bool:
        """Replaces the tensor by the sum over ranks of share * tensor. Returns whether all ranks'
        values were finite; if not, the tensor becomes NaN."""
        import torch
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.numel() == 0:
            raise Error(2, f"{name}: must be a dense tensor of floating point with values")
        if size() == 1:
            return bool(tensor.isfinite().all())
        with torch.no_grad():
            exchange, values = self._of(name, tensor, compress)
            values.copy_(tensor).mul_(share)
            exchange.begin_round()
            exchange.ready(0)
            is_finite = exchange.finish_step()
            tensor.copy_(values) if is_finite else tensor.fill_(float("nan"))
        return is_finite

    def _of(self, name: str, tensor, compress: str) -> tuple:
        import torch
        if not isinstance(name, str) or not name:
            raise Error(2, f"name {name!r}: must be text, the same on all ranks; it identifies the tensor's residual in later calls")
        if name in self._made:
            exchange, values, codec = self._made[name]
            if values.shape != tensor.shape or codec != compress:
                raise Error(2, f"{name} has had the shape {list(values.shape)} and the codec {codec}, and now {list(tensor.shape)} and "
                            f"{compress}: another tensor needs another name")
            return exchange, values
        if compress.partition(":")[0] == "auto":
            raise Error(2, f"{name}: {compress} follows the link from step to step; name a codec, such as q8 or ecq:bits=0.5")
        check(compress=compress, **self._options)
        rows = tensor.shape[0] if tensor.dim() > 1 else 1
        # is_1d=False: the tensor gets the wanted codec even if it has only one dimension.
        exchange = Exchange([Slot(name, rows, tensor.numel() // rows, False)], compress, **self._options)
        values = torch.frombuffer((ctypes.c_float * tensor.numel()).from_address(exchange.address(0)), dtype=torch.float32).view(tensor.shape)
        try:
            saved = self._saved.get(name, [])
            if len(saved) == 1:
                exchange.load(saved[0])
            elif saved:
                exchange.merge(saved)
        except Error:
            exchange.close()
            raise
        self._saved.pop(name, None)
        self._made[name] = exchange, values, compress
        return exchange, values

    def any_exchange(self) -> "Exchange | None":
        return next((exchange for exchange, _, _ in self._made.values()), None)

    def save(self) -> dict[str, bytes]:
        other = [name for name, saved in self._saved.items() if len(saved) > 1]
        if other:
            raise Error(2, f"state_dict(): {other[0]} has the states of another number of ranks until its next all_mean() or all_reduce(); "
                        "save it after that")
        waiting = {name: saved[0] for name, saved in self._saved.items()}
        return {**waiting, **{name: exchange.save() for name, (exchange, _, _) in self._made.items()}}

    def load(self, saved: dict[str, list[bytes]]) -> None:
        """saved: by name, this rank's state, or the states of all ranks of a run with another
        number of ranks."""
        self.close()
        self._saved = dict(saved)

    def close(self) -> None:
        for exchange, _, _ in self._made.values():
            exchange.close()
        self._made = {}
