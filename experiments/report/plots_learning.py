"""Plots of training: loss and accuracy over epochs, time and bytes, what was reached for how much, errors of codecs."""
from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from . import compare, svg, units
from .plots_lines import Form, Line, finite, lines_plot, log_x, log_y
from .run import Run

Naming = Callable[[Run], str]
MOST_ALONE = 15  # runs, of which each has a small plot of its own


def _namings(runs: list[Run]) -> tuple[Naming, Naming]:
    """By what to put runs into small plots, and by what to colour them there: the first things in which they differ."""
    names, _ = compare.differences(runs)
    several = [run for run in runs if run.exchanges]
    of_all: list[Naming] = [lambda run: f"{run.world_size} rank{'s' * (run.world_size > 1)}",
                            lambda run: f"batch {units.size(run.batch)}"]
    # One rank has neither codec nor link: whether runs differ in these is asked of the others.
    of_several: list[Naming] = [lambda run: run.config.get("compress", "") if run.exchanges else "one rank",
                                lambda run: run.link_name, lambda run: run.topology or "one rank"]
    said = {"compress", "ranks", "hosts", "throttle", "batch-size", "global-batch", "topology"}
    options: list[Naming] = [
        lambda run, option=name: f"{option} {compare.setting(run).get(option, '')}"  # type: ignore[misc]
        for name in names if name not in said
    ]

    def tells_apart(way: Naming, those: list[Run]) -> bool:
        return len({way(run) for run in those}) > 1

    codec, link, topology = ([way] if tells_apart(way, several) else [] for way in of_several)
    ranks, batch = ([way] if tells_apart(way, runs) else [] for way in of_all)
    useful = codec + ranks + link + batch + topology + [way for way in options if tells_apart(way, runs)]
    group, kind = (useful + [lambda run: run.label])[0], (useful + [lambda run: ""] * 2)[1]
    alike = compare.groups(runs, lambda run: (group(run), kind(run))).values()
    if len(runs) <= MOST_ALONE and any(set(compare.differences(same)[0]) - {"seed"} for same in alike):
        return (lambda run: run.label), (lambda run: "")  # two things do not tell the runs apart
    return group, kind


def _lines(runs: list[Run], x: Callable[[Run, pd.DataFrame], list[float]], column: str, factor: float = 1.0,
           starts_at_zero: bool = False) -> list[Line]:
    lines = []
    group, kind = _namings(runs)
    for run in runs:
        if column in run.epochs and len(run.epochs):
            xs, ys = finite(x(run, run.epochs), [factor * value for value in run.epochs[column]])
            if ys and not (starts_at_zero and not any(ys)):
                lines.append(Line(run.label, group(run), xs, ys, kind(run)))
    return lines


def _epoch(run: Run, epochs: pd.DataFrame) -> list[float]:
    return [epoch + 1 for epoch in epochs["epoch"]]


def _seconds(run: Run, epochs: pd.DataFrame) -> list[float]:
    return list(epochs["epoch_s"].cumsum())


def _sent_mb(run: Run, epochs: pd.DataFrame) -> list[float]:
    return list(epochs["sent_bytes"].cumsum() / 1e6 / run.world_size)


def _over_epochs(ax: Axes) -> None:
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def learning_plots(runs: list[Run]) -> list[str]:
    runs = [run for run in runs if run.has_one_model]
    plots = [
        lines_plot("loss", "Training loss over epochs", _lines(runs, _epoch, "train_loss"),
                   Form("epochs", "training loss", _over_epochs)),
        lines_plot("accuracy", "Test accuracy over epochs", _lines(runs, _epoch, "test_accuracy", 100),
                   Form("epochs", "test accuracy, %", _over_epochs))
    ]

    def both_from_zero(ax: Axes) -> None:
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)

    plots.append(
        lines_plot("accuracy-time", "Test accuracy over training time", _lines(runs, _seconds, "test_accuracy", 100),
                   Form("seconds of training, without evaluation", "test accuracy, %", both_from_zero)))
    senders = [run for run in runs if run.exchanges and len(run.epochs) and "sent_bytes" in run.epochs
               and (run.epochs["sent_bytes"] > 0).all()]
    sent = _lines(senders, _sent_mb, "test_accuracy", 100)
    if sent:

        def over_bytes(ax: Axes) -> None:
            log_x([x for line in sent for x in line.x])(ax)
            ax.set_ylim(bottom=0)

        plots.append(
            lines_plot("accuracy-bytes", "Test accuracy over bytes sent", sent,
                       Form("MB sent by a rank (logarithmic)", "test accuracy, %", over_bytes)))
    plots.append(pareto_plot(senders))
    return [plot for plot in plots if plot is not None]


def pareto_plot(runs: list[Run]) -> str | None:
    """What was reached in the end against what was sent for it, with the runs that no other beats in both."""
    runs = [run for run in runs if run.has_one_model]
    points = sorted((_sent_mb(run, run.epochs)[-1], 100 * run.epochs["test_accuracy"].iloc[-1], run.label)
                    for run in runs
                    if "test_accuracy" in run.epochs and units.is_number(float(run.epochs["test_accuracy"].iloc[-1])))
    if len(points) < 3:
        return None
    front: list[tuple[float, float, str]] = []
    for point in points:
        if not front or point[1] > front[-1][1]:
            if front and front[-1][0] == point[0]:
                front.pop()
            front.append(point)
    fig, (ax,) = svg.figure(4.2)
    labels = min(0.48, (0.35 + max(svg.text_width(label) for _, _, label in front)) / svg.WIDTH)
    fig.subplots_adjust(left=0.07, right=1 - labels, top=0.92, bottom=0.12)
    ax.plot([p[0] for p in points], [p[1] for p in points], "o", color=svg.GREY, markersize=5, markeredgecolor=svg.PAGE)
    ax.step([p[0] for p in front] + [points[-1][0] * 1.2], [p[1] for p in front] + [front[-1][1]], where="post",
            color=svg.RED, linewidth=1.2)
    ax.plot([p[0] for p in front], [p[1] for p in front], "D", color=svg.RED, markersize=7, markeredgecolor=svg.PAGE)
    log_x([p[0] for p in points])(ax)
    ax.set_title("test accuracy of the last epoch, %; red: no run reached more with less")
    ax.set_xlabel("MB sent by a rank in all epochs (logarithmic)")
    svg.label_ends(ax, [(*point, svg.MUTED) for point in front], are_all_beside=True)
    return svg.to_svg(fig, "pareto", "Accuracy reached against bytes sent, with the Pareto front")


def error_plots(runs: list[Run]) -> list[str]:
    senders = [run for run in runs if run.exchanges]
    errors = [line for line in _lines(senders, _epoch, "delivered_relative_error", 100) if max(line.y) > 1e-3]
    residuals = _lines(senders, _epoch, "residual_norm", 1.0, True)
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
                   Form("epochs", "delivered sum of one step against the exact one, error in %", _over_epochs)),
        lines_plot("residual", "Norm of the residual over epochs", residuals,
                   Form("epochs", f"norm of what waits to be sent{' (logarithmic)' if is_wide else ''}", over_epochs))
    ]
    return [plot for plot in plots if plot is not None]
