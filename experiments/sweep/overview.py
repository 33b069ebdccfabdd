"""The table of a study's last epochs; dpreport tells more."""
from __future__ import annotations

import pathlib


def print_overview(logs: list[pathlib.Path]) -> None:
    try:
        import h5py
    except ImportError:
        print("(no table: this python3 has no h5py; /usr/bin/python3 with python3-h5py has)")
        return
    print(f"{'run':<48} {'loss':>7} {'test':>7} {'sent, MB':>9} {'encoder':>8} {'sum':>8} {'s/epoch':>8}")
    for log in logs:
        try:
            with h5py.File(log, "r") as file:
                rows = file["epochs"][:]
        except (OSError, KeyError) as error:
            print(f"{log.stem:<48} cannot be read: {error}")
            continue
        if not len(rows):
            print(f"{log.stem:<48} no epoch")
            continue
        last = rows[-1]
        print(f"{log.stem:<48} {last['train_loss']:7.4f} {100 * last['test_accuracy']:6.2f}% "
              f"{last['sent_bytes'] / 1e6:9.2f} {100 * last['codec_relative_error']:7.2f}% "
              f"{100 * last['delivered_relative_error']:7.2f}% {rows['epoch_s'].mean():8.1f}")
    print("loss, test: the last epoch's; sent: by all ranks in it; encoder: what encoders dropped; "
          "sum: the delivered sum against the exact one")
