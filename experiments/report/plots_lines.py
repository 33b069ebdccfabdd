"""Lines of many runs: in one plot with a label at each end, or in a small plot for each group, with the other lines
in grey."""
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
    """The points of one run or of several. `number` gives the colour in a plot of all lines. If there are too many
    lines for one plot, `group` names the line's small plot, and `kind` its colour there, which is the
    `kind_number`-th."""
    label: str
    group: str
    x: list[float]
    y: list[float]
    kind: str = ""
    lower: list[float] = field(default_factory=list)  # a second, dashed line, such as the least possible
    dotted: list[float] = field(default_factory=list)  # a third one
    number: int = 0
    kind_number: int = 0
    error: float = 0.0  # of the last point: half the length of its bar
    is_of_several: bool = False  # has no run's colour
    band: list[float] = field(default_factory=list)  # half the height of a band around the points

    @property
    def color(self) -> str:
        return svg.MUTED if self.is_of_several else svg.color_of(self.number)


@dataclass
class Form:
    """How a plot looks. `prepare` sets limits and scales after the lines are drawn."""
    x_title: str
    y_title: str
    prepare: Callable[[Axes], None] = lambda ax: None
    labels_at_left: bool = False
    are_many: bool = False  # small plots, even for few lines
    mark: float | None = None  # height of a dashed line across the plot


def finite(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    pairs = [(a, b) for a, b in zip(x, y) if math.isfinite(a) and math.isfinite(b)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def lines_plot(name: str, alt: str, lines: list[Line], form: Form) -> str | None:
    """None if there is no line."""
    lines = [line for line in lines if line.x]
    if not lines:
        return None
    return (_one if len(lines) <= MOST_LINES and not form.are_many else _panels)(name, alt, lines, form)


def _draw(ax: Axes, line: Line, color: str, marker: str) -> None:
    ax.plot(line.x, line.y, color=color, marker=marker, markeredgecolor=svg.PAGE, markeredgewidth=0.6)
    if line.band:
        ax.fill_between(line.x, [y - band for y, band in zip(line.y, line.band)],
                        [y + band for y, band in zip(line.y, line.band)], color=color, alpha=0.18, linewidth=0)
    if line.error:
        ax.errorbar(line.x[-1:], line.y[-1:], yerr=line.error, color=color, elinewidth=1.2, capsize=3, fmt="none")
    if line.lower:
        ax.plot(line.x, line.lower, color=color, linewidth=1.2, linestyle=(0, (4, 2)), marker="_" * (len(line.x) == 1))
    if line.dotted:
        ax.plot(line.x, line.dotted, color=color, linewidth=1.2, linestyle=":", marker="")


def _draw_mark(ax: Axes, form: Form) -> None:
    if form.mark is not None:
        ax.axhline(form.mark, color=svg.MUTED, linestyle=(0, (4, 2)), linewidth=1)


def _one(name: str, alt: str, lines: list[Line], form: Form) -> str:
    """Labels are at the ends of the lines; on a narrow screen they are in a list below the plot."""
    width = svg.width()
    below = 0.22 * len(lines) if svg.is_narrow() else 0.0
    above = svg.title_height(form.y_title) + 0.05
    height = above + 3.3 + below
    fig, (ax,) = svg.figure(height)
    svg.titled(fig, form.y_title)
    top, bottom = 1 - above / height, (0.5 + below) / height
    labels = [svg.fit(line.label, 0.45 * width) for line in lines]
    if svg.is_narrow():
        fig.subplots_adjust(left=0.5 / width, right=1 - 0.15 / width, top=top, bottom=bottom)
    else:
        margin = (0.35 + max(svg.text_width(label) for label in labels)) / width
        if form.labels_at_left:
            fig.subplots_adjust(left=margin, right=1 - 0.72 / width, top=top, bottom=bottom)
            ax.yaxis.tick_right()
            ax.spines[["left", "right"]].set_visible(False)
        else:
            fig.subplots_adjust(left=0.72 / width, right=1 - margin, top=top, bottom=bottom)
    _draw_mark(ax, form)
    for line in lines:
        _draw(ax, line, line.color, svg.marker_of(line.number))
    ax.set_xlabel(form.x_title)
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    form.prepare(ax)
    if svg.is_narrow():
        handles = [Line2D([], [], color=line.color, marker=svg.marker_of(line.number),
                          label=svg.fit(line.label, width - 0.7, svg.SMALL)) for line in lines]
        fig.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.3 / width, 0), ncol=1, fontsize=svg.SMALL,
                   frameon=False, handlelength=1.6, borderaxespad=0.1)
    else:
        end = 0 if form.labels_at_left else -1
        svg.label_ends(ax, [(line.x[end], line.y[end], label, line.color) for line, label in zip(lines, labels)],
                       form.labels_at_left)
    return svg.to_svg(fig, name, alt)


def _panels(name: str, alt: str, lines: list[Line], form: Form) -> str:
    width = svg.width()
    groups = list(compare.groups(lines, lambda line: line.group).items())
    y_title = form.y_title + (f"; the first {MOST_PANELS} of {len(groups)}" if len(groups) > MOST_PANELS else "")
    groups = groups[:MOST_PANELS]
    across = 2 if len(groups) == 4 or svg.is_narrow() else ACROSS
    across = min(across, len(groups))
    rows = math.ceil(len(groups) / across)
    kinds = sorted({(line.kind_number, line.kind) for line in lines})
    columns = svg.legend_columns([kind for _, kind in kinds])
    above = svg.title_height(y_title)
    legend = 0.2 * math.ceil(len(kinds) / columns) if len(kinds) > 1 else 0.0
    height = above + legend + 0.25 + 0.5 + 1.75 * rows
    fig, axes = svg.figure(height, rows, across, sharex=True, sharey=True)
    fig.subplots_adjust(left=0.56 / width, right=1 - 0.28 / width, top=1 - (above + legend + 0.25) / height,
                        bottom=0.5 / height, wspace=0.1, hspace=0.3)
    svg.titled(fig, y_title)
    for ax, (group, own) in zip(axes, groups):
        ax.plot(*_all_of(lines), color=svg.GRID, linewidth=1)
        _draw_mark(ax, form)
        for line in own:
            color = svg.color_of(line.kind_number)
            _draw(ax, line, color, "")
            ax.plot(line.x[-1:], line.y[-1:], svg.marker_of(line.kind_number), color=color, markersize=4.5, clip_on=False)
        ax.set_title(svg.fit(str(group), width / across - 0.3, svg.SMALL), fontsize=svg.SMALL, weight="normal", pad=4)
    for ax in axes[len(groups):]:
        ax.set_visible(False)
    axes[0].yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    form.prepare(axes[0])
    for number, ax in enumerate(axes[:len(groups)]):
        ax.tick_params(labelbottom=number + across >= len(groups), labelsize=svg.SMALL)
    if legend:
        handles = [Line2D([], [], color=svg.color_of(number), marker=svg.marker_of(number), label=kind)
                   for number, kind in kinds]
        fig.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 1 - above / height), ncol=columns,
                   fontsize=svg.SMALL, frameon=False, handlelength=1.6, columnspacing=1.2, borderaxespad=0.1)
    fig.text(0.53, 0.06 / height, form.x_title, va="bottom", ha="center")
    return svg.to_svg(fig, name, alt)


def _all_of(lines: list[Line]) -> tuple[list[float], list[float]]:
    """Joins all lines into one with gaps."""
    return ([x for line in lines for x in (*line.x, math.nan)], [y for line in lines for y in (*line.y, math.nan)])


def numbers_of(groups: list[list[int]]) -> list[int]:
    """A number for each line of several runs, by the runs' numbers. It is that of the line's first run, so that a
    line of one run has that run's colour in every plot. If two lines would then have the same colour, lines are
    numbered from 0."""
    first = [min(numbers) for numbers in groups]
    if len({number % len(svg.SERIES) for number in first}) == len(first):
        return first
    order = sorted(first)
    return [order.index(number) for number in first]


def _log_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 times powers of ten, over a wide range at powers of ten only, over a narrow range at
    round numbers."""
    if high < 5 * low:
        ticks = [float(tick) for tick in MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    else:
        steps = (1, 2, 5) if high / low < 100 else (1, )
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**power for power in powers for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def tick_text(value: float) -> str:
    return f"{value:,.12g}"


def apart(ticks: list[float], low: float, high: float, inches: float, size: Callable[[float], float]) -> list[float]:
    """The ticks, from the first on, whose labels of `size` inches do not overlap on a logarithmic axis."""
    kept: list[float] = []
    per_unit = inches / math.log(high / low)
    for tick in ticks:
        if not kept or math.log(tick / kept[-1]) * per_unit >= (size(tick) + size(kept[-1])) / 2 + 0.08:
            kept.append(tick)
    return kept


def _log(ax: Axes, axis: Axis, ticks: list[float], low: float, high: float) -> None:
    box = ax.bbox
    is_x = axis is ax.xaxis
    inches = (box.width if is_x else box.height) / ax.figure.dpi
    axis.set_ticks(apart(ticks, low, high, inches,
                         lambda tick: svg.text_width(tick_text(tick)) if is_x else svg.FONT / 72))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def log_x(values: list[float]) -> Callable[[Axes], None]:
    """A logarithmic axis for these values. The ticks are at the values if these are few and far enough apart."""
    low, high = min(values) / 1.25, max(values) * 1.25

    def prepare(ax: Axes) -> None:
        there = [float(f"{value:.3g}") for value in sorted(set(values))]
        are_apart = all(b >= 1.5 * a for a, b in zip(there, there[1:]))
        ax.set_xscale("log")
        ax.set_xlim(low, high)
        _log(ax, ax.xaxis, there if len(there) <= 6 and are_apart else _log_ticks(low, high), low, high)

    return prepare


def log_y(values: list[float]) -> Callable[[Axes], None]:
    low, high = min(values) / 1.25, max(values) * 1.25

    def prepare(ax: Axes) -> None:
        ax.set_yscale("log")
        ax.set_ylim(low, high)
        _log(ax, ax.yaxis, _log_ticks(low, high), low, high)

    return prepare


def span(low: float, high: float, least: float, bottom: float = -math.inf, top: float = math.inf) -> tuple[float, float]:
    """The limits of an axis for values from `low` to `high`: with some room at both ends, at least `least` long,
    and inside [bottom, top] if the values are."""
    room = max(0.06 * (high - low), (least - (high - low)) / 2)
    low, high = low - room, high + room
    if low < bottom:
        low, high = bottom, max(high, min(bottom + least, top))
    elif high > top:
        low, high = min(low, max(top - least, bottom)), top
    return low, high
