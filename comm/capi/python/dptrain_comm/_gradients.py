"""The parameters of an exchange, and its floats as tensors of their shapes."""
from __future__ import annotations

import ctypes
from collections.abc import Callable

from ._library import Error, Exchange, Slot, rank

_COUNTS = "number of ranks with a gradient"  # the name of a slot


def _pin(values: list, device) -> Callable[[], None] | None:
    """Page-locks the floats of an exchange, so that the GPU copies from and to them at full speed.
    Returns a function that undoes it, or None if the driver refuses; copies then still work.
    """
    import torch
    first = min(tensor.data_ptr() for tensor in values)
    end = max(tensor.data_ptr() + tensor.numel() * tensor.element_size() for tensor in values)
    if int(torch.cuda.cudart().cudaHostRegister(first, end - first, 0)) == 0:
        return lambda: torch.cuda.cudart().cudaHostUnregister(first)
    try:  # clear CUDA's sticky error, which the program's next kernel would report otherwise
        torch.ones(1, device=device)
    except RuntimeError:
        pass
    return None


def local(tensor):
    """This rank's part of a tensor sharded by FSDP; any other tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def check_kind(parameter, name: str, shards: int) -> None:
    """Raises an Error for a complex parameter, and if its shards are not on the ranks that `shards`
    defines (rank r's block of consecutive ranks)."""
    if parameter.is_complex():
        raise Error(2, f"{name} is complex; gradients are exchanged as real numbers of 32 bits")
    mesh = getattr(parameter, "device_mesh", None)
    first = rank() - rank() % shards
    parts = [rank()] if mesh is None else mesh.mesh.reshape(-1).tolist()
    if parts == list(range(first, first + shards)) if mesh is not None else shards == 1:
        return
    raise Error(2, f"{name} is on the ranks {', '.join(map(str, parts))} together, and the exchange expects {first} to "
                f"{first + shards - 1} (shards={shards}): give fully_shard() a mesh of consecutive ranks, without the dimension of "
                "replicas, and init() their number as shards")


def name_of(parameter, names: dict[int, str]) -> str:
    return f"the parameter {names.get(id(parameter), 'of the shape ' + str(list(parameter.shape)))}"


class Gradients:
    """A parameter's index in `parameters` is its slot. The list keeps the parameters alive, so that
    their ids stay unique."""

    def __init__(self, parameters: list, names: dict[int, str], options: dict, has_counts: bool, slot_names: list[str] | None = None):
        """Collective: makes the exchange. has_counts: adds a slot in which the ranks count each
        parameter's gradients. slot_names: names of the first parameters, from an earlier
        exchange."""
        if not parameters:
            raise Error(2, "the model has no parameter to exchange; it needs one with requires_grad and with values")
        slots, slot_names, shapes = [], slot_names or [], [local(p.detach()).shape for p in parameters]
        for number, parameter in enumerate(parameters):
            check_kind(parameter, name_of(parameter, names), options.get("shards", 1))
            rows = shapes[number][0] if parameter.dim() > 1 else 1
            name = slot_names[number] if number < len(slot_names) else names.get(id(parameter), f"parameter {number}")
            slots.append(Slot(name, rows, shapes[number].numel() // max(rows, 1), parameter.dim() < 2))
        self.slot_names = [slot.name for slot in slots]  # without the slot of counts
        if has_counts:
            slots.append(Slot(_COUNTS, 1, len(parameters), True))
            exact = options.get("exact") or []
            options = {**options, "exact": [*([exact] if isinstance(exact, str) else exact), _COUNTS]}
        self.parameters, self.names, self.has_counts, self._shards = parameters, names, has_counts, options.get("shards", 1)
        self.slots = {id(parameter): slot for slot, parameter in enumerate(parameters)}
        self.exchange = Exchange(slots, **options)
        self.shapes = shapes
        self.values = [self._floats(slot, shape.numel()).view(shape) for slot, shape in enumerate(shapes)]
        self.counts = self._floats(len(parameters), len(parameters)) if has_counts else None

    def _floats(self, slot: int, count: int):
        import torch
        return torch.frombuffer((ctypes.c_float * count).from_address(self.exchange.address(slot)), dtype=torch.float32)

    def name(self, slot: int) -> str:
        return name_of(self.parameters[slot], self.names)

    def check_kind(self, parameter) -> None:
        check_kind(parameter, name_of(parameter, self.names), self._shards)

    def pin(self) -> None:
        devices = [parameter.device for parameter in self.parameters if parameter.is_cuda]
        if devices:
            self.exchange.before_close = _pin(self.values, devices[0])

    def close(self) -> None:
        """Closes the exchange, which frees the floats."""
        self.values, self.counts = [], None
        self.exchange.close()

    def check(self, pairs: list) -> list:
        """pairs: parameters and their gradients. Returns the parameters that are not in the
        exchange yet. Raises an Error for a sparse gradient."""
        import torch
        for parameter, gradient in pairs:
            if gradient is not None and gradient.layout != torch.strided:
                raise Error(2, f"{name_of(parameter, self.names)} has a sparse gradient; the exchange needs dense ones (sparse=False)")
        return [parameter for parameter, _ in pairs if id(parameter) not in self.slots]

    def refuse(self, parameter) -> Error:
        return Error(2, f"{name_of(parameter, self.names)} is not in the exchange, and some that are have no gradient: each network has a state of its "
                     "own, or all have one, by allreduce_gradients(torch.nn.ModuleList([one, other])); after a layer was replaced close() the state "
                     "and make a new one")

    def missing(self, pairs: list) -> list:
        """The exchange's parameters that are not among `pairs`: frozen ones, and ones that require
        a gradient, which must be in every step."""
        present = {id(parameter) for parameter, _ in pairs}
        return [parameter for parameter in self.parameters if id(parameter) not in present]

    def check_that_all_are_there(self, slots: set[int]) -> None:
        if len(slots) < len(self.slots):
            missing = self.parameters[min(set(range(len(self.slots))) - slots)]
            raise Error(2, f"{name_of(missing, self.names)} has no gradient in this step, and had one in the first; a parameter that is "
                        "not trained any more has requires_grad=False, on all ranks. For other parameters close() this state and make a "
                        "new one by init()")

    def count(self, held: list) -> None:
        """Sends flags for the gradients that this rank has. held: slots and gradients, or None."""
        self.counts.fill_(1.0)
        for slot, gradient in held:
            if gradient is None:
                self.counts[slot] = 0.0
        self.exchange.ready(len(self.slots))

    def put(self, slot: int, gradient, share: float, decay: float = 0.0) -> None:
        """Writes this rank's part of the mean. decay: the weight decay to add, as a factor of the
        parameter."""
        import torch
        values = self.values[slot]
        if gradient is None:
            values.zero_()
        elif gradient.device.type == "cpu" and gradient.dtype == torch.float32:
            torch.mul(gradient, share, out=values)
        else:
            values.copy_(gradient).mul_(share)
        if decay != 0.0 and gradient is not None:
            values.add_(local(self.parameters[slot].detach()).to("cpu", torch.float32), alpha=decay)
