"""A run: the attributes and tables of its log, and what follows from this log alone.

A run's times are those of its *typical epoch*, the median epoch by time. For an odd number of epochs it is the
middle one. For an even number it is the mean of the two middle ones in every column, so that the parts add up. Two
kinds of epochs count only if the run has no others: the first one after every start of the program, which includes
work that is done once, and those during the codec's warm-up.
"""
from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from . import units


WHOLE_TEST_SETS = {"cifar10": 10_000, "cifar100": 10_000}  # their numbers of images
CERTAIN = 0.1  # a measured rate that is known to this share is taken as it is


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
    tensors: pd.DataFrame | None = None  # those that some exchange has delivered nothing of
    problems: list[str] = field(default_factory=list)
    shares: pd.DataFrame | None = None  # the images of each rank, where they were chosen
    number: int = 0  # its number in the report, which gives the run its colour

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
        """Whether gradients were exchanged. One rank has no other to exchange with, and with --exchange off every
        rank trains alone."""
        return self.world_size > 1 and self.config.get("exchange", "on") != "off"

    @property
    def has_one_model(self) -> bool:
        """False if every rank trained its own model."""
        return self.world_size == 1 or self.exchanges

    @property
    def codec(self) -> str:
        """The value of --compress. A single rank sends nothing."""
        if not self.exchanges:
            return "no exchange" if self.world_size > 1 else ""
        return self.config.get("compress", "") + (f" after {self.config['compress-warmup']} epochs" if self.warm_up else "")

    @property
    def warm_up(self) -> int:
        """The number of epochs of the codec's warm-up."""
        return math.ceil(self._number("compress-warmup") or 0)

    @property
    def sync_every(self) -> str:
        """When ranks exchange, --sync-every without keys of the outer optimiser; an empty text if they do at every step."""
        steps, _, keys = self.config.get("sync-every", "").partition(":")
        if not self.exchanges or steps == "off":
            return ""
        kept = ",".join(key for key in keys.split(",") if key and not key.startswith(("outer-", "delay=")))
        return f"{steps}:{kept}" if kept else steps

    @property
    def outer(self) -> tuple[str, str] | None:
        """Rate and momentum of the outer optimiser that takes the mean change of a round; None for the mean alone."""
        keys = dict(re.findall(r"\b(outer-lr|outer-momentum)=([^,]+)", self.config.get("sync-every", "")))
        return (keys.get("outer-lr", "1"), keys.get("outer-momentum", "0")) if self.sync_every and keys else None

    @property
    def sync_delay(self) -> str:
        """The steps of the next round behind which an exchange runs."""
        found = re.search(r"\bdelay=([0-9]+)", self.config.get("sync-every", ""))
        return found[1] if found else "0"

    @property
    def exchange(self) -> str:
        """What a rank exchanges and how often: "q8", "ecq:bits=1, H = 16", "none, H = 4, outer 0.7/0.5"."""
        text = self.codec
        if self.exchanges and self.config.get("compress-exclude"):
            text += f", not {self.config['compress-exclude']}"
        if self.sync_every:
            text += f", H = {self.sync_every}"
            if self.sync_delay != "0":
                text += f", delay {self.sync_delay}"
            text += f", outer {'/'.join(self.outer)}" if self.outer else ""
        return text

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
        """Images per step and rank."""
        if self.global_batch is None:
            return self._number("batch-size")
        value = self.global_batch / self.world_size
        return int(value) if value == int(value) else value

    @property
    def samples(self) -> int | None:
        return int(self.epochs["samples"].iloc[-1]) if len(self.epochs) else None

    @staticmethod
    def optimizer_steps_in(epoch: Mapping[str, float]) -> int | None:
        """The number of steps in the epoch of this row."""
        samples, batch = epoch.get("samples"), epoch.get("global_batch")
        return math.ceil(samples / batch) if samples and batch else None

    @staticmethod
    def steps_in(epoch: Mapping[str, float]) -> int | None:
        """The number of all-reduces in the epoch of this row: of the gradient in each step, or at the end of each round."""
        exchanges = epoch.get("exchanges")
        return round(exchanges) if exchanges else Run.optimizer_steps_in(epoch)

    @property
    def steps_per_epoch(self) -> int | None:
        """The number K of all-reduces in the typical epoch."""
        return None if self.typical is None else self.steps_in(self.typical)

    def _number(self, option: str) -> float | None:
        try:
            value = float(self.config[option])
        except (KeyError, ValueError):
            return None
        return value if math.isfinite(value) else None

    # The link of a rank.

    def given(self, attribute: str) -> float | None:
        """An attribute of the log that is a number, or None."""
        value = self.attributes.get(attribute)
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    @property
    def throttle_bits(self) -> float | None:
        return units.parse_bit_rate(self.config.get("throttle", "off"))

    @cached_property
    def nominal_bits(self) -> float | None:
        """The rate to which a lab or --throttle set the link, in bit/s; None if it was not set."""
        rates = [self.given("nominal_bit_per_s") or 0.0, self.throttle_bits or 0.0]
        return min((rate for rate in rates if rate > 0), default=None)

    @property
    def nominal_delay_s(self) -> float | None:
        """The delay from host to host, one way, as a lab set it."""
        return self.given("nominal_delay_s")

    @property
    def nominal_loss(self) -> float | None:
        return self.given("nominal_loss")

    @property
    def is_shared(self) -> bool:
        """Whether all hosts send over one medium in turn."""
        return bool(self.given("nominal_is_shared"))

    @property
    def measured_bits(self) -> float | None:
        """The rate in bit/s as measured when the program started."""
        return 8 * (self.given("link_bytes_per_s") or 0.0) or None

    @property
    def uncertain_share(self) -> float | None:
        """By which share the measured rate may be wrong, where link_bits is that rate and it did not become steady."""
        share = self.given("link_uncertainty") or 0.0
        return share if share > CERTAIN and self.link_bits is not None and self.link_bits == self.measured_bits else None

    @property
    def bucket_mb(self) -> str:
        """--bucket-mb, and with auto also what was chosen."""
        said, chosen = self.config.get("bucket-mb", ""), self.given("bucket_bytes")
        return f"auto ({units.digits(chosen / 1e6)})" if said == "auto" and chosen else said

    @property
    def _is_in_lab(self) -> bool:
        return self.nominal_bits is not None and (self.nominal_delay_s is not None or self.nominal_loss is not None)

    @cached_property
    def link_bits(self) -> float | None:
        """The rate in bit/s in each direction; None if it was not logged, or for one rank. A lab's rate is known;
        --throttle may exceed the real rate."""
        if not self.exchanges:
            return None
        if self._is_in_lab and not self.throttle_bits:
            return self.nominal_bits
        return min((rate for rate in (self.measured_bits, self.nominal_bits) if rate), default=None)

    @property
    def latency_s(self) -> float | None:
        """The latency of one message. If a lab has a delay, it is that, since loss disturbs the measurement."""
        if not self.exchanges:
            return None
        return self.nominal_delay_s or self.given("link_latency_s")

    @cached_property
    def hops(self) -> float | None:
        """The number of messages of one exchange that follow one after the other; None if unknown."""
        names = [str(topology) for topology in self.attributes.get("topology_names", [])]
        counts = self.attributes.get("topology_hops")
        counts = counts if isinstance(counts, list) else [counts]
        known = {name: float(hops) for name, hops in zip(names, counts)
                 if isinstance(hops, (int, float)) and math.isfinite(hops)}
        if self.topology in known or known:
            return known.get(self.topology, max(known.values()))
        # This log is older than topology_hops.
        p, hosts = self.world_size, len(set(self.hosts)) or 1
        return {
            "ring": 2 * (p - 1), "direct": 2, "ps": 2, "tree": 2 * (p.bit_length() - 1),
            "hierarchical": 2 * max(1, hosts - 1)
        }.get(self.topology)

    @cached_property
    def link_name(self) -> str:
        """The rate by which runs are grouped: the rate that was set, or the measured rate between hosts, rounded to
        1, 2 or 5 times a power of ten."""
        if self.link_bits is None:
            return "not logged" if self.exchanges else ""
        if self.nominal_bits and self.nominal_bits <= self.link_bits * 1.001:
            said = [units.bit_rate(self.nominal_bits)]
            said += [f"{1e3 * self.nominal_delay_s:g} ms"] if self.nominal_delay_s else []
            said += [f"{100 * self.nominal_loss:g} % loss"] if self.nominal_loss else []
            return ", ".join(said + (["shared"] if self.is_shared else []))
        if len(set(self.hosts)) == 1:
            return "one host's memory"
        return "about " + units.bit_rate(round_rate(self.link_bits))

    # Where the time went.

    @cached_property
    def counted(self) -> pd.DataFrame:
        """The epochs whose times count."""
        rows = self.epochs
        if not len(rows):
            return rows
        starts = {int(rows["epoch"].iloc[0])}
        if self.sessions is not None and "first_epoch" in self.sessions:
            starts |= {int(epoch) for epoch in self.sessions["first_epoch"]}
        for kept in (rows["epoch"] >= self.warm_up, ~rows["epoch"].isin(starts)):
            if kept.reindex(rows.index).any():
                rows = rows[kept.reindex(rows.index)]
        return rows

    @cached_property
    def _middle(self) -> pd.DataFrame:
        """The counted epoch with the median time, or the two middle ones."""
        rows = self.counted.sort_values(["epoch_s", "epoch"])
        return rows.iloc[(len(rows) - 1) // 2:len(rows) // 2 + 1]

    @cached_property
    def typical(self) -> dict[str, float] | None:
        """The typical epoch's row; None if no epoch has ended."""
        return {str(key): value for key, value in self._middle.mean().items()} if len(self._middle) else None

    def time(self, column: str) -> float | None:
        """The column's value in the typical epoch; None if the log has no such column."""
        return None if self.typical is None else self.typical.get(column)

    @property
    def sent_an_epoch(self) -> float | None:
        """Bytes that all ranks sent in an epoch, the mean over all of them: a codec may send more in some than in others."""
        sent = self.epochs["sent_bytes"].mean() if "sent_bytes" in self.epochs else None
        return float(sent) if units.is_number(sent) else None

    @property
    def epoch_s(self) -> float | None:
        value = self.time("epoch_s")
        return None if value is None or math.isnan(value) else value

    @property
    def hidden_s(self) -> float | None:
        """The communication that ran behind computation."""
        comm, exposed = self.time("comm_s"), self.time("exposed_comm_s")
        return None if comm is None or exposed is None else max(0.0, comm - exposed)

    @property
    def images_per_s(self) -> float | None:
        samples = self.time("samples")
        return samples / self.epoch_s if samples and self.epoch_s else None

    def of_typical(self, table: pd.DataFrame | None, key: str = "rank") -> pd.DataFrame | None:
        """One row for each value of `key` in the typical epoch; None if there are none."""
        if table is None or not len(self._middle) or "epoch" not in table:
            return None
        rows = table[table["epoch"].isin(self._middle["epoch"])]
        return rows.groupby(key, as_index=False).mean() if len(rows) else None

    @cached_property
    def link_bytes(self) -> float | None:
        """The bytes of the busiest link in one direction in the typical epoch: what the busiest rank sent or
        received, whichever is more. If all share one medium, what all of them sent."""
        rows = self.of_typical(self.ranks)
        sent = self.time("sent_bytes")
        if self.is_shared:
            return sent
        if rows is not None and {"sent_bytes", "received_bytes"} <= set(rows):
            return float(rows[["sent_bytes", "received_bytes"]].max().max())
        return None if sent is None else sent / self.world_size

    @cached_property
    def gradient_bytes(self) -> float | None:
        """The gradient in fp32."""
        value = self.model.get("gradient_bytes")
        return None if value is None else float(value)

    @cached_property
    def test_images(self) -> int | None:
        """The number of images in the test set; None if the log does not have it, or if its accuracies contradict
        it."""
        count = self._number("limit-test") or WHOLE_TEST_SETS.get(self.config.get("dataset", ""))
        if not count or "test_accuracy" not in self.epochs:
            return None
        right = (self.epochs["test_accuracy"].dropna() * count).to_list()
        return int(count) if right and all(abs(value - round(value)) < 0.01 for value in right) else None

    @cached_property
    def accuracy_error(self) -> float | None:
        """The standard error of the last test accuracy, from the number of images."""
        return standard_error(self.last("test_accuracy"), self.test_images)

    @property
    def views(self) -> str:
        """The value of --test-augment of an evaluation at the end, or an empty text."""
        return str(self.attributes.get("test_augment", "")) if self.augmented_accuracy is not None else ""

    @property
    def augmented_accuracy(self) -> float | None:
        """The test accuracy of the mean over several views of each image, at the end of the run."""
        value = self.attributes.get("augmented_test_accuracy")
        return float(value) if units.is_number(value) and self.has_one_model else None

    @property
    def has_wire_bytes(self) -> bool:
        """Whether the log counts what was on the wire, headers included."""
        return "wire_bytes" in self.epochs and bool((self.epochs["wire_bytes"] > 0).all())

    def last(self, column: str) -> float | None:
        if column not in self.epochs or not len(self.epochs):
            return None
        return float(self.epochs[column].iloc[-1])


def standard_error(accuracy: float | None, images: int | None) -> float | None:
    """Of an accuracy p on n test images, sqrt(p (1 - p) / n); None if one of them is unknown."""
    return None if accuracy is None or not images or not 0 <= accuracy <= 1 else math.sqrt(accuracy * (1 - accuracy) / images)


def round_rate(bits_per_s: float) -> float:
    """The nearest of 1, 2 or 5 times a power of ten, by ratio, because measured rates differ a little between
    runs."""
    power = 10.0**math.floor(math.log10(bits_per_s))
    return min((step * power for step in (1, 2, 5, 10)), key=lambda rate: abs(math.log(rate / bits_per_s)))
