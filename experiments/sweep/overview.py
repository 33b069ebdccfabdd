"""The table of a study's last epochs. dpreport has more."""
from __future__ import annotations

import pathlib
from typing import Any

from lab.command_line import say

from .finished import Unreadable, has_hdf5, read_elsewhere, rows_of

_COLUMNS = ("train_loss", "test_accuracy", "sent_bytes", "codec_relative_error", "delivered_relative_error")


def _last(file: Any) -> dict[str, float] | None:
    """The last epoch's values and the mean time of an epoch; None without epochs."""
    rows = rows_of(file, "epochs")
    if not len(rows):
        return None
    return {column: float(rows[column][-1]) for column in _COLUMNS} | {"epoch_s": float(rows["epoch_s"].mean())}


def print_overview(logs: list[pathlib.Path]) -> None:
    if not has_hdf5():
        say("There is no table, and finished logs were not checked, since this Python has no h5py: apt-get install "
            "python3-h5py.")
        return
    say(f"{'run':<48} {'loss':>7} {'test':>7} {'sent, MB':>9} {'encoder':>8} {'sum':>8} {'s/epoch':>8}")
    for log in logs:
        try:
            last = read_elsewhere(log, _last)
        except Unreadable as error:
            say(f"{log.stem:<48} {error}")
            continue
        if last is None:
            say(f"{log.stem:<48} no epoch")
            continue
        say(f"{log.stem:<48} {last['train_loss']:7.4f} {100 * last['test_accuracy']:6.2f}% "
            f"{last['sent_bytes'] / 1e6:9.2f} {100 * last['codec_relative_error']:7.2f}% "
            f"{100 * last['delivered_relative_error']:7.2f}% {last['epoch_s']:8.1f}")
    say("All but s/epoch, a mean, are of the last epoch. loss: of training; test: accuracy; sent: by all ranks; "
        "encoder: the share that encoders dropped; sum: how far the delivered sum was from the exact one.")
