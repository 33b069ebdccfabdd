"""Compares runs: the run on one rank with which another is compared, options that differ, groups."""
from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .run import Run

T = TypeVar("T")
# These say where and how fast a run was made, or name its files. They do not describe the work.
NO_DIFFERENCE = {"log", "config", "quiet", "progress", "tensorboard", "print-config", "checkpoint", "trace", "data-dir"}
# What a rank sends, and when.
EXCHANGE = {"compress", "compress-exclude", "compress-warmup", "topology", "sync-every"}
# These change how long a step takes or what is written about it. What is learnt depends on them in the last bits at most.
PLACE = {"hosts", "device", "dptrain_version", "git_revision", "mpi_version", "cores_per_rank", "threads_per_rank",
         "exchange_path", "throttle", "threads", "autotune", "overlap", "bucket-mb", "gpu-exchange", "loader-threads",
         "comm-timeout", "check-replicas", "accept-build", "log-steps", "trace-steps", "verbose", "checkpoint-every",
         "checkpoint-keep", "export", "resume"}


@dataclass
class Baseline:
    """T_1 for a run on N ranks, or why there is none."""
    epoch_s: float | None
    labels: list[str]
    why_not: str = ""
    left_out: list[tuple[str, str]] = field(default_factory=list)  # (run of the same work, why it is not T_1)


def _share(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _said(value: Any) -> str:
    return "unknown" if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)


# What T_1 must share with a run on N ranks, and its name in sentences: first the work, then the machine.
ALIKE: list[tuple[str, Callable[[Run], Any]]] = [
    ("model", lambda run: run.model_name),
    ("data set", lambda run: run.config.get("dataset")),
    ("number of training images", lambda run: run.samples),
    ("precision", lambda run: run.config.get("precision")),
    ("cores_per_rank", lambda run: _share(run.attributes.get("cores_per_rank"))),
    ("threads_per_rank", lambda run: _share(run.attributes.get("threads_per_rank"))),
    ("device", lambda run: run.devices),
]
WORK = 3  # the number of them that describe the work


def is_alike(alone: Run, run: Run) -> bool:
    """Whether a run on one rank may be `run`'s T_1, apart from its batch."""
    return all(value(alone) == value(run) for _, value in ALIKE)


def baseline(run: Run, runs: Iterable[Run], of_batch: str) -> Baseline:
    """T_1 with the same model, data, device and cores per rank. One rank computes batches of the size of `run`'s
    "batch" per rank (weak scaling) or of its "global_batch" (strong scaling). T_1 is the time of a run on one rank,
    or N times the time of N ranks that exchanged nothing, each with 1/N of the images. Of several such runs the
    median counts."""
    alone = [other for other in runs if not other.exchanges and other.epoch_s is not None]
    if not alone:
        return Baseline(None, [], "there is no run on one rank or with --exchange off")
    batch = "batch per rank" if of_batch == "batch" else "global batch"
    mine = getattr(run, of_batch)
    left_out = [(other.label, why) for other in alone if (why := _unlike(other, run)) and other.batch == mine
                and all(value(other) == value(run) for _, value in ALIKE[:WORK])]
    for what, value in ALIKE:
        same = [other for other in alone if value(other) == value(run)]
        if not same:
            theirs = " or ".join(sorted({_said(value(other)) for other in alone}))
            return Baseline(None, [], f"the runs without an exchange ({some(other.label for other in alone)}) have the "
                            f"{what} {theirs}, and not {_said(value(run))}")
        alone = same
    same = [other for other in alone if other.batch == mine]
    if not same:
        return Baseline(None, [], f"no comparable run without an exchange computes batches of their {batch}", left_out)
    return Baseline(statistics.median(other.world_size * other.epoch_s for other in same if other.epoch_s is not None),
                    [other.label for other in same], "", left_out)


def _unlike(alone: Run, run: Run) -> str:
    """What differs between them, with both values; empty if nothing does."""
    found = {what: f"{what} {_said(value(alone))} instead of {_said(value(run))}" for what, value in ALIKE
             if value(alone) != value(run)}
    if "threads_per_rank" in found:
        found.pop("device", None)  # its name says how many threads
    return " and ".join(found.values())


def groups(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """In the order of first appearance."""
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def by_seed(runs: Iterable[Run]) -> dict[str, list[Run]]:
    return groups(runs, lambda run: run.config.get("seed", ""))


def setting(run: Run) -> dict[str, str]:
    """All that was chosen for a run, by name."""
    said = {option: value for option, value in run.config.items() if option not in NO_DIFFERENCE}
    said["ranks"] = str(run.world_size)
    said["hosts"] = str(len(set(run.hosts)))
    said["device"] = run.devices
    for attribute in ("dptrain_version", "git_revision", "mpi_version", "cores_per_rank", "threads_per_rank",
                      "exchange_path"):
        said[attribute] = str(_share(run.attributes.get(attribute, "")))
    return said


def work(run: Run, but: Collection[str] = ()) -> tuple:
    """What runs of one training share: all that was chosen for them except the seed and the settings in `but`. An option
    that an earlier build did not have is as good as empty."""
    return (len(run.epochs), *sorted((name, value) for name, value in setting(run).items()
                                     if value and name != "seed" and name not in but))


def differences(runs: list[Run]) -> tuple[list[str], list[dict[str, str]]]:
    """The names of what differs between the runs, and all values in each run."""
    settings = [setting(run) | ({"bucket-mb": run.bucket_mb} if run.bucket_mb else {}) for run in runs]
    names = list(dict.fromkeys(name for said in settings for name in said))
    return [name for name in names if len({said.get(name, "") for said in settings}) > 1], settings


def because(reasons: dict[str, list[str]]) -> list[str]:
    """Notes that say which runs a sentence is about: {sentence with {} where they belong: labels}."""
    return [reason.replace("{}", some(labels)) for reason, labels in reasons.items()]


def some(labels: Iterable[str], most: int = 4) -> str:
    labels = list(dict.fromkeys(labels))
    if len(labels) > most:
        return ", ".join(labels[:most]) + f" and {len(labels) - most} more"
    return " and ".join([", ".join(labels[:-1]), labels[-1]] if len(labels) > 1 else labels)
