"""The table of a study's last epochs. dpreport tells more."""
from __future__ import annotations

import pathlib

from lab.command_line import say


def print_overview(logs: list[pathlib.Path]) -> None:
    try:
        import h5py
    except ImportError:
        say("There is no table, and finished logs were not checked, since this Python has no h5py: apt-get install "
            "python3-h5py.")
        return
    say(f"{'run':<48} {'loss':>7} {'test':>7} {'sent, MB':>9} {'encoder':>8} {'sum':>8} {'s/epoch':>8}")
    for log in logs:
        try:
            with h5py.File(log, "r", locking=False) as file:
                rows = file["epochs"][:]
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            say(f"{log.stem:<48} cannot be read: {error}")
            continue
        if not len(rows):
            say(f"{log.stem:<48} no epoch")
            continue
        last = rows[-1]
        say(f"{log.stem:<48} {last['train_loss']:7.4f} {100 * last['test_accuracy']:6.2f}% "
            f"{last['sent_bytes'] / 1e6:9.2f} {100 * last['codec_relative_error']:7.2f}% "
            f"{100 * last['delivered_relative_error']:7.2f}% {rows['epoch_s'].mean():8.1f}")
    say("All but s/epoch, a mean, are of the last epoch. loss: of training; test: accuracy; sent: by all ranks; "
        "encoder: the share that encoders dropped; sum: how far the delivered sum was from the exact one.")
