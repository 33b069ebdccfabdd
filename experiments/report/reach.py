"""Time and bytes to an accuracy: joins accuracy curves with step times that other runs have measured over links.

What an exchange does to learning does not depend on the link, so a training runs once, and the times of its steps over
several links are measured by short runs apart from it. A curve and a time belong together if their runs have the same
model, ranks, batch and exchange.
"""
from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass, field

from . import compare, units
from .run import Run

LEAST_EPOCHS = 3  # of a curve; shorter runs only have times
SPREADS = 2.0  # equal to fp32: within so many standard deviations of its seeds


def exchange_of(run: Run) -> str:
    """What a rank exchanges and how often: "q8", "ecq:bits=1, H = 16", "none, H = 4, outer 0.7/0.5"."""
    text = run.codec
    every = run.config.get("sync-every", "off")
    if every not in ("", "off"):
        text += f", H = {every}"
        if (run.config.get("sync-delay") or "0") != "0":
            text += f", delay {run.config['sync-delay']}"
        rate, momentum = run.config.get("outer-lr", "1"), run.config.get("outer-momentum", "0")
        if (rate, momentum) != ("1", "0"):
            text += f", outer {rate}/{momentum}"
    # What auto sends follows from its link.
    return text + (f" at {run.link_name}" if run.config.get("compress", "").startswith("auto") else "")


def _costs(run: Run) -> tuple:
    """What the time of a step depends on, beside the link. The outer optimiser costs next to nothing, and times are of
    epochs after a warm-up."""
    return (run.model_name, run.world_size, run.batch, run.config.get("precision"), run.topology,
            re.sub(" after [0-9]+ epochs", "", exchange_of(run).split(", outer")[0]))


def _work(run: Run) -> tuple:
    return (run.model_name, run.config.get("dataset"), run.world_size, run.global_batch, run.samples, len(run.epochs))


@dataclass
class Curve:
    """The runs of one exchange, which differ in their seeds."""
    exchange: str
    runs: list[Run]
    epochs: list[float]  # counted from 1
    accuracy: list[float]  # the mean over the seeds after each epoch
    spread: list[float]  # their standard deviation; 0 for one seed
    sent_mb: list[float]  # by a rank, from the start
    step_s: dict[str, float] = field(default_factory=dict)  # by link

    @property
    def steps_per_epoch(self) -> float:
        return self.runs[0].optimizer_steps_in(self.runs[0].typical or {}) or math.nan

    def epochs_to(self, accuracy: float) -> float | None:
        """When the mean first comes to it, on straight lines between the epochs."""
        before, at = 0.0, None
        for epoch, value in zip(self.epochs, self.accuracy):
            if value >= accuracy:
                if at is None or epoch == self.epochs[0]:
                    return epoch
                return epoch - 1 + (accuracy - before) / (value - before)
            before, at = value, epoch
        return None

    def mb_to(self, accuracy: float) -> float | None:
        end = self.epochs_to(accuracy)
        if end is None:
            return None
        sent = [0.0, *self.sent_mb]
        whole = math.floor(end)
        return sent[whole] + (end - whole) * (sent[min(whole + 1, len(sent) - 1)] - sent[whole])

    def seconds_to(self, accuracy: float, link: str) -> float | None:
        end, step_s = self.epochs_to(accuracy), self.step_s.get(link)
        return None if end is None or step_s is None else end * self.steps_per_epoch * step_s


@dataclass
class Reach:
    """The curves of one kind of training, fp32 at every step first."""
    curves: list[Curve]
    links: list[str]  # the slowest first

    @property
    def fp32(self) -> Curve:
        return self.curves[0]

    @property
    def equal(self) -> float:
        """The least accuracy that counts as equal to fp32's."""
        return self.fp32.accuracy[-1] - SPREADS * self.fp32.spread[-1]

    @property
    def marks(self) -> list[float]:
        """The accuracies for which times and bytes are given: one that most exchanges reach, and the equal one."""
        return [math.floor(90 * self.fp32.accuracy[-1]) / 100, self.equal]


def _curve(exchange: str, runs: list[Run]) -> Curve:
    count = min(len(run.epochs) for run in runs)
    values = [[float(run.epochs["test_accuracy"].iloc[e]) for run in runs] for e in range(count)]
    sent = [run.epochs["sent_bytes"].cumsum() / 1e6 / run.world_size for run in runs]
    return Curve(exchange, runs, [e + 1.0 for e in range(count)], [statistics.mean(row) for row in values],
                 [statistics.stdev(row) if len(row) > 1 else 0.0 for row in values],
                 [statistics.mean(float(one.iloc[e]) for one in sent) for e in range(count)])


def _measured(runs: list[Run]) -> dict[tuple, dict[str, list[float]]]:
    """Seconds a step, by costs and link."""
    found: dict[tuple, dict[str, list[float]]] = {}
    for run in runs:
        steps = run.optimizer_steps_in(run.typical) if run.typical else None
        if run.exchanges and run.nominal_bits and steps and run.epoch_s:
            found.setdefault(_costs(run), {}).setdefault(run.link_name, []).append(run.epoch_s / steps)
    return found


def reaches(runs: list[Run]) -> list[Reach]:
    """For each kind of training that has fp32 with several seeds, and other exchanges."""
    trained = [run for run in runs if run.exchanges and len(run.epochs) >= LEAST_EPOCHS and run.typical is not None
               and units.is_number(run.last("test_accuracy")) and "sent_bytes" in run.epochs]
    measured, found = _measured(runs), []
    rates = {run.link_name: run.nominal_bits for run in runs if run.exchanges and run.nominal_bits}
    for same in compare.groups(trained, _work).values():
        curves = []
        for exchange, own in compare.groups(same, lambda run: (exchange_of(run), run.topology)).items():
            # A run over each of several links has one curve.
            seeds = list({run.config.get("seed"): run for run in own}.values())
            curve = _curve(exchange[0], seeds)
            times = measured.get(_costs(own[0]), {})
            curve.step_s = {link: statistics.median(values) for link, values in times.items()}
            curves.append(curve)
        exact = [curve for curve in curves if curve.exchange == "none" and len(curve.runs) > 1]
        if not exact or len(curves) < 2:
            continue
        names = [curve.exchange for curve in curves]
        for curve in curves:
            if names.count(curve.exchange) > 1:
                curve.exchange += f", {curve.runs[0].topology}"
        curves.sort(key=lambda curve: (curve is not exact[0], -curve.sent_mb[-1]))
        links = sorted({link for curve in curves for link in curve.step_s}, key=lambda link: rates[link] or 0.0)
        found.append(Reach(curves, links))
    return found
