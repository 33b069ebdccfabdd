"""dptrain's exchange of gradients for PyTorch: compressed for slow networks, with two more lines in a program.

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

`dptrain --help` lists the codecs, and dptrain_comm.h describes the functions that this module calls.
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
    """Starts MPI, or joins what mpi4py or another library has started. A second call does nothing, nor one in a worker process
    of a rank."""
    _start()
    _ranks.watch(State)


def init(compress: str = "auto", **options) -> "State":
    """Starts MPI, if the program has not, and makes the state of hook() and allreduce_gradients().

    options: topology, exact (names of parameters that are sent in fp32, with * and ?), codecs (of parameters by such names:
    {"wte.*": "q8"}), shards (the number of consecutive ranks that share one model, as FSDP divides it), seed, bucket_bytes, timeout_s,
    link_bit_per_s (dptrain_comm_options in dptrain_comm.h);
    total_steps: how many steps the training has, so that ecq:bits=X spends more bits at its beginning;
    optimizer: torch.optim.SGD, Adam or AdamW, whose steps are then exchanged instead of gradients where the codec is auto or has
    velocity=: many times fewer bytes for the same loss. Its learning rates and weight decays may change at any time;
    clip_norm: with optimizer, in place of torch.nn.utils.clip_grad_norm_();
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


def prepare(model, compress: str = "auto", **options) -> "State":
    """init() for this model, and what has to come before its first step: a DistributedDataParallel, also Accelerate's or
    Lightning's, gets the hook. For any other module call State.allreduce_gradients() after backward: it gets rank 0's parameters, and
    its gradients leave while backward goes on (State.overlap()). A step of several backward passes then needs State.no_sync()."""
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
    """torch.distributed.init_process_group() for the ranks that mpirun has started, which DDP needs."""
    import torch.distributed
    start()
    if _is_child():
        return
    address = process_group_address()
    _show_as_torchrun(address)
    torch.distributed.init_process_group(backend, init_method=f"tcp://{address}", rank=rank(), world_size=size(), **arguments)


def _show_as_torchrun(address: str) -> None:
    """Sets what torchrun sets, unless dptrain_comm.run has done so, for libraries that read it."""
    here = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    ranks_here = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or "1"
    host, _, port = address.rpartition(":")
    for name, value in {"RANK": rank(), "LOCAL_RANK": here, "WORLD_SIZE": size(), "LOCAL_WORLD_SIZE": ranks_here,
                        "MASTER_ADDR": host, "MASTER_PORT": port}.items():
        os.environ.setdefault(name, str(value))
    show_interface(os.environ, host)


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
    require_model("broadcast_parameters", model)
    start()
    for tensor in (*model.parameters(), *model.buffers()):
        _ranks.broadcast(tensor)


def hook(state: "State", bucket, _output=None):
    """DistributedDataParallel's communication hook: a bucket leaves while backward goes on, with DDP's bucket_cap_mb of 1 or
    less sooner than with its default.

    The last bucket's call waits for all sums, since backward ends there. FullyShardedDataParallel calls it with tensors, and gets an
    error.
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
