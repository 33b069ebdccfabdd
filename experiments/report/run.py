"""A run, as its log tells it: attributes, tables, and what follows from this log alone.

Times of a run are those of its *typical epoch*: the one of median time (of two middle ones the faster), so that its
parts add up. Not counted are the first epoch of every start of the program (it includes what happens once) and those
before the codec's warm-up ended, where others remain.
"""
from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from . import units


@dataclass
class Run:
    path: pathlib.Path
    label: str
    attributes: dict[str, Any]
    config: dict[str, str]
    model: dict[str, Any]
    epochs: pd.DataFrame
    ranks: pd.DataFrame | None = None
    buckets: pd.DataFrame | None = None
    sessions: pd.DataFrame | None = None
    steps: pd.DataFrame | None = None
    problems: list[str] = field(default_factory=list)

    # What was run.

    @property
    def world_size(self) -> int:
        return int(self.attributes["world_size"])

    @property
    def is_finished(self) -> bool:
        return bool(self.attributes.get("finished", 0))

    @property
    def model_name(self) -> str:
        return str(self.model.get("name") or self.config.get("model", ""))

    @property
    def exchanges(self) -> bool:
        """Whether gradients were: one rank has nobody to, and with --exchange off every rank trains by itself."""
        return self.world_size > 1 and self.config.get("exchange", "on") != "off"

    @property
    def has_one_model(self) -> bool:
        """False where every rank trained one of its own."""
        return self.world_size == 1 or self.exchanges

    @property
    def codec(self) -> str:
        """--compress as it was given; nothing is sent by one rank."""
        if not self.exchanges:
            return "no exchange" if self.world_size > 1 else ""
        warm_up = self.config.get("compress-warmup", "0")
        return self.config.get("compress", "") + (f" after {warm_up} epochs" if self._number("compress-warmup") else "")

    @property
    def topology(self) -> str:
        return self.config.get("topology", "") if self.exchanges else ""

    @cached_property
    def codec_names(self) -> list[str]:
        return [str(name) for name in self.attributes.get("codec_names", [])]

    @property
    def devices(self) -> str:
        return "; ".join(str(device) for device in self.attributes.get("devices", []))

    @property
    def hosts(self) -> list[str]:
        return [str(host) for host in self.attributes.get("hosts", [])]

    @property
    def wanted_epochs(self) -> int | None:
        value = self._number("epochs")
        return None if value is None else int(value)

    @cached_property
    def global_batch(self) -> int | None:
        return int(self.epochs["global_batch"].iloc[-1]) if len(self.epochs) else None

    @property
    def batch(self) -> float | None:
        """Images a step and rank."""
        if self.global_batch is None:
            return self._number("batch-size")
        value = self.global_batch / self.world_size
        return int(value) if value == int(value) else value

    @property
    def samples(self) -> int | None:
        return int(self.epochs["samples"].iloc[-1]) if len(self.epochs) else None

    @staticmethod
    def steps_in(epoch: Mapping[str, float]) -> int | None:
        """All-reduces of the gradient in an epoch, of which this is the row."""
        samples, batch = epoch.get("samples"), epoch.get("global_batch")
        return math.ceil(samples / batch) if samples and batch else None

    @property
    def steps_per_epoch(self) -> int | None:
        """All-reduces of the gradient in the typical epoch, K."""
        return None if self.typical is None else self.steps_in(self.typical)

    def _number(self, option: str) -> float | None:
        try:
            return float(self.config[option])
        except (KeyError, ValueError):
            return None

    # The link of a rank.

    @property
    def throttle_bits(self) -> float | None:
        return units.parse_bit_rate(self.config.get("throttle", "off"))

    @cached_property
    def link_bits(self) -> float | None:
        """bit/s each way: measured at the start, or --throttle where that is less; None: not logged, or one rank."""
        if not self.exchanges:
            return None
        rates = [self.attributes.get("link_bytes_per_s", 0.0) * 8, self.throttle_bits or 0.0]
        return min((rate for rate in rates if rate > 0), default=None)

    @property
    def latency_s(self) -> float | None:
        value = self.attributes.get("link_latency_s")
        return None if value is None or not self.exchanges else float(value)

    @cached_property
    def link_name(self) -> str:
        """The rate by which runs are put together: what was asked for, or one digit and a half of what was measured
        between hosts."""
        if self.link_bits is None:
            return "not logged" if self.exchanges else ""
        if self.throttle_bits and self.throttle_bits <= self.link_bits * 1.001:
            return units.bit_rate(self.throttle_bits)
        if len(set(self.hosts)) == 1:
            return "one host's memory"
        return "about " + units.bit_rate(round_rate(self.link_bits))

    # Where the time went.

    @cached_property
    def typical(self) -> dict[str, float] | None:
        """The typical epoch's row; None where no epoch has ended."""
        if not len(self.epochs):
            return None
        starts = {int(self.epochs["epoch"].iloc[0])}
        if self.sessions is not None and "first_epoch" in self.sessions:
            starts |= {int(epoch) for epoch in self.sessions["first_epoch"]}
        rows = self.epochs
        for kept in (rows["epoch"] >= math.ceil(self._number("compress-warmup") or 0), ~rows["epoch"].isin(starts)):
            if kept.reindex(rows.index).any():
                rows = rows[kept.reindex(rows.index)]
        rows = rows.sort_values(["epoch_s", "epoch"])
        return {str(key): value for key, value in rows.iloc[(len(rows) - 1) // 2].items()}

    def time(self, column: str) -> float | None:
        """Of the typical epoch; None where the log has no such column."""
        return None if self.typical is None else self.typical.get(column)

    @property
    def epoch_s(self) -> float | None:
        return self.time("epoch_s")

    @property
    def hidden_s(self) -> float | None:
        """Communication behind computation."""
        comm, exposed = self.time("comm_s"), self.time("exposed_comm_s")
        return None if comm is None or exposed is None else max(0.0, comm - exposed)

    @property
    def images_per_s(self) -> float | None:
        samples = self.time("samples")
        return samples / self.epoch_s if samples and self.epoch_s else None

    def of_typical(self, table: pd.DataFrame | None) -> pd.DataFrame | None:
        """Its rows for the typical epoch; None without any."""
        if table is None or self.typical is None or "epoch" not in table:
            return None
        rows = table[table["epoch"] == self.typical["epoch"]]
        return rows if len(rows) else None

    @cached_property
    def busiest_link_bytes(self) -> float | None:
        """What the busiest rank sent or received in the typical epoch, whichever is more."""
        rows = self.of_typical(self.ranks)
        if rows is not None and {"sent_bytes", "received_bytes"} <= set(rows):
            return float(rows[["sent_bytes", "received_bytes"]].max().max())
        sent = self.time("sent_bytes")
        return None if sent is None else sent / self.world_size

    @cached_property
    def gradient_bytes(self) -> float | None:
        """The gradient in fp32."""
        value = self.model.get("gradient_bytes")
        return None if value is None else float(value)

    def last(self, column: str) -> float | None:
        if column not in self.epochs or not len(self.epochs):
            return None
        return float(self.epochs[column].iloc[-1])


def round_rate(bits_per_s: float) -> float:
    """The next of 1, 2, 5 times a power of ten by ratio: measured rates differ a little from run to run."""
    power = 10.0**math.floor(math.log10(bits_per_s))
    return min((step * power for step in (1, 2, 5, 10)), key=lambda rate: abs(math.log(rate / bits_per_s)))
