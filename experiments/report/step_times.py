"""Seconds a step over links, epoch by epoch, as runs over these links took them. reach.py joins them with trainings.

A run over a link measures an exchange if it has the same model, ranks, batch, precision and exchange. The outer optimiser
of rounds costs next to nothing and is not asked for: the times of rounds stand for it, too. What an exchange sends depends
on how far a run has come (a warm-up, the mean rate of ecq), so an epoch of a training has the times of the epoch that lies
at the same share of the other run, whose warm-up must be the same share.
"""
from __future__ import annotations

import statistics
from dataclasses import dataclass

from . import compare
from .run import Run

# Options and circumstances that change the time of a step and nothing that is learnt.
SLOWER_OR_FASTER = {"device", "cores_per_rank", "threads_per_rank", "threads", "overlap", "accumulate", "gpu-exchange"}
_ASKED = compare.EXCHANGE - {"compress-warmup"}


def link_of(run: Run) -> str:
    """The rate of the link, and what makes it: "10 Mbit/s, lab", or "about 1 Gbit/s" as the run has measured it."""
    return run.link_name + (", throttled" if run.throttle_bits else ", lab" if run.nominal_bits else "")


def is_over_link(run: Run) -> bool:
    """Whether its ranks exchanged over a link of known rate: one that was set, or one between hosts that was measured."""
    return run.exchanges and (run.nominal_bits is not None or len(set(run.hosts)) > 1 and run.link_bits is not None)


def follows_link(run: Run) -> bool:
    """Whether what is sent follows from the link: auto."""
    return run.config.get("compress", "").startswith("auto")


def exchange_of(run: Run) -> str:
    """As Run.exchange; what auto sends follows from its link."""
    return run.exchange + (f" at {link_of(run)}" if follows_link(run) else "")


def machine_of(run: Run) -> tuple:
    """What the time of computation depends on."""
    return (run.model_name, run.world_size, run.batch, run.config.get("precision"))


def _costs(run: Run) -> tuple:
    """What the time of a step depends on, beside the link."""
    asked = {name: run.config.get(name, "") for name in _ASKED} | {
        "sync-every": run.sync_every, "sync-delay": run.sync_delay}
    return (*machine_of(run), run.warm_up / max(1, len(run.epochs)), link_of(run) if follows_link(run) else "",
            *sorted(asked.items()))


@dataclass
class Measured:
    """The runs of one exchange over one link."""
    runs: list[Run]

    def __post_init__(self) -> None:
        self._rows: list[list[dict[str, float]]] = [run.epochs.to_dict("records") for run in self.runs]

    @property
    def steps(self) -> int:
        return sum(Run.optimizer_steps_in(row) or 0 for rows in self._rows for row in rows)

    def step_s(self, share: float, exchanges: float) -> float:
        """At that share of a training, in whose steps there are so many exchanges each (1, or fewer with rounds): the time
        without exposed communication, and the exposed communication of each exchange; the median over the runs. The former
        is never that of a run's first epoch, which includes work that is done once, if the run has others."""
        found = []
        for rows in self._rows:
            at = min(int(share * len(rows)), len(rows) - 1)
            row, computed = rows[at], rows[max(at, min(1, len(rows) - 1))]
            if computed["global_batch"] != row["global_batch"]:
                computed = row
            found.append((computed["epoch_s"] - computed.get("exposed_comm_s", 0.0)) / (Run.optimizer_steps_in(computed) or 1) +
                         exchanges * row.get("exposed_comm_s", 0.0) / (Run.steps_in(row) or 1))
        return statistics.median(found)


class StepTimes:
    """The times that are found in these runs."""
    def __init__(self, runs: list[Run]) -> None:
        whole = [run for run in runs if run.is_finished and run.typical is not None and run.optimizer_steps_in(run.typical)]
        over = [run for run in whole if is_over_link(run)]
        self._over = {key: Measured(own) for key, own in compare.groups(over, lambda run: (_costs(run), link_of(run))).items()}
        self._alone = compare.groups((run for run in whole if run.config.get("exchange") == "off" and run.world_size > 1),
                                     machine_of)
        self._bits = {link_of(run): run.link_bits or 0.0 for run in over}

    def over_links(self, run: Run) -> dict[str, Measured]:
        """By link, what measured the exchange of this run."""
        return {link: measured for (costs, link), measured in self._over.items() if costs == _costs(run)}

    def slowest_first(self, links: set[str]) -> list[str]:
        return sorted(links, key=lambda link: (self._bits.get(link, 0.0), link))

    def without_network(self, run: Run) -> list[float]:
        """Seconds a step of the runs with --exchange off."""
        return [(alone.epoch_s or 0.0) / (alone.optimizer_steps_in(alone.typical or {}) or 1)
                for alone in self._alone.get(machine_of(run), [])]
