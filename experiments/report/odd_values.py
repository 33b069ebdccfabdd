"""Values of a damaged or foreign log of which nothing can be made: attributes and numbers of rows of another kind or size
than any run's."""
from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

LISTS = ("hosts", "devices", "codec_names", "topology_names", "tensor_names")
NUMBERS = ("link_bytes_per_s", "link_latency_s", "link_uncertainty", "nominal_bit_per_s", "nominal_delay_s", "nominal_loss",
           "nominal_is_shared", "predicted_step_s", "predicted_exposed_comm_s", "predicted_sent_bytes", "bucket_bytes",
           "cores_per_rank", "threads_per_rank")
LARGEST = 1e18
# Columns that count, and the least and the largest number there.
COUNTS = {"epoch": (0, 1e9), "first_epoch": (0, 1e9), "samples": (0, 1e15), "global_batch": (1, 1e12), "rank": (0, 1e6),
          "bucket": (0, 1e9), "tensor": (0, 1e9), "step": (0, 1e15), "world_size": (1, 1e6)}

SHARES = ("test_accuracy", "train_accuracy")  # from 0 to 1


class Odd(Exception):
    """Which value no run has, in one clause."""


def usable(attributes: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """The attributes without those of another kind than a run's, which are added to the problems."""
    odd = [name for name in LISTS if not isinstance(attributes.get(name, []), list)]
    odd += [name for name in NUMBERS if not _is_number(attributes.get(name, 0))]
    for name in odd:
        problems.append(f"its attribute {name} is {str(attributes[name])[:40]}, which no run has; it is left out")
    return {name: value for name, value in attributes.items() if name not in odd}


def _is_number(value: Any) -> bool:
    # Not a number: it was not measured.
    return isinstance(value, (bool, int, float)) and not (value < 0 or value > LARGEST)


def checked(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table with whole numbers where it counts. Throws Odd."""
    for column in table:
        values = table[column]
        if column in COUNTS:
            least, most = COUNTS[str(column)]
            wrong = ~((values >= least) & (values <= most))
            if wrong.any():
                raise Odd(f"its table /{name} has the {column} {values[wrong].iloc[0]}")
            table[column] = values.astype(np.int64)
        elif column in SHARES and (odd := values.notna() & ~values.between(0, 1)).any():
            raise Odd(f"its table /{name} has the {column} {values[odd].iloc[0]}")
        elif column != "replica_hash":
            values = values.astype(np.float64) if values.dtype.kind == "u" else values
            is_huge = values.abs() > LARGEST
            # A loss is known to be that large; no time and no number of bytes is.
            table[column] = values.mask(is_huge, np.inf if "loss" in str(column) else np.nan) if is_huge.any() else values
    return table
