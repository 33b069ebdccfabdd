"""Offline runs of Weights & Biases: what `wandb sync` sends later, made by its own package without a network."""
from __future__ import annotations

import hashlib
import importlib
import os
import pathlib
import sys
from typing import Any

from . import compare, units
from .output import NotWritable
from .run import Run

# The log's columns, by the names that --tensorboard of dptrain uses.
METRICS = {
    "loss/train": "train_loss", "loss/test": "test_loss", "accuracy/train": "train_accuracy", "accuracy/test": "test_accuracy",
    "learning_rate": "learning_rate", "global_batch": "global_batch", "time/epoch_s": "epoch_s", "time/compute_s": "compute_s",
    "time/exposed_comm_s": "exposed_comm_s", "time/comm_s": "comm_s", "time/data_s": "data_s", "time/eval_s": "eval_s",
    "exchange/sent_bytes": "sent_bytes", "exchange/codec_relative_error": "codec_relative_error",
    "exchange/residual_norm": "residual_norm"
}


def package() -> Any:
    """wandb. Throws NotWritable."""
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise NotWritable(f"--wandb-offline: {sys.executable} has no package wandb; start dpreport by a Python that has "
                          "wandb, h5py and pandas: PYTHON experiments/dpreport ...") from error


def export(wandb: Any, runs: list[Run], folder: pathlib.Path) -> None:
    """A run for each log, with a row for each epoch. Throws NotWritable."""
    folder.mkdir(exist_ok=True)
    os.environ["WANDB_SILENT"] = "true"
    try:
        for run in runs:
            # A log that is exported once more has the id that it had.
            name = hashlib.sha256(f"{run.attributes.get('started_at')} {run.path.resolve()}".encode()).hexdigest()[:12]
            made = wandb.init(mode="offline", dir=str(folder), project="dptrain", name=run.label, id=name,
                              config=compare.setting(run), settings=wandb.Settings(console="off"))
            for _, epoch in run.epochs.iterrows():
                values = {metric: float(epoch[column]) for metric, column in METRICS.items() if column in epoch}
                made.log({metric: value for metric, value in values.items() if units.is_number(value)},
                         step=int(epoch["epoch"]) + 1)
            made.finish()
    except Exception as error:  # wandb has classes of its own for whatever fails
        raise NotWritable(f"--wandb-offline: wandb cannot write into {folder}: {error}") from error
