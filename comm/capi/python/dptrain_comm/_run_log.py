"""The run log of a PyTorch program, in the format of dptrain's (io/log/run_log.hpp), for dpreport
and other readers.

It is written from Python, so that the library does not need HDF5. After each epoch rank 0 writes
the whole file under another name and renames it, so that the log is never incomplete, even if the
program is killed. If the log cannot be written, training continues: this is reported once, and the
next epoch tries again.
"""
from __future__ import annotations

import atexit
import ctypes
import math
import os
import socket
import sys
import time

from . import _library
from ._library import Error, Exchange, rank, size

TIMES = ["epoch_s", "data_s", "forward_s", "backward_s", "optimizer_s", "compute_s", "encode_s", "wire_s", "decode_s",
         "peer_wait_s", "comm_s", "exposed_comm_s", "other_s", "eval_s", "checkpoint_s"]
BYTES = ["sent_bytes", "received_bytes"]
# In the order of dptrain_comm_rate.
RATE = ["planned_bits", "partial_bits", "total_bits", "partial_step", "total_step", "link_bytes_per_s", "hidden_bits",
        "relative_error", "residual_growth", "guard_factor", "wished_bits", "binding_bucket"]
LATER = ["control_bytes", "statistics_s", "statistics_bytes"]
# The columns of io/log/run_log_rows.cpp, in its order.
COLUMNS = {
    "epochs": ["epoch", "samples", "global_batch", "learning_rate", "train_loss", "train_accuracy", "test_loss",
               "test_accuracy", *TIMES, *BYTES, "codec_relative_error", "residual_norm", "replica_hash", "skipped_steps",
               "delivered_relative_error", "sample_bytes", "saturation", *LATER, "exchanges", "wire_bytes"],
    "ranks": ["epoch", "rank", "host", "device", *TIMES, *BYTES, *LATER, "wire_bytes"],
    "buckets": ["epoch", "bucket", "elements", "codec", "topology", "sent_bytes", "encode_s", "wire_s", "decode_s",
                "peer_wait_s", "relative_error", "residual_norm", "delivered_relative_error", "saturation",
                "residual_growth", "residual_age"],
    "sessions": ["start", "first_epoch", "first_step", "world_size"],
    "steps": ["step", "epoch", "train_loss", "step_s", "compute_s", "comm_s", "exposed_comm_s", "learning_rate", "data_s",
              "forward_s", "backward_s", "optimizer_s", "other_s", "encode_s", "wire_s", "decode_s", "peer_wait_s", *BYTES,
              *RATE[:-2], "exchanged", *RATE[-2:]],
}
WHOLE = {"epoch", "samples", "global_batch", *BYTES, "skipped_steps", "sample_bytes", "control_bytes", "statistics_bytes",
         "exchanges", "exchanged", "step", "rank", "host", "device", "bucket", "elements", "codec", "topology", "first_epoch", "first_step",
         "world_size"}
NOT_MEASURED = {"train_loss", "train_accuracy", "test_loss", "test_accuracy", "learning_rate", "codec_relative_error",
                "residual_norm", "relative_error", "delivered_relative_error", "saturation", "residual_age", "wire_bytes", *RATE}
LEARNT = ["train_loss", "train_accuracy", "test_loss", "test_accuracy", "learning_rate"]
OF_TOTAL = ["sent_bytes", "received_bytes", "comm_s", "encode_s", "decode_s", "peer_wait_s", "wire_s"]
OF_BUCKET = ["sent_bytes", "encode_s", "decode_s", "peer_wait_s", "wire_s", "error_squares", "value_squares",
             "residual_squares"]
READER, STEP_READER = "run log", "steps of the run log"


def _share(part: float, whole: float) -> float:
    return math.sqrt(part / whole) if whole > 0 else math.nan


class RunLog:
    """All ranks have a RunLog and make the same calls."""

    def __init__(self, path: str, options: dict, about: dict, every: int = 0):
        """every: N adds a row for every N-th step; 0: none."""
        self._path, self._options, self._about, self._every = os.path.abspath(path), options, about, every
        self._rows: dict[str, list[dict]] = {name: [] for name in COLUMNS}
        self._warned = self._is_closed = self._has_begun = False
        self._check()
        self._started = time.time()
        self._hosts: list[str] = []
        self._codecs: list[str] = []  # of all exchanges so far; topologies likewise
        self._topologies: list[str] = []
        self._before: list[dict[str, float]] = []  # this epoch's costs of closed exchanges
        self._start_epoch()
        atexit.register(self._leave)

    def _check(self) -> None:
        """Collective. Raises an Error on all ranks if rank 0 cannot write the file."""
        text = ctypes.create_string_buffer(1000)
        if rank() == 0:
            why = ""
            try:
                import h5py  # noqa: F401
            except ImportError:
                why = "needs the Python package h5py: pip install h5py"
            folder = os.path.dirname(self._path)
            if not why and os.path.lexists(self._path):
                why = "exists already"
            elif not why and not os.access(folder, os.W_OK):
                why = f"cannot be written: there is no folder {folder}, or no permission"
            text.value = why.encode()[:999]
        _library.broadcast(ctypes.addressof(text), len(text))
        if text.value:
            raise Error(2 if b"h5py" in text.value else 3, f"log {self._path}: {text.value.decode(errors='replace')}")

    # ---- while steps are made

    def begin(self, exchange: Exchange, step: int, parameters: int, set_up_s: float = 0.0) -> None:
        """Call it when the exchange exists, before its first step. set_up_s: the time for making
        the exchange, which is not part of an epoch."""
        exchange.add_reader(READER)
        if self._every:
            exchange.add_reader(STEP_READER)
        began = time.perf_counter()
        name = socket.gethostname().encode()[:64].ljust(64, b"\0")
        self._hosts = [bytes(int(c) for c in row).rstrip(b"\0").decode(errors="replace")
                       for row in exchange.gather([float(c) for c in name])]
        self._first_step = step
        self._learn_of(exchange, parameters)
        self._rows["sessions"] = [{"start": self._started, "first_epoch": 0, "first_step": step, "world_size": size()}]
        self._has_begun = True
        self._save(False)
        self.leave_out(set_up_s + time.perf_counter() - began)

    def _learn_of(self, exchange: Exchange, parameters: int) -> None:
        self._parameters = parameters
        self._buckets = exchange.buckets()
        self._codecs = list(dict.fromkeys([*self._codecs, *(bucket["codec"] for bucket in self._buckets)]))
        self._topologies = list(dict.fromkeys([*self._topologies, *(bucket["topology"] for bucket in self._buckets)]))

    def exchange_ends(self, exchange: Exchange) -> None:
        """Call it before another exchange replaces this one within an epoch."""
        self._before.append(exchange.take(READER)[0])

    def goes_on(self, exchange: Exchange, parameters: int, set_up_s: float) -> None:
        """Continues with the new exchange. set_up_s as in begin()."""
        exchange.add_reader(READER)
        if self._every:
            exchange.add_reader(STEP_READER)
        self._learn_of(exchange, parameters)
        self.leave_out(set_up_s)

    def leave_out(self, seconds: float) -> None:
        """Excludes the last `seconds` from the epoch and the step."""
        self._epoch_began += seconds
        self._step_began += seconds

    def _start_epoch(self) -> None:
        self._epoch_began = self._step_began = time.perf_counter()
        self._steps = self._skipped = 0
        self._backward_s = self._exposed_s = 0.0

    def step_begins(self) -> None:
        self._backward_began = time.perf_counter()

    def step_ends(self, exchange: Exchange, step: int, wait_began: float, all_finite: bool) -> None:
        """step: the number of finished steps."""
        ended = time.perf_counter()
        backward_s, exposed_s = wait_began - self._backward_began, ended - wait_began
        self._backward_s += backward_s
        self._exposed_s += exposed_s
        self._steps += 1
        self._skipped += not all_finite
        if self._every and rank() == 0:
            self._add_step(exchange, step, ended - self._step_began, backward_s, exposed_s)
        self._step_began = ended

    def _add_step(self, exchange: Exchange, step: int, step_s: float, backward_s: float, exposed_s: float) -> None:
        """As in dptrain, a step's row has rank 0's measurements."""
        is_logged = step % self._every == 0
        # The call of take() before a logged step starts its costs.
        if not is_logged and (step + 1) % self._every != 0:
            return
        total = exchange.take(STEP_READER)[0]
        if is_logged:
            backward_s = min(backward_s, step_s - exposed_s)
            self._rows["steps"].append({
                "step": step, "epoch": len(self._rows["epochs"]), "step_s": step_s, "compute_s": step_s - exposed_s,
                "exposed_comm_s": exposed_s, "forward_s": step_s - exposed_s - backward_s, "backward_s": backward_s,
                **{name: total[name] for name in OF_TOTAL}, **exchange.rate(), "exchanged": int(size() > 1)})

    # ---- between epochs

    def epoch(self, exchange: Exchange, step: int, samples: int, learnt: dict[str, float], data_s: float,
              eval_s: float) -> None:
        epoch_s = max(time.perf_counter() - self._epoch_began - eval_s, 0.0)
        total, *buckets = exchange.take(READER)
        for earlier in self._before:
            total = {name: value if name == "bits" else value + earlier[name] for name, value in total.items()}
        self._before = []
        mine = [epoch_s, data_s, self._backward_s, self._exposed_s, eval_s, float(samples), float(self._steps),
                float(self._skipped), *(float(learnt[name]) for name in LEARNT), *(float(total[name]) for name in OF_TOTAL)]
        for bucket in buckets:
            mine += [float(bucket[name]) for name in OF_BUCKET]
        ranks = exchange.gather(mine)
        if rank() == 0:
            self._add_epoch(ranks, len(buckets))
            self._save(False)
        self._start_epoch()

    def _add_epoch(self, ranks: list[list[float]], buckets: int) -> None:
        epoch = len(self._rows["epochs"])
        rows, samples_of, learnt_of = [], [], []
        bucket_sums = [dict.fromkeys(OF_BUCKET, 0.0) for _ in range(buckets)]
        for number, values in enumerate(ranks):
            given = iter(values)
            epoch_s, data_s, backward_s, exposed_s, eval_s, samples, steps, skipped = (next(given) for _ in range(8))
            learnt_of.append([next(given) for _ in LEARNT])
            comm = {name: next(given) for name in OF_TOTAL}
            for sums in bucket_sums:
                for name in OF_BUCKET:
                    sums[name] += next(given)
            # Time that is spent waiting neither for data nor for sums counts as computation, and
            # the time between a step's first and last bucket as backward.
            compute_s = max(epoch_s - data_s - exposed_s, 0.0)
            backward_s = min(backward_s, compute_s)
            rows.append({"epoch": epoch, "rank": number, "host": number, "device": 0, "epoch_s": epoch_s,
                         "data_s": data_s, "forward_s": compute_s - backward_s, "backward_s": backward_s,
                         "compute_s": compute_s, "exposed_comm_s": exposed_s,
                         "other_s": epoch_s - data_s - exposed_s - compute_s, "eval_s": eval_s, **comm})
            samples_of.append(samples)
        of_all = {name: sum(row.get(name, 0.0) for row in rows) / (1 if name in BYTES else len(rows))
                  for name in (*TIMES, *BYTES)}
        errors, given_squares, residuals = (sum(sums[name] for sums in bucket_sums)
                                            for name in ("error_squares", "value_squares", "residual_squares"))
        learnt = {}
        for place, name in enumerate(LEARNT):
            known = [(values[place], weight) for values, weight in zip(learnt_of, samples_of) if not math.isnan(values[place])]
            weight = sum(w for _, w in known)
            learnt[name] = sum(v * w for v, w in known) / weight if weight > 0 else math.nan
        samples = sum(samples_of)
        self._rows["epochs"].append({"epoch": epoch, "samples": samples, "global_batch": math.ceil(samples / max(steps, 1)),
                                     **learnt, **of_all, "codec_relative_error": _share(errors, given_squares),
                                     "residual_norm": math.sqrt(residuals), "skipped_steps": skipped,
                                     "exchanges": steps if size() > 1 else 0})
        self._rows["ranks"] += rows
        for number, (bucket, sums) in enumerate(zip(self._buckets, bucket_sums)):
            self._rows["buckets"].append({
                "epoch": epoch, "bucket": number, "elements": int(bucket["values"]),
                "codec": self._codecs.index(bucket["codec"]), "topology": self._topologies.index(bucket["topology"]),
                "sent_bytes": sums["sent_bytes"],
                **{name: sums[name] / len(ranks) for name in ("encode_s", "wire_s", "decode_s", "peer_wait_s")},
                "relative_error": _share(sums["error_squares"], sums["value_squares"]),
                "residual_norm": math.sqrt(sums["residual_squares"])})

    def _leave(self) -> None:
        """atexit: the program ends without close(); saves the rows so far as an unfinished run."""
        if not self._is_closed and self._has_begun:
            self._save(False)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self._leave)
        if self._has_begun:
            self._save(True)

    # ---- the file

    def _save(self, is_finished: bool) -> None:
        if rank() != 0:
            return
        unfinished = f"{self._path}.{os.getpid()}.part"
        try:
            self._write(unfinished, is_finished)
            os.replace(unfinished, self._path)
            self._warned = False
        except (OSError, RuntimeError) as error:  # h5py raises RuntimeError, too
            if not self._warned:
                print(f"dptrain_comm: log {self._path}: cannot be written: {error}; training continues, and the next epoch "
                      "tries again", file=sys.stderr, flush=True)
            self._warned = True
            try:
                os.unlink(unfinished)
            except OSError:
                pass

    def _write(self, path: str, is_finished: bool) -> None:
        import h5py
        import numpy
        text = h5py.string_dtype()
        bucket_bytes = self._options.get("bucket_bytes", 0)
        config = {"compress": self._options["compress"], "bucket-mb": f"{bucket_bytes / 1e6:g}" if bucket_bytes else "auto",
                  "exchange": "on", "overlap": "on"}
        config["topology"] = self._topologies[0] if self._topologies else "ring"
        if self._every:
            config["log-steps"] = str(self._every)
        config |= {name.replace("_", "-"): str(value) for name, value in self._about.items()}
        if os.path.lexists(path):
            os.unlink(path)
        # HDF5 opens files by name and follows links, so pass it a name of the already open file.
        with open(path, "xb") as new, h5py.File(f"/proc/self/fd/{new.fileno()}", "w", locking=False) as file:
            for name, value in {
                    "format_version": 1, "dptrain_version": _library.version(), "git_revision": "",
                    "command_line": _library.command_line(), "world_size": size(),
                    "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)), "mpi_version": "",
                    "finished": int(is_finished), "resumed_from": "", "written_by": "dptrain_comm"}.items():
                file.attrs[name] = value
            for name, values in {"hosts": self._hosts, "devices": ["PyTorch"], "codec_names": self._codecs,
                                 "topology_names": self._topologies}.items():
                file.attrs.create(name, values, dtype=text)
            for variable, name in (("DPTRAIN_LINK_BIT_PER_S", "nominal_bit_per_s"), ("DPTRAIN_LINK_DELAY_S", "nominal_delay_s"),
                                   ("DPTRAIN_LINK_LOSS", "nominal_loss"), ("DPTRAIN_LINK_SHARED", "nominal_is_shared")):
                try:
                    file.attrs[name] = float(os.environ[variable])  # set by the lab
                except (KeyError, ValueError):
                    pass
            file.create_group("config").attrs.update(config)
            file.create_group("model").attrs.update({"name": config.get("model", "a PyTorch model"),
                                                     "parameters": self._parameters, "gradient_bytes": 4 * self._parameters,
                                                     "buckets": len(self._buckets)})
            for name, columns in COLUMNS.items():
                if name == "steps" and not self._every:
                    continue
                kinds = [(c, "u8" if c == "replica_hash" else "i8" if c in WHOLE else "f8") for c in columns]
                rows = [tuple(row.get(c, math.nan if c in NOT_MEASURED else 0) for c in columns) for row in self._rows[name]]
                table = file.create_dataset(name, data=numpy.array(rows, dtype=kinds), maxshape=(None,),
                                            chunks=(1024 if name == "steps" else 64,))
                units = ["s" if c.endswith("_s") or c == "start" else "byte" if c.endswith("_bytes") else "1" for c in columns]
                table.attrs.create("units", units, dtype=text)
