"""dptrain's compressed gradient exchange for PyTorch on slow networks: two more lines in a program.

With DistributedDataParallel, started by mpirun:

    state = dptrain_comm.init("auto", model=model, optimizer=optimizer)
    ddp.register_comm_hook(state, dptrain_comm.hook)

Without it:

    state = dptrain_comm.init("auto", model=model, optimizer=optimizer)
    dptrain_comm.broadcast_parameters(model)
    ...
    loss.backward()
    state.allreduce_gradients(model)        # each gradient becomes the mean of all ranks'
    optimizer.step()

or, for the defaults, dptrain_comm.allreduce_gradients(model) without a state.

`dptrain --help` lists the codecs, and dptrain_comm.h describes the functions that this module
calls.
"""
from __future__ import annotations

import os

from . import _ranks
from ._library import Error, Exchange, Slot, finalize, process_group_address, rank, size, version
from ._library import is_child as _is_child
from ._library import note_error_of_hook
from ._library import start as _start
from ._rank import show_interface
from ._rounds import Rounds
from ._saved_state import StateError
from ._state import State, require_model

__all__ = ["Error", "Exchange", "Rounds", "Slot", "State", "StateError", "allreduce_gradients", "broadcast_parameters", "finalize", "hook",
           "init", "init_process_group", "prepare", "rank", "size", "start", "version"]


def start() -> None:
    """Starts MPI, or uses the MPI that mpi4py or another library has started. Does nothing on a
    second call, or in a worker process of a rank."""
    _start()
    _ranks.watch(State)


def init(compress: str = "auto", **options) -> "State":
    """Starts MPI, if the program has not, and makes the state for hook() and allreduce_gradients().

    options (see dptrain_comm_options in dptrain_comm.h): topology, seed, bucket_bytes, timeout_s,
    link_bit_per_s; exact: names of parameters that are sent in fp32, with * and ?; codecs: codecs
    of parameters by such names, {"wte.*": "q8"}; shards: the number of consecutive ranks that share
    one model, as FSDP divides it.
    total_steps: the number of steps in the training, so that ecq:bits=X spends more bits at its
    beginning.
    optimizer: torch.optim.SGD, Adam or AdamW. If the codec is auto or has velocity=, its steps are
    exchanged instead of gradients: many times fewer bytes for the same loss. Its learning rates and
    weight decays may change at any time.
    clip_norm: with optimizer, replaces torch.nn.utils.clip_grad_norm_().
    model: gives parameters the names that messages and `exact` use.
    log: the name of a new file for the run log, to which State.epoch() adds a row (needs h5py).
    log_steps: N adds a row for every N-th step, too.
    trace: the name of a new file with a trace of all ranks, for ui.perfetto.dev.
    trace_first, trace_steps: the traced steps; by default 20, after the first 5.
    about: further entries for the log's description of the run, such as
    {"model": "resnet20", "dataset": "cifar10", "epochs": 5}.
    """
    start()
    if _is_child():  # a worker that imports the script: its state is never used
        options.pop("log", None), options.pop("log_steps", None)
    return State(compress, **options)


def prepare(model, compress: str = "auto", **options) -> "State":
    """Calls init() and prepares the model for its first step.

    Registers the hook with a DistributedDataParallel, also Accelerate's or Lightning's. Any other
    module gets rank 0's parameters, and its gradients are sent while backward is running
    (State.overlap()); call State.allreduce_gradients() after backward. A step of several backward
    passes then needs State.no_sync()."""
    require_model("prepare", model)
    is_wrapped = hasattr(model, "register_comm_hook")
    if is_wrapped and not hasattr(model, "process_group"):
        raise Error(2, f"prepare() got a {type(model).__name__}, whose hooks are of another kind, which the exchange does not know; "
                    "it serves DistributedDataParallel, and modules that are not wrapped")
    state = init(compress, model=model.module if is_wrapped else model, **options)
    if is_wrapped:
        model.register_comm_hook(state, hook)
    else:
        broadcast_parameters(model)
        state.overlap(model)
    return state


def init_process_group(backend: str = "gloo", **arguments) -> None:
    """torch.distributed.init_process_group(), which DDP needs, for the ranks started by mpirun."""
    import torch.distributed
    start()
    if _is_child():
        return
    address = process_group_address()
    _show_as_torchrun(address)
    torch.distributed.init_process_group(backend, init_method=f"tcp://{address}", rank=rank(), world_size=size(), **arguments)


def _show_as_torchrun(address: str) -> None:
    """Sets torchrun's environment variables for libraries that read them, unless dptrain_comm.run
    has set them."""
    here = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    ranks_here = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or "1"
    host, _, port = address.rpartition(":")
    for name, value in {"RANK": rank(), "LOCAL_RANK": here, "WORLD_SIZE": size(), "LOCAL_WORLD_SIZE": ranks_here,
                        "MASTER_ADDR": host, "MASTER_PORT": port}.items():
        os.environ.setdefault(name, str(value))
    show_interface(os.environ, host)


_default_state = None


def allreduce_gradients(model, state: "State | None" = None) -> None:
    """State.allreduce_gradients() of `state`, or of a default state that the first call makes with
    init()."""
    global _default_state
    if state is None:
        if _default_state is None:
            _default_state = init()
        state = _default_state
    state.allreduce_gradients(model)


def broadcast_parameters(model) -> None:
    """Replaces all ranks' parameters and buffers by rank 0's. Call it before the first step."""
    require_model("broadcast_parameters", model)
    start()
    for tensor in (*model.parameters(), *model.buffers()):
        _ranks.broadcast(tensor)


def hook(state: "State", bucket, _output=None):
    """DistributedDataParallel's communication hook. Buckets are sent while backward is running;
    with DDP's bucket_cap_mb of 1 or less they leave earlier than with its default.

    The call for the last bucket waits for all sums, since backward ends there. It raises an Error
    for FullyShardedDataParallel, which calls hooks with tensors instead of buckets.
    """
    if not isinstance(state, State):
        raise Error(2, f"hook() got {state!r}, no state: ddp.register_comm_hook(dptrain_comm.init(...), dptrain_comm.hook)")
    if not hasattr(bucket, "is_last"):
        raise Error(2, f"hook() got a {type(bucket).__name__}, no bucket of DistributedDataParallel; FSDP works by fully_shard() and "
                    "init(..., shards=N), without a hook")
    try:
        return state.reduce_bucket(bucket)
    except Error as error:
        note_error_of_hook(error)
        raise
