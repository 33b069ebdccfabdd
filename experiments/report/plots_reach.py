"""Accuracy over the time that a training takes over each link, and over bytes, with a band over the seeds (reach.py)."""
from __future__ import annotations

import re

from matplotlib.axes import Axes

from . import reach, units
from .plots_learning import accuracy_limits
from .plots_lines import Form, Line, lines_plot, log_x
from .run import Run

MOST, MOST_OF_KIND = 9, 2  # small plots of a figure


def _chosen(found: reach.Reach, cost) -> list[reach.Curve]:
    """fp32, and for each number of steps between exchanges the MOST_OF_KIND that come to the first mark at the least cost."""
    chosen, counts = [found.fp32], {}
    others = [(cost(curve), curve) for curve in found.curves[1:]]
    for _, curve in sorted(((value, curve) for value, curve in others if value is not None), key=lambda pair: pair[0]):
        every = curve.runs[0].config.get("sync-every", "off")
        counts[every] = counts.get(every, 0) + 1
        if counts[every] <= MOST_OF_KIND and len(chosen) < MOST:
            chosen.append(curve)
    return chosen


def _plot(name: str, alt: str, title: str, x_title: str, found: reach.Reach, curves: list[reach.Curve], x) -> str | None:
    """A small plot for each curve, with the others in grey, since they often lie on one another."""
    lines, shorts = [], [re.sub(", outer .*", ", outer", curve.exchange) for curve in curves]
    for curve, short in zip(curves, shorts):
        xs, label = x(curve), short if shorts.count(short) == 1 else curve.exchange
        if xs is not None:
            line = Line(label, label, xs, [100 * y for y in curve.accuracy])
            line.band = [100 * y for y in curve.spread] if len(curve.runs) > 1 else []
            lines.append(line)
    if not lines:
        return None

    def prepare(ax: Axes) -> None:
        ax.set_ylim(accuracy_limits(lines))
        log_x([value for line in lines for value in line.x])(ax)

    return lines_plot(name, alt, lines, Form(x_title, title, prepare, are_many=True, mark=100 * found.equal))


def reach_plots(runs: list[Run]) -> list[str]:
    plots = []
    for number, found in enumerate(reach.reaches(runs), 1):
        least = found.marks[0]
        about = (f"mean over the seeds, band: one standard deviation, grey: the others; dashed: the least that is equal to "
                 f"fp32. fp32, and of each number of steps between exchanges the two that come to {units.percent(least)} %")
        for link in found.links:
            plots.append(_plot(
                f"reach-{number}-{link.replace(' ', '-').replace('/', '-')}", f"Test accuracy over time at {link}",
                f"test accuracy over time at {link}, %; {about} soonest", f"seconds of training over {link} (logarithmic)",
                found, _chosen(found, lambda curve, link=link: curve.seconds_to(least, link)),
                lambda curve, link=link: [epoch * curve.steps_per_epoch * curve.step_s[link] for epoch in curve.epochs]
                if link in curve.step_s else None))
        plots.append(_plot(f"reach-{number}-bytes", "Test accuracy over bytes sent, with bands",
                           f"test accuracy over bytes sent, %; {about} with the fewest bytes",
                           "MB sent by a rank (logarithmic)", found, _chosen(found, lambda curve: curve.mb_to(least)),
                           lambda curve: curve.sent_mb))
    return [plot for plot in plots if plot is not None]
