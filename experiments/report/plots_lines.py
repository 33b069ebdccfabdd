"""Lines of many runs: in one plot with a label at each end, or in a small plot for each group, the others in grey."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from . import compare, svg

MOST_LINES, MOST_PANELS, ACROSS = 7, 24, 3


@dataclass
class Line:
    """Points of one run. Where there are too many lines for one plot, `group` names the small one that it is in, and
    `kind` its colour there."""
    label: str
    group: str
    x: list[float]
    y: list[float]
    kind: str = ""
    lower: list[float] = field(default_factory=list)  # a second, dashed line: the least that is possible


@dataclass
class Form:
    """How a plot looks. `prepare` sets limits and scales, after the lines are drawn."""
    x_title: str
    y_title: str
    prepare: Callable[[Axes], None] = lambda ax: None
    labels_at_left: bool = False


def finite(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    pairs = [(a, b) for a, b in zip(x, y) if math.isfinite(a) and math.isfinite(b)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def lines_plot(name: str, alt: str, lines: list[Line], form: Form) -> str | None:
    """None without a line."""
    lines = [line for line in lines if line.x]
    if not lines:
        return None
    return (_one if len(lines) <= MOST_LINES else _panels)(name, alt, lines, form)


def _draw(ax: Axes, line: Line, color: str, marker: str) -> None:
    ax.plot(line.x, line.y, color=color, marker=marker, markeredgecolor=svg.PAGE, markeredgewidth=0.6)
    if line.lower:
        ax.plot(line.x, line.lower, color=color, linewidth=1.2, linestyle=(0, (4, 2)))


def _one(name: str, alt: str, lines: list[Line], form: Form) -> str:
    fig, (ax,) = svg.figure(3.6)
    labels = min(0.5, (0.35 + max(svg.text_width(line.label) for line in lines)) / svg.WIDTH)
    if form.labels_at_left:
        fig.subplots_adjust(left=labels, right=0.91, top=0.9, bottom=0.14)
        ax.yaxis.tick_right()
        ax.spines[["left", "right"]].set_visible(False)
    else:
        fig.subplots_adjust(left=0.09, right=1 - labels, top=0.9, bottom=0.14)
    for number, line in enumerate(lines):
        _draw(ax, line, svg.SERIES[number], svg.MARKERS[number])
    ax.set_title(form.y_title)
    ax.set_xlabel(form.x_title)
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    form.prepare(ax)
    end = 0 if form.labels_at_left else -1
    svg.label_ends(ax,
                   [(line.x[end], line.y[end], line.label, svg.SERIES[number]) for number, line in enumerate(lines)],
                   form.labels_at_left)
    return svg.to_svg(fig, name, alt)


def _panels(name: str, alt: str, lines: list[Line], form: Form) -> str:
    groups = list(compare.groups(lines, lambda line: line.group).items())[:MOST_PANELS]
    across = 2 if len(groups) == 4 else min(ACROSS, len(groups))
    rows = math.ceil(len(groups) / across)
    height = 0.8 + 1.8 * rows
    fig, axes = svg.figure(height, rows, across, sharex=True, sharey=True)
    fig.subplots_adjust(left=0.07, right=0.965, top=1 - 0.72 / height, bottom=0.5 / height, wspace=0.1, hspace=0.3)
    fig.text(0.005, 1 - 0.05 / height, form.y_title, va="top", ha="left", weight="bold")
    kinds = list(dict.fromkeys(line.kind for line in lines))
    if not 1 < len(kinds) <= MOST_LINES:
        kinds = []
    for ax, (group, own) in zip(axes, groups):
        ax.plot(*_all_of(lines), color=svg.GRID, linewidth=1)
        for line in own:
            number = kinds.index(line.kind) if kinds else 0
            _draw(ax, line, svg.SERIES[number], "")
            ax.plot(line.x[-1:], line.y[-1:], svg.MARKERS[number], color=svg.SERIES[number], markersize=4.5, clip_on=False)
        ax.set_title(str(group), fontsize=9, weight="normal", pad=4)
    for ax in axes[len(groups):]:
        ax.set_visible(False)
    axes[0].yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    form.prepare(axes[0])
    for number, ax in enumerate(axes[:len(groups)]):
        ax.tick_params(labelbottom=number + across >= len(groups), labelsize=9)
    if kinds:
        handles = [
            Line2D([], [], color=svg.SERIES[number], marker=svg.MARKERS[number], label=kind)
            for number, kind in enumerate(kinds)
        ]
        fig.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 1 - 0.22 / height), ncol=len(kinds),
                   fontsize=9, frameon=False, handlelength=1.6, columnspacing=1.2, borderaxespad=0.1)
    fig.text(0.53, 0.06 / height, form.x_title, va="bottom", ha="center")
    return svg.to_svg(fig, name, alt)


def _all_of(lines: list[Line]) -> tuple[list[float], list[float]]:
    """All lines as one, with gaps."""
    return ([x for line in lines for x in (*line.x, math.nan)], [y for line in lines for y in (*line.y, math.nan)])


def _ticks(values: list[float]) -> list[float]:
    """A few values themselves, or 1, 2, 5 (over a wide range 1) times powers of ten."""
    low, high = min(values), max(values)
    there = [float(f"{value:.3g}") for value in sorted(set(values))]
    if len(there) <= 6:
        return there
    steps = (1, 2, 5) if high / low < 100 else (1, )
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in steps if low / 1.5 <= step * 10.0**power <= high * 1.5]


def _log(axis: Axis, values: list[float]) -> None:
    axis.set_ticks(_ticks(values))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def log_x(values: list[float]) -> Callable[[Axes], None]:
    """A logarithmic axis for these values."""
    def prepare(ax: Axes) -> None:
        ax.set_xscale("log")
        _log(ax.xaxis, values)
        ax.set_xlim(min(values) / 1.25, max(values) * 1.25)

    return prepare


def log_y(values: list[float]) -> Callable[[Axes], None]:
    def prepare(ax: Axes) -> None:
        ax.set_yscale("log")
        _log(ax.yaxis, values)
        ax.set_ylim(min(values) / 1.4, max(values) * 1.4)

    return prepare
