"""Plots of training: losses, accuracy and learning rate over epochs, time and bytes; accuracy against bytes; errors
of codecs."""
from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from . import chance, compare, svg, units
from .plots_lines import MOST_LINES, Form, Line, finite, lines_plot, log_x, log_y, span
from .run import Run
from .step_times import exchange_of

Way = Callable[[Run], str]
MOST_ALONE = 15  # the most runs that each have their own small plot
MOST_LABELS = 16  # the most labels of the Pareto plot for all its points
LEAST_POINTS, LEAST_ERRORS = 10.0, 8.0  # the least span of an accuracy axis: in points, in standard errors


@dataclass
class Naming:
    """How all plots of a page show which run is which: by lines in one plot or, if there are many runs, by small
    plots (`group`) and colours in them (`kind`)."""
    group: Way
    kind: Way
    kinds: list[str]
    are_many: bool

    def line(self, run: Run, x: list[float], y: list[float]) -> Line:
        kind = self.kind(run)
        number = self.kinds.index(kind) if len(self.kinds) <= MOST_LINES else 0
        return Line(run.label, self.group(run), x, y, kind if len(self.kinds) <= MOST_LINES else "", number=run.number,
                    kind_number=number)


def naming_of(runs: list[Run]) -> Naming:
    """Chooses the first things in which the runs differ."""
    names, _ = compare.differences(runs)
    several = [run for run in runs if run.exchanges]
    of_all: list[Way] = [lambda run: f"{run.world_size} rank{'s' * (run.world_size > 1)}",
                         lambda run: f"batch {units.size(run.batch)}"]
    # A run on one rank has neither codec nor link, so only the other runs say whether these differ.
    of_several: list[Way] = [lambda run: run.exchange if run.exchanges else "one rank",
                             lambda run: run.link_name, lambda run: run.topology or "one rank"]
    said = compare.EXCHANGE | {"ranks", "hosts", "throttle", "batch-size", "global-batch"}
    options: list[Way] = [
        lambda run, option=name: f"{option} {compare.setting(run).get(option, '')}"  # type: ignore[misc]
        for name in names if name not in said
    ]

    def tells_apart(way: Way, those: list[Run]) -> bool:
        return len({way(run) for run in those}) > 1

    codec, link, topology = ([way] if tells_apart(way, several) else [] for way in of_several)
    ranks, batch = ([way] if tells_apart(way, runs) else [] for way in of_all)
    useful = codec + ranks + link + batch + topology + [way for way in options if tells_apart(way, runs)]
    group, kind = (useful + [lambda run: run.label])[0], (useful + [lambda run: ""] * 2)[1]
    alike = compare.groups(runs, lambda run: (group(run), kind(run))).values()
    if len(runs) <= MOST_ALONE and any(set(compare.differences(same)[0]) - {"seed"} for same in alike):
        group, kind = (lambda run: run.label), (lambda run: "")  # two things do not suffice to distinguish the runs
    return Naming(group, kind, list(dict.fromkeys(kind(run) for run in runs)), len(runs) > MOST_LINES)


def _lines(runs: list[Run], naming: Naming, x: Callable[[Run, pd.DataFrame], list[float]], column: str,
           factor: float = 1.0) -> list[Line]:
    lines, errors = [], chance.standard_errors(runs) if column == "test_accuracy" else {}
    for run in runs:
        if column in run.epochs and len(run.epochs):
            xs, ys = finite(x(run, run.epochs), [factor * value for value in run.epochs[column]])
            if ys:
                lines.append(naming.line(run, xs, ys))
                lines[-1].error = factor * errors.get(run.label, 0.0)
    return lines


def _merged(lines: list[Line], are_all: int) -> list[Line]:
    """Joins lines with the same points."""
    merged = []
    for same in compare.groups(lines, lambda line: (tuple(line.x), tuple(line.y))).values():
        label = "all runs" if len(same) == are_all > 1 else compare.some((line.label for line in same), 2)
        merged.append(replace(same[0], label=label, group=label, is_of_several=len(same) > 1) if len(same) > 1 else same[0])
    return merged


def _epoch(run: Run, epochs: pd.DataFrame) -> list[float]:
    return [epoch + 1 for epoch in epochs["epoch"]]


def _seconds(run: Run, epochs: pd.DataFrame) -> list[float]:
    return list(epochs["epoch_s"].cumsum())


def _sent_mb(run: Run, epochs: pd.DataFrame) -> list[float]:
    return list(epochs["sent_bytes"].cumsum() / 1e6 / run.world_size)


def _whole_epochs(ax: Axes) -> None:
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, 0.9), max(high, 2.1))
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


def _over_epochs(ax: Axes) -> None:
    ax.set_ylim(bottom=0)
    _whole_epochs(ax)


def accuracy_limits(lines: list[Line]) -> tuple[float, float]:
    """The axis is so long that a difference which chance explains looks small."""
    values = [y + sign * more for line in lines for y, more in zip(line.y, line.band or [line.error] * len(line.y))
              for sign in (-1, 1)]
    least = max(LEAST_POINTS, LEAST_ERRORS * max(line.error for line in lines))
    return span(min(values), max(values), least, 0.0, 100.0)


def _accuracy_title(over: str, runs: list[Run]) -> str:
    counts = {run.test_images for run in runs}
    if not counts - {None}:
        return f"test accuracy over {over}, %"
    of = f" of {units.whole(counts.pop())} test images" if len(counts) == 1 else ""
    return f"test accuracy over {over}, %; bar at the end: ± one standard error{of}"


def _loss_plot(name: str, alt: str, title: str, lines: list[Line], naming: Naming) -> str | None:
    """The axis fits the losses, and is logarithmic if they span more than a factor of five."""
    values = [y for line in lines for y in line.y]
    is_wide = bool(values) and 0 < 5 * min(values) < max(values)

    def prepare(ax: Axes) -> None:
        if is_wide:
            log_y(values)(ax)
        else:
            ax.set_ylim(span(min(values), max(values), 0.05 * abs(max(values)) or 0.05))
        _whole_epochs(ax)

    return lines_plot(name, alt, lines, Form("epochs", title + " (logarithmic)" * is_wide, prepare,
                                             are_many=naming.are_many))


def _accuracy_plots(runs: list[Run], naming: Naming) -> list[str | None]:
    plots = []
    for name, over, x_title, x, those in (
        ("accuracy", "epochs", "epochs", _epoch, runs),
        ("accuracy-time", "training time", "seconds of training, without evaluation", _seconds, runs),
        ("accuracy-bytes", "bytes sent", "MB sent by a rank (logarithmic)", _sent_mb, _senders(runs))
    ):
        lines = _lines(those, naming, x, "test_accuracy", 100)
        if not lines:
            continue

        def prepare(ax: Axes, lines: list[Line] = lines, name: str = name) -> None:
            ax.set_ylim(accuracy_limits(lines))
            if name == "accuracy":
                _whole_epochs(ax)
            elif name == "accuracy-time":
                ax.set_xlim(left=0)
            else:
                log_x([x for line in lines for x in line.x])(ax)

        plots.append(lines_plot(name, f"Test accuracy over {over}", lines,
                                Form(x_title, _accuracy_title(over, those), prepare, are_many=naming.are_many)))
    return plots


def _senders(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.exchanges and len(run.epochs) and "sent_bytes" in run.epochs
            and (run.epochs["sent_bytes"] > 0).all()]


def learning_plots(runs: list[Run]) -> list[str]:
    runs = [run for run in runs if run.has_one_model]
    naming = naming_of(runs)
    plots = [
        _loss_plot("loss", "Training loss over epochs", "training loss", _lines(runs, naming, _epoch, "train_loss"), naming),
        _loss_plot("test-loss", "Test loss over epochs", "test loss", _lines(runs, naming, _epoch, "test_loss"), naming),
        *_accuracy_plots(runs, naming), *pareto_plots(_senders(runs))
    ]
    rates = [line for line in _lines(runs, naming, _epoch, "learning_rate") if any(line.y)]
    plots.append(lines_plot("learning-rate", "Learning rate over epochs", _merged(rates, len(runs)),
                            Form("epochs", "learning rate of each epoch's last step", _over_epochs)))
    return [plot for plot in plots if plot is not None]


@dataclass
class _Point:
    """A run, or the mean of several that differ in their seeds."""
    sent_mb: float
    accuracy: float
    run: Run  # the first of them
    error: float  # the standard error of a run's accuracy, or 0
    label: str


def _points(runs: list[Run], errors: dict[str, float]) -> list[_Point]:
    judged = [run for run in runs if units.is_number(run.last("test_accuracy"))]
    alike = []
    for same in compare.groups(judged, chance.alike).values():
        alike += [same] if len(compare.by_seed(same)) == len(same) else [[run] for run in same]
    several = [exchange_of(own[0]) for own in alike if len(own) > 1]
    points = []
    for own in alike:
        first = own[0]
        name = exchange_of(first) + (f", {first.topology}" if several.count(exchange_of(first)) > 1 else "")
        points.append(_Point(statistics.mean(_sent_mb(run, run.epochs)[-1] for run in own),
                             100 * statistics.mean(run.last("test_accuracy") or 0.0 for run in own), first,
                             100 * errors.get(first.label, 0.0), first.label if len(own) == 1 else name))
    return sorted(points, key=lambda point: (point.sent_mb, point.accuracy))


def _pareto_axes(points: list[_Point], front: list[_Point], title: str, margin: float) -> tuple[Figure, Axes]:
    """All but the labels; `margin` is the room at the right, in inches."""
    width, above = svg.width(), svg.title_height(title) + 0.05
    height = above + 3.9
    fig, (ax,) = svg.figure(height)
    svg.titled(fig, title)
    fig.subplots_adjust(left=0.5 / width, right=1 - margin / width, top=1 - above / height, bottom=0.5 / height)
    for point in points:
        ax.errorbar([point.sent_mb], [point.accuracy], yerr=point.error or None, fmt="none", color=svg.MUTED, elinewidth=1,
                    capsize=3)
    ax.plot([p.sent_mb for p in points], [p.accuracy for p in points], "o", color=svg.GREY, markersize=5,
            markeredgecolor=svg.PAGE)
    ax.step([p.sent_mb for p in front] + [points[-1].sent_mb * 1.2], [p.accuracy for p in front] + [front[-1].accuracy],
            where="post", color=svg.INK, linewidth=1.2)
    ax.plot([p.sent_mb for p in front], [p.accuracy for p in front], "D", color=svg.INK, markersize=7,
            markeredgecolor=svg.PAGE)
    ax.set_ylim(accuracy_limits([Line("", "", [], [p.accuracy], error=p.error) for p in points]))
    log_x([p.sent_mb for p in points])(ax)
    ax.set_xlabel("MB sent by a rank in all epochs (logarithmic)")
    return fig, ax


def _labels(ax: Axes, points: list[_Point], front: list[_Point]) -> list[tuple[float, float, str]]:
    """The labels, the most important first, each with its point. Points that lie on one another have one label. If there
    are many, only the front is labelled, and fp32, with which a reader compares."""
    def place(point: _Point) -> tuple[int, int]:
        x, y = ax.transData.transform((point.sent_mb, point.accuracy))
        return round(x / 5), round(y / 5)

    def rank(point: _Point) -> int:
        return 0 if point in front else 1 if point.run.config.get("compress") == "none" else 2

    places = sorted((sorted(same, key=rank) for same in compare.groups(points, place).values()),
                    key=lambda same: rank(same[0]))
    return [(same[0].sent_mb, same[0].accuracy,
             svg.fit(compare.some((point.label for point in same), 1), 0.4 * svg.width()))
            for same in places if len(places) <= MOST_LABELS or rank(same[0]) < 2]


def _drawn_at(ax: Axes, points: list[_Point], front: list[_Point]) -> list[Bbox]:
    """Where markers, bars and the front are, in pixels."""
    def box(x0: float, y0: float, x1: float, y1: float, room: float) -> Bbox:
        (left, bottom), (right, top) = ax.transData.transform([(x0, y0), (x1, y1)])
        return Bbox.from_extents(left - room, bottom - room, right + room, top + room)

    steps = [(a.sent_mb, a.accuracy, b.sent_mb, b.accuracy) for a, b in zip(front, front[1:])]
    return [box(p.sent_mb, p.accuracy - p.error, p.sent_mb, p.accuracy + p.error, 4) for p in points] + [
        line for x0, y0, x1, y1 in steps for line in (box(x0, y0, x1, y0, 1), box(x1, y0, x1, y1, 1))
    ] + [box(front[-1].sent_mb, front[-1].accuracy, points[-1].sent_mb * 1.2, front[-1].accuracy, 1)]


def pareto_plots(runs: list[Run]) -> list[str | None]:
    """The final accuracy against the bytes sent, with the Pareto front, for each task."""
    errors, tasks = chance.standard_errors(runs), compare.groups(runs, chance.task).values()
    return [_pareto_plot(same, errors, f"-{number}" * (number > 1), f"{_task(same[0])}: " * (len(tasks) > 1))
            for number, same in enumerate(tasks, 1)]


def _task(run: Run) -> str:
    return f"{run.model_name}, {len(run.epochs)} epochs of {units.whole(run.samples)} images"


def _pareto_plot(runs: list[Run], errors: dict[str, float], number: str, task: str) -> str | None:
    points = _points(runs, errors)
    if len(points) < 3:
        return None
    front = chance.front(points, lambda point: point.sent_mb, lambda point: point.accuracy, lambda point: point.error)
    is_judged, has_seeds = any(point.error for point in points), len(points) < len(runs)
    title = (f"{task}test accuracy of the last epoch, %{', mean of the seeds' * has_seeds}{', ± one standard error' * is_judged}"
             f"{' of a run' * (is_judged and has_seeds)}; diamonds: the fewest bytes, and each further one whose accuracy is "
             f"higher{' and different' * is_judged}")
    margin = 0.15
    for _ in range(2):
        fig, ax = _pareto_axes(points, front, title, margin)
        names = _labels(ax, points, front)
        left_over = [names[i] for i in svg.label_points(ax, names, _drawn_at(ax, points, front), margin > 0.15)]
        if not left_over or margin > 0.15:
            break
        margin = 0.35 + max(svg.text_width(text) for _, _, text in names)  # for labels beside the plot
    if left_over:
        svg.label_ends(ax, [(x, y, text, svg.MUTED) for x, y, text in left_over], are_all_beside=True, line=":")
    return svg.to_svg(fig, f"pareto{number}", f"{task}Accuracy reached against bytes sent, with the Pareto front")


def error_plots(runs: list[Run]) -> list[str]:
    naming = naming_of([run for run in runs if run.has_one_model])
    senders = [run for run in runs if run.exchanges]
    errors = [line for line in _lines(senders, naming, _epoch, "delivered_relative_error", 100) if max(line.y) > 1e-3]
    residuals = [line for line in _lines(senders, naming, _epoch, "residual_norm") if any(line.y)]
    norms = [y for line in residuals for y in line.y if y > 0]
    is_wide = bool(norms) and max(norms) > 20 * min(norms)
    if is_wide:
        for line in residuals:
            shown = [(x, y) for x, y in zip(line.x, line.y) if y > 0]
            line.x, line.y = [x for x, _ in shown], [y for _, y in shown]

    def over_epochs(ax: Axes) -> None:
        _over_epochs(ax)
        if is_wide:
            log_y(norms)(ax)

    plots = [
        lines_plot("error", "Error of the delivered sum over epochs", errors,
                   Form("epochs", "error of the delivered sum of one step against the exact sum, %", _over_epochs,
                        are_many=naming.are_many)),
        lines_plot("residual", "Norm of the residual over epochs", residuals,
                   Form("epochs", f"norm of what waits to be sent{' (logarithmic)' if is_wide else ''}", over_epochs,
                        are_many=naming.are_many))
    ]
    return [plot for plot in plots if plot is not None]
