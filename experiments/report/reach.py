"""Time and bytes to an accuracy: joins accuracy curves with step times that other runs have measured over links.

What an exchange does to learning does not depend on the link, so a training runs once, and the times of its steps over
several links are measured by short runs apart from it (step_times.py).
"""
from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass, field

from . import compare, units
from .peers import Peer
from .run import Run, standard_error
from .step_times import Measured, StepTimes, exchange_of, follows_link, is_over_link, link_of, machine_of

LEAST_EPOCHS = 3  # of a curve; shorter runs only have times
SPREADS = 2.0  # equal to fp32: within so many standard deviations of its seeds


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""
    accuracy: float | None = None  # --reach
    peers: tuple[Peer, ...] = ()  # --peers
    curves: tuple[Run, ...] = ()  # --curves: trainings without times


def _along(values: list[float], end: float) -> float:
    """`values` after epoch 1, 2, ..., which begin with 0: their value after `end` epochs, on straight lines."""
    after = [0.0, *values]
    whole = min(math.floor(end), len(values))
    return after[whole] + (end - whole) * (after[min(whole + 1, len(values))] - after[whole])


def _epochs_to(accuracies: list[float], wanted: float) -> float | None:
    """After how many epochs they first come to it, on straight lines between the epochs. Nobody knows the accuracy before
    the end of the first one."""
    for epoch, accuracy in enumerate(accuracies, 1):
        if accuracy >= wanted:
            before = accuracies[epoch - 2]
            return 1.0 if epoch == 1 else epoch - 1 + (wanted - before) / (accuracy - before)
    return None


@dataclass
class Curve:
    """The runs of one exchange, which differ in their seeds."""
    exchange: str
    runs: list[Run]
    seeds: list[list[float]]  # the accuracies of each run
    accuracy: list[float]  # their mean after each epoch
    spread: list[float]  # their standard deviation; 0 for one seed
    chance: list[float]  # the standard error of one run's accuracy, from the number of test images; 0 if that is unknown
    train_loss: float  # the mean of their last ones
    sent_mb: list[float]  # by a rank, from the start
    steps: list[float]  # of each epoch
    step_s: dict[str, list[float]] = field(default_factory=dict)  # of each epoch, by link
    measured: dict[str, Measured] = field(default_factory=dict)  # what step_s comes from

    @property
    def deviation(self) -> list[float]:
        """Of a run: that of the seeds, or that of its test images where this is larger, since few seeds may end alike."""
        return [max(both) for both in zip(self.spread, self.chance)]

    @property
    def seeds_are(self) -> set[str]:
        return {run.config.get("seed", "") for run in self.runs}

    @property
    def revisions(self) -> list[str]:
        """Of dptrain, that made the runs."""
        return list(dict.fromkeys(str(run.attributes.get("git_revision", "")) or "unknown" for run in self.runs))

    @property
    def epochs(self) -> list[float]:
        return [e + 1.0 for e in range(len(self.accuracy))]

    def epochs_to(self, accuracy: float) -> float | None:
        return _epochs_to(self.accuracy, accuracy)

    def mb_to(self, accuracy: float) -> float | None:
        end = self.epochs_to(accuracy)
        return None if end is None else _along(self.sent_mb, end)

    def after_epochs(self, step_s: list[float]) -> list[float]:
        """Seconds from the start to the end of each epoch, with these times of a step."""
        spent, ends = 0.0, []
        for steps, one_s in zip(self.steps, step_s):
            spent += steps * one_s
            ends.append(spent)
        return ends

    def seconds_to(self, accuracy: float, step_s: list[float]) -> float | None:
        end = self.epochs_to(accuracy)
        return None if end is None else _along(self.after_epochs(step_s), end)

    def seconds_of_seeds(self, accuracy: float, step_s: list[float]) -> tuple[float | None, float | None]:
        """The least and the most over the seeds; no most if a seed does not come to it."""
        after = self.after_epochs(step_s)
        ends = [_epochs_to(seed, accuracy) for seed in self.seeds]
        there = [_along(after, end) for end in ends if end is not None]
        if len(self.seeds) < 2 or not there:
            return None, None
        return min(there), max(there) if len(there) == len(ends) else None


@dataclass
class Reach:
    """The curves of one kind of training, fp32 at every step first."""
    curves: list[Curve]
    links: list[str]  # the slowest first
    alone_s: list[float]  # seconds a step of the runs without an exchange
    differs: str = ""  # in which options it differs from others of the same title
    is_on_wire: bool = False  # whether the curves' bytes are those on the wire; else those handed to MPI

    @property
    def title(self) -> str:
        first = self.fp32.runs[0]
        return (f"{first.model_name}, {first.world_size} ranks x {units.size(first.batch)}, {len(first.epochs)} epochs of "
                f"{units.whole(first.samples)} images" + (f", {self.differs}" if self.differs else ""))

    @property
    def fp32(self) -> Curve:
        return self.curves[0]

    @property
    def equal(self) -> float | None:
        """The least accuracy that counts as equal to fp32's. One seed does not tell."""
        return self.fp32.accuracy[-1] - SPREADS * self.fp32.deviation[-1] if len(self.fp32.runs) > 1 else None

    def marks(self, asked: float | None) -> list[float]:
        """The accuracies for which times and bytes are given: the one that is asked for, or else one that most exchanges
        reach; and the equal one."""
        first = math.floor(round(90 * self.fp32.accuracy[-1], 6)) / 100 if asked is None else asked
        return [first] + ([self.equal] if self.equal is not None else [])

    def fp32_after(self, seconds: float, link: str) -> tuple[float, float] | None:
        """fp32's accuracy and its deviation when it has trained so long over the link, on straight lines. Before
        the end of its first epoch it has that epoch's, which is more than it can have."""
        if link not in self.fp32.step_s:
            return None
        ends = self.fp32.after_epochs(self.fp32.step_s[link])
        for e, end in enumerate(ends):
            if seconds <= end:
                share = (seconds - ends[e - 1]) / (end - ends[e - 1]) if e > 0 else 1.0
                return tuple(values[max(0, e - 1)] + share * (values[e] - values[max(0, e - 1)])
                             for values in (self.fp32.accuracy, self.fp32.deviation))  # type: ignore[return-value]
        return self.fp32.accuracy[-1], self.fp32.deviation[-1]

    def at_equal_time(self, curve: Curve, link: str) -> str | None:
        """How the curve's last accuracy lies to fp32's at the same time: "above", "equal" or "below"."""
        then = self.fp32_after(curve.after_epochs(curve.step_s[link])[-1], link)
        if then is None or self.equal is None or curve is self.fp32:
            return None
        more = curve.accuracy[-1] - then[0]
        return "equal" if abs(more) <= SPREADS * then[1] else "above" if more > 0 else "below"


def _curve(exchange: str, runs: list[Run], volume: str) -> Curve:
    seeds = [[float(value) for value in run.epochs["test_accuracy"]] for run in runs]
    sent = [run.epochs[volume].cumsum() / 1e6 / run.world_size for run in runs]
    rows = runs[0].epochs.to_dict("records")
    return Curve(exchange, runs, seeds, [statistics.mean(values) for values in zip(*seeds)],
                 [statistics.stdev(values) if len(values) > 1 else 0.0 for values in zip(*seeds)],
                 [standard_error(statistics.mean(values), runs[0].test_images) or 0.0 for values in zip(*seeds)],
                 statistics.mean(math.nan if (loss := run.last("train_loss")) is None else loss for run in runs),
                 [statistics.mean(values) for values in zip(*sent)], [Run.optimizer_steps_in(row) or 0.0 for row in rows])


def _join(curve: Curve, times: StepTimes) -> None:
    count, rows = len(curve.steps), [run.epochs.to_dict("records") for run in curve.runs]
    exchanges = [statistics.mean((Run.steps_in(own[e]) or 0) / (Run.optimizer_steps_in(own[e]) or 1) for own in rows)
                 for e in range(count)]
    curve.measured = times.over_links(curve.runs[0])
    curve.step_s = {link: [measured.step_s((e + 0.5) / count, exchanges[e]) for e in range(count)]
                    for link, measured in curve.measured.items()}


def _trainings(runs: list[Run]) -> list[list[list[Run]]]:
    """For each kind of training that has fp32 at every step and other exchanges: the runs of each exchange, fp32's first."""
    trained = [run for run in runs if run.exchanges and run.is_finished and len(run.epochs) >= LEAST_EPOCHS
               and units.is_number(run.last("test_accuracy")) and "sent_bytes" in run.epochs]
    found = []
    for same in compare.groups(trained, lambda run: compare.work(run, compare.EXCHANGE | compare.PLACE)).values():
        by_exchange = list(compare.groups(same, lambda run: (exchange_of(run), run.topology)).values())
        exact = [own for own in by_exchange if exchange_of(own[0]) == "none"]
        if exact and len(by_exchange) > 1:
            first = max(exact, key=lambda own: len(compare.by_seed(own)))
            found.append([first, *(own for own in by_exchange if own is not first)])
    return [kind for kind in found if not any(_measures(kind, other) for other in found)]


def _measures(short: list[list[Run]], other: list[list[Run]]) -> bool:
    """Whether the former were run only for the times of the latter's steps: all over links, and in fewer steps. Trainings that
    were all over links themselves need none."""
    one, longer = short[0][0], other[0][0]
    return (machine_of(one) == machine_of(longer) and _images(one) < _images(longer)
            and _are_over_links(short) and not _are_over_links(other))


def _are_over_links(kind: list[list[Run]]) -> bool:
    return all(is_over_link(run) for own in kind for run in own)


def _images(run: Run) -> float:
    return float(run.epochs["samples"].sum())


def _same_training(run: Run) -> tuple:
    return (compare.work(run, compare.PLACE), run.config.get("seed", ""), link_of(run) if follows_link(run) else "")


def trainings(runs: list[Run], curves: Collection[Run]) -> list[Run]:
    """The runs whose accuracies count, one a seed, of the logs and then of the curves. A log stands for a curve of the same
    training."""
    logged = {_same_training(run) for run in runs if run.is_finished}
    all_of_them = [*runs, *(curve for curve in curves if _same_training(curve) not in logged)]
    return [same[0] for kind in _trainings(all_of_them) for own in kind for same in compare.by_seed(own).values()]


def with_curves(runs: list[Run]) -> list[Run]:
    """Without those that were run only for the times of steps: over links or without an exchange, beside longer trainings of
    which they are the times."""
    trained = [run for run in trainings(runs, ()) if not is_over_link(run)]
    return [run for run in runs if not ((is_over_link(run) or not run.exchanges) and any(
        machine_of(run) == machine_of(longer) and _images(run) < _images(longer) for longer in trained))]


def repeated(runs: list[Run]) -> list[str]:
    """A sentence for each run that repeats another one, so that its curve has no use for it. A training over each of several
    links is no repetition."""
    said = []
    for by_exchange in _trainings(runs):
        for own in by_exchange:
            for same in compare.by_seed(own).values():
                for first, *others in compare.groups(same, lambda run: run.link_name).values():
                    said += [f"{other.path}: is the same training as {first.path}, with the same seed; the accuracies of "
                             f"'{exchange_of(first)}' leave it out" for other in others]
    return said


def without_table(runs: list[Run], asked: Asked) -> list[str]:
    """A sentence for each file whose curves or rows are in no table."""
    found, said = reaches(runs, asked.curves), []
    shown = {_same_training(run) for reach in found for curve in reach.curves for run in curve.runs}
    lost = [curve for curve in asked.curves if _same_training(curve) not in shown]
    for path, own in compare.groups(lost, lambda curve: curve.path).items():
        names = compare.some(curve.label for curve in own)
        said.append(f"{path}: {names}: in no table of time and bytes, because no training with fp32 at every step "
                    f"(--compress none) has all their other options and {LEAST_EPOCHS} epochs or more")
    if asked.peers and not any(_is_beside(peer, reach) for peer in asked.peers for reach in found):
        kinds = dict.fromkeys(f"{peer.model}, {peer.ranks} ranks x {peer.batch}" for peer in asked.peers)
        said.append(f"--peers: no row is shown, because no training that is compared is one of {compare.some(kinds)}")
    return said


def _is_beside(peer: Peer, reach: Reach) -> bool:
    first = reach.fp32.runs[0]
    return (peer.model, peer.ranks, peer.batch) == (first.model_name, first.world_size, first.batch)


def peers_of(reach: Reach, peers: Collection[Peer]) -> list[Peer]:
    """Those that ran what these trainings are."""
    return [peer for peer in peers if _is_beside(peer, reach)]


def reaches(runs: list[Run], curves: Collection[Run] = ()) -> list[Reach]:
    times, found = StepTimes(runs), []
    for by_exchange in _trainings(trainings(runs, curves)):
        by_seed = [[same[0] for same in compare.by_seed(own).values()] for own in by_exchange]
        # Older logs and curves do not say what was on the wire.
        is_on_wire = all(run.has_wire_bytes for own in by_seed for run in own)
        volume = "wire_bytes" if is_on_wire else "sent_bytes"
        of_all = [_curve(exchange_of(own[0]), own, volume) for own in by_seed]
        names = [curve.exchange for curve in of_all]
        for curve in of_all:
            _join(curve, times)
            if names.count(curve.exchange) > 1:
                curve.exchange += f", {curve.runs[0].topology}"
        others = sorted(of_all[1:], key=lambda curve: -curve.sent_mb[-1])
        found.append(Reach([of_all[0], *others], times.slowest_first({link for curve in of_all for link in curve.step_s}),
                           times.without_network(of_all[0].runs[0]), is_on_wire=is_on_wire))
    for same in compare.groups(found, lambda reach: reach.title).values():
        firsts = [reach.fp32.runs[0] for reach in same]
        names, settings = compare.differences(firsts)
        names = [name for name in names if name not in compare.PLACE | compare.EXCHANGE | {"seed"}]
        for reach, own in zip(same, settings):
            reach.differs = ", ".join(f"{name} {own.get(name) or 'not given'}" for name in names) if len(same) > 1 else ""
    return found
