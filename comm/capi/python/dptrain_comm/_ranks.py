"""Checks that torch.distributed numbers the ranks as the exchange does, whose ranks mpirun has
started.

A hook does not see the process group that it serves, and a launcher of PyTorch counts its processes
only after start(). Therefore two functions of PyTorch are wrapped:
DistributedDataParallel.register_comm_hook() and init_process_group().
"""
from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable

from ._library import broadcast as broadcast_bytes
from ._library import Error, command_line, is_child, is_started, rank, size


def broadcast(tensor) -> None:
    """Replaces the tensor by rank 0's. Collective."""
    import torch
    if hasattr(tensor, "to_local"):
        raise Error(2, "broadcast of a tensor that FSDP has sharded: rank 0 has a part of it alone; begin on all ranks with the same seed, or "
                    "with the same checkpoint, and use init() in place of prepare()")
    if is_child() or tensor.numel() == 0:
        return
    with torch.no_grad():
        values = tensor.detach().cpu().contiguous()
        broadcast_bytes(values.data_ptr(), values.numel() * values.element_size())
        tensor.copy_(values)


def _require_same(name: str, its_rank: int, its_size: int) -> None:
    if (its_rank, its_size) == (rank(), size()):
        return
    variable = f" (WORLD_SIZE={os.environ['WORLD_SIZE']})" if "WORLD_SIZE" in os.environ else ""
    ranks = its_size if size() == 1 else size()
    raise Error(2, f"this process is rank {its_rank} of {its_size} in {name}{variable}, and rank {rank()} of {size()} in the "
                f"exchange, which has all ranks of mpirun: start the program by mpirun -np {ranks} {command_line()}, use "
                "dptrain_comm.init_process_group() and no process_group of fewer ranks, and devices=1 in Lightning")


def check(group=None) -> None:
    """Raises an Error unless this rank has the same number in torch.distributed, or in that group
    of it. Does nothing if torch.distributed is not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized() or is_child():
        return
    name = "torch.distributed" if group is None else "DistributedDataParallel's process_group"
    _require_same(name, distributed.get_rank(group), distributed.get_world_size(group))


def _wrap(owner, name: str, check_first: Callable) -> None:
    """Wraps owner.name, once: check_first(function, arguments, named) is called before it."""
    function = getattr(owner, name)
    if hasattr(function, "checks_ranks"):
        return

    @functools.wraps(function)
    def checked(*arguments, **named):
        check_first(function, arguments, named)
        return function(*arguments, **named)

    checked.checks_ranks = True  # type: ignore[attr-defined]
    setattr(owner, name, checked)


def _check_new_group(function, arguments, named) -> None:
    """Checks before init_process_group(), which would wait for processes that have ended because
    they are not ranks."""
    if not is_started() or is_child():
        return
    given = inspect.signature(function).bind_partial(*arguments, **named).arguments
    numbers = [given.get(name) for name in ("rank", "world_size")]
    if given.get("store") is None and str(given.get("init_method") or "env://").startswith("env://"):
        numbers = [os.environ.get(variable) if number in (None, -1) else number
                   for number, variable in zip(numbers, ("RANK", "WORLD_SIZE"))]
    try:
        its_rank, its_size = (int(number) for number in numbers)
    except (TypeError, ValueError):  # not known here; PyTorch reports missing ones
        return
    _require_same("torch.distributed", its_rank, its_size)


# DistributedDataParallel whose hook has no State of ours.
_hooked: "weakref.WeakSet" = weakref.WeakSet()


def check_groups_of(parameter) -> None:
    """check() for the DistributedDataParallel that has the parameter, if the program has registered
    its own hook function, which calls hook()."""
    for ddp in list(_hooked):
        if any(one is parameter for one in ddp.parameters()):
            check(ddp.process_group)


def watch(kind_of_state: type) -> None:
    """Wraps the two functions, if the program has imported their modules."""
    def check_group(_function, arguments, named) -> None:
        ddp, state, *_ = (*arguments, named.get("state"), None)
        if isinstance(state, kind_of_state):
            check(ddp.process_group)
            state.serve(ddp)
        else:
            _hooked.add(ddp)

    distributed, parallel = sys.modules.get("torch.distributed"), sys.modules.get("torch.nn.parallel")
    if distributed is not None and distributed.is_available():
        _wrap(distributed, "init_process_group", _check_new_group)
        if parallel is not None:
            _wrap(parallel.DistributedDataParallel, "register_comm_hook", check_group)
