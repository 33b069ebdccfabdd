"""Writes run logs (io/log/run_log.hpp) with chosen numbers, for tests of what reads them."""
from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable
from typing import Any

import h5py
import numpy as np

TIMES = ("epoch_s data_s forward_s backward_s optimizer_s compute_s encode_s wire_s decode_s peer_wait_s comm_s "
         "exposed_comm_s other_s eval_s checkpoint_s").split()
BYTES = ["sent_bytes", "received_bytes"]
COLUMNS = {
    "epochs": [
        "epoch", "samples", "global_batch", "learning_rate", "train_loss", "train_accuracy", "test_loss",
        "test_accuracy", *TIMES, *BYTES, "codec_relative_error", "residual_norm", "replica_hash", "skipped_steps",
        "delivered_relative_error", "sample_bytes", "saturation", "control_bytes", "statistics_s", "statistics_bytes",
        "exchanges", "wire_bytes"
    ], "ranks": ["epoch", "rank", "host", "device", *TIMES, *BYTES, "control_bytes", "statistics_s", "statistics_bytes",
                 "wire_bytes"], "buckets": [
        "epoch", "bucket", "elements", "codec", "topology", "sent_bytes", "encode_s", "wire_s", "decode_s",
        "peer_wait_s", "relative_error", "residual_norm", "delivered_relative_error", "saturation",
        "residual_growth", "residual_age"
    ], "sessions": ["start", "first_epoch", "first_step", "world_size"],
    "tensors": ["epoch", "tensor", "elements", "waiting", "longest_wait"],
    "shares": ["step", "rank", "images", "compute_s", "step_s", "fixed_s", "image_s"], "steps": [
        "step", "epoch", "train_loss", "step_s", "compute_s", "comm_s", "exposed_comm_s", "learning_rate", "planned_bits", "partial_bits",
        "total_bits", "link_bytes_per_s", "hidden_bits", "residual_growth", "wished_bits"
    ]
}
WHOLE = {
    "epoch", "samples", "global_batch", *BYTES, "skipped_steps", "sample_bytes", "control_bytes", "statistics_bytes", "exchanges", "rank", "host", "device",
    "bucket", "elements", "codec", "topology", "first_epoch", "first_step", "world_size", "step", "tensor", "waiting",
    "longest_wait", "images"
}
NOT_MEASURED = {
    "train_loss", "train_accuracy", "test_loss", "test_accuracy", "codec_relative_error", "residual_norm",
    "relative_error", "delivered_relative_error", "saturation", "planned_bits", "partial_bits", "total_bits",
    "link_bytes_per_s", "hidden_bits", "residual_growth", "residual_age", "wished_bits", "wire_bytes"
}
Rows = list[dict[str, Any]]


def _table(file: h5py.File, name: str, rows: Rows, lacking: Iterable[str] = ()) -> None:
    columns = [c for c in COLUMNS[name] if c not in lacking]
    kinds = [(c, "u8" if c == "replica_hash" else "i8" if c in WHOLE else "f8") for c in columns]
    data = file.create_dataset(name, (len(rows), ), dtype=kinds, maxshape=(None, ), chunks=(1024, ))
    unknown = {key for row in rows for key in row} - set(COLUMNS[name])
    assert not unknown, f"{name} has no columns {unknown}"
    for i, row in enumerate(rows):
        data[i] = tuple(row.get(c, math.nan if c in NOT_MEASURED else 0) for c in columns)
    data.attrs.create("units",
                      ["s" if c.endswith("_s") else "byte" if c.endswith("_bytes") else "1" for c in columns],
                      dtype=h5py.string_dtype())


def _rows_of_ranks(ranks: int, epochs: Rows) -> Rows:
    """Those of ranks that all took as long, and sent as much."""
    return [{"epoch": e, "rank": rank} | {column: row[column] / (ranks if column in BYTES else 1)
                                          for column in (*TIMES, *BYTES) if column in row}
            for e, row in enumerate(epochs) for rank in range(ranks)]


def write_log(path: pathlib.Path, *, ranks: int, epochs: Rows, batch: int = 100, samples: int = 4000,
              rank_rows: Rows | None = None, buckets: Rows | None = None, steps: Rows | None = None, sessions: Rows | None = None, tensors: Rows = (),
              shares: Rows | None = None, finished: int = 1, parameters: int = 1_000_000, config: dict[str, str] | None = None,
              lacking: Iterable[str] = (), **attributes: Any) -> pathlib.Path:
    """A log; what is not said is as of a run of resnet20 on one core a rank and host. Columns in `lacking` and attributes
    that are None are left out."""
    options = {
        "model": "resnet20", "dataset": "synthetic", "batch-size": str(batch), "compress": "none", "topology": "ring",
        "compress-warmup": "0", "precision": "fp32", "throttle": "off", "epochs": str(
            len(epochs)), "overlap": "on", "seed": "1", "limit-test": "1000"
    } | (config or {})
    said = {
        "format_version": 1, "dptrain_version": "0.1.0", "git_revision": "0123456789ab", "command_line": "dptrain",
        "started_at": "2026-01-02T03:04:05Z", "world_size": ranks, "hosts": [f"node{r + 1}" for r in range(ranks)
                                                                             ], "devices": ["a processor, 1 thread"],
        "mpi_version": "Open MPI", "finished": np.uint8(finished), "resumed_from": "", "codec_names": ["none"],
        "topology_names": [options["topology"]], "cores_per_rank": 1.0, "threads_per_rank": 1.0, "exchange_path": ""
    } | attributes
    with h5py.File(path, "w") as file:
        for key, value in said.items():
            if isinstance(value, list):
                file.attrs.create(key, value, dtype=h5py.string_dtype())
            elif value is not None:
                file.attrs[key] = value
        file.create_group("config").attrs.update(options)
        file.create_group("model").attrs.update(
            {"name": options["model"], "parameters": parameters, "gradient_bytes": 4 * parameters, "buckets": 1})
        common = {"samples": samples, "global_batch": ranks * batch}
        _table(file, "epochs", [{"epoch": e} | common | row for e, row in enumerate(epochs)], lacking)
        _table(file, "ranks", _rows_of_ranks(ranks, epochs) if rank_rows is None else rank_rows, lacking)
        _table(file, "buckets", [{"epoch": e} for e in range(len(epochs))] if buckets is None else buckets)
        _table(file, "sessions", sessions if sessions is not None else [{"start": 1.7e9, "world_size": ranks}])
        _table(file, "tensors", list(tensors))
        if shares is not None:
            _table(file, "shares", shares)
        if steps is not None:
            _table(file, "steps", steps)
    return path
