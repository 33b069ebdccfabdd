"""The one rule by which test accuracies are called different, and the Pareto front that follows from it."""
from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import TypeVar

from . import compare, units
from .run import Run
from .step_times import exchange_of

T = TypeVar("T")
PLACE = "Loss and accuracy"  # the table below which the rule stands
RULE = (
    "Two test accuracies are called different if they differ by more than two standard errors of their difference, "
    "2 sqrt(e1^2 + e2^2). The standard error e of a run is sqrt(p (1 - p) / n) for an accuracy p on n test images. If some "
    "runs differ only in the seed and their accuracies have a larger standard deviation, it is that. Where neither is known, "
    "every difference counts.")


def alike(run: Run) -> tuple:
    """What runs share that differ only in the seed."""
    return compare.work(run), exchange_of(run)


def standard_errors(runs: Iterable[Run]) -> dict[str, float]:
    """The standard error of each run's last test accuracy, by the run's label. A run is missing if its log tells neither
    the number of test images nor whether it differs from another one only in the seed."""
    errors: dict[str, float] = {}
    judged = [run for run in runs if units.is_number(run.last("test_accuracy"))]
    for same in compare.groups(judged, alike).values():
        seeds = [own[0].last("test_accuracy") or 0.0 for own in compare.by_seed(same).values()]
        spread = statistics.stdev(seeds) if len(seeds) > 1 else None
        for run in same:
            known = [error for error in (run.accuracy_error, spread) if error is not None]
            if known:
                errors[run.label] = max(known)
    return errors


def of_difference(one: float | None, other: float | None) -> float | None:
    """What a difference must exceed, from both standard errors."""
    return None if one is None or other is None else 2 * math.hypot(one, other)


def task(run: Run) -> tuple:
    """What runs must share so that their accuracies are of one task: network, images, epochs."""
    return run.model_name, run.config.get("dataset"), run.samples, run.config.get("limit-test"), len(run.epochs)


def fronts(items: Iterable[T], run: Callable[[T], Run], sent: Callable[[T], float], accuracy: Callable[[T], float],
           error: Callable[[T], float | None]) -> list[T]:
    """The Pareto fronts of all tasks."""
    return [one for same in compare.groups(items, lambda item: task(run(item))).values()
            for one in front(same, sent, accuracy, error)]


def front(items: Iterable[T], sent: Callable[[T], float], accuracy: Callable[[T], float],
          error: Callable[[T], float | None]) -> list[T]:
    """The Pareto front: begins with the item that sent the least, and has each further one whose accuracy is larger than,
    and different from, that of the item before it. Without standard errors every larger accuracy counts."""
    found: list[T] = []
    for item in sorted(items, key=lambda item: (sent(item), -accuracy(item))):
        if not found:
            found.append(item)
            continue
        chance = of_difference(error(item), error(found[-1])) or 0.0
        if accuracy(item) - accuracy(found[-1]) > chance:
            found.append(item)
    return found
