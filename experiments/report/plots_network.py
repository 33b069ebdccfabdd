"""Plots over ranks and over the link's rate: speedup and efficiency, bandwidth utilisation, time per epoch."""
from __future__ import annotations

import statistics

from matplotlib.axes import Axes

from . import compare, svg, units
from .plots_lines import Form, Line, lines_plot, log_x, log_y, numbers_of
from .run import Run
from .table import Row
from .tables_network import bandwidth_row, network_rows
from .tables_scaling import scaling_rows


SOME_LINES = 6


def _common(rows: list[Row], keys: tuple[str, ...]) -> list[str]:
    """The keys in which the rows differ; a label needs no others."""
    return [key for key in keys if len({row[key] for row in rows}) > 1]


def _label(row: Row, keys: list[str]) -> str:
    words = {"batch": "batch {}", "global_batch": "global batch {}", "ranks": "{} ranks", "link": "{}"}
    said = [
        words.get(key, "{}").format(units.size(row[key]) if "batch" in key else row[key]) for key in keys if row[key]
    ]
    return ", ".join(said) or "measured"


def _median_by(rows: list[Row], x: str, y: str) -> tuple[list[float], list[float]]:
    cells = compare.groups(sorted(rows, key=lambda row: (row[x], row[y])), lambda row: row[x])
    return [float(at) for at in cells], [float(statistics.median(row[y] for row in cell)) for cell in cells.values()]


def scaling_plots(runs: list[Run]) -> list[str]:
    rows, _ = scaling_rows(runs)
    plots = []
    for kind, title, batch in (("weak", "weak scaling, the same batch per rank", "batch"),
                               ("strong", "strong scaling, the same global batch", "global_batch")):
        own = [row for row in rows if row.get(f"{kind}_speedup") is not None]
        keys = ("codec", "topology", "link", batch)
        lines = compare.groups(own, lambda row: tuple(row[key] for key in keys))
        if len(lines) > SOME_LINES:  # a line with a single number of ranks says no more than the table
            lines = {key: group for key, group in lines.items() if len({row["ranks"] for row in group}) > 1}
        own = [row for group in lines.values() for row in group]
        if not own:
            continue
        differing = _common(own, keys)
        most = max(row["ranks"] for row in own)
        speedups, efficiencies = [], []
        numbers = numbers_of([[row["number"] for row in group] for group in lines.values()])
        for number, group in zip(numbers, lines.values()):
            label = _label(group[0], differing)
            x, y = _median_by(group, "ranks", f"{kind}_speedup")
            speedups.append(Line(label, label, [1.0, *x], [1.0, *y], number=number))
            efficiencies.append(
                Line(label, label, [1.0, *x], [100.0, *(100 * s / n for s, n in zip(y, x))], number=number))
        highest = max(y for line in speedups for y in line.y)

        def ideal(ax: Axes, most: int = most, own: list[Row] = own, highest: float = highest) -> None:
            ax.plot([1, most], [1, most], color=svg.MUTED, linestyle=(0, (4, 2)), linewidth=1)
            ax.set_ylim(0, 1.08 * max(most, highest))
            _ranks_axis(ax, own, most)

        def full(ax: Axes, most: int = most, own: list[Row] = own) -> None:
            ax.set_ylim(0, max(108.0, *ax.get_ylim()))
            _ranks_axis(ax, own, most)

        word = "scaled speedup" if kind == "weak" else "speedup"
        plots += [
            lines_plot(f"speedup-{kind}", f"{word} over ranks with the ideal line", speedups,
                       Form("ranks", f"{word}: {title}; dashed: ideal", ideal)),
            lines_plot(f"efficiency-{kind}", "Efficiency over ranks", efficiencies,
                       Form("ranks", f"efficiency, %: {title}; dashed: ideal", full, mark=100.0))
        ]
    return [plot for plot in plots if plot is not None]


def _ranks_axis(ax: Axes, rows: list[Row], most: int) -> None:
    ax.set_xticks(sorted({1, *(row["ranks"] for row in rows)}))
    ax.set_xlim(0.8, most + 0.02 * most)


def _over_links(name: str, alt: str, rows: list[Row], y: str, title: str, prepare, lower: str = "",
                mark: float | None = None) -> str | None:
    """Lines over the link's rate, one for each codec, topology, number of ranks and batch; None with one link."""
    rows = [dict(row) for row in rows if row["link_rate"] is not None and row[y] is not None]
    links = compare.groups(rows, lambda row: row["link"])
    if len(links) < 2:
        return None
    for same in links.values():  # measured rates differ a little; each link gets one place
        rate = statistics.median(row["link_rate"] for row in same)
        for row in same:
            row["link_rate"] = float(f"{rate:.2g}")
    rates = sorted({row["link_rate"] for row in rows})
    keys = tuple(key for key in ("codec", "topology", "ranks", "batch") if key in rows[0])
    differing = _common(rows, keys)
    lines = []
    groups = list(compare.groups(rows, lambda row: tuple(row[key] for key in keys)).values())
    for number, group in zip(numbers_of([[row["number"] for row in group] for group in groups]), groups):
        xs, ys = _median_by(group, "link_rate", y)
        least = [row for row in group if lower and row[lower] is not None]
        label = _label(group[0], differing)
        lines.append(
            Line(label, label, xs, ys, "",
                 _median_by(least, "link_rate", lower)[1] if lower and len(least) == len(group) else [],
                 number=number))

    def both(ax: Axes) -> None:
        log_x(rates)(ax)
        prepare(ax)

    return lines_plot(name, alt, lines, Form("rate of a rank's link, Mbit/s (logarithmic)", title, both, True,
                                             mark=mark))


def bandwidth_plots(runs: list[Run]) -> list[str]:
    rows = [row for run in runs if (row := bandwidth_row(run)) is not None]
    for row in rows:
        for key in ("bus_utilisation", "wire_utilisation"):
            row[key] = None if row[key] is None else 100 * row[key]

    def to_the_link(ax: Axes) -> None:
        ax.set_ylim(0, max(108.0, ax.get_ylim()[1]))

    def logarithmic(ax: Axes) -> None:
        shares = [row["bus_utilisation"] for row in rows if row["bus_utilisation"]]
        log_y([100.0, *shares])(ax)

    plots = [
        _over_links("wire", "Share of the link's rate that was reached", rows, "wire_utilisation",
                    "reached on the busiest rank's link while communicating, % of its rate", to_the_link, mark=100.0),
        _over_links("busbw", "Bus bandwidth against the link's rate", rows, "bus_utilisation",
                    "busbw, % of the link's rate (logarithmic; more than 100: compressed)", logarithmic, mark=100.0)
    ]
    return [plot for plot in plots if plot is not None]


def network_plots(runs: list[Run]) -> list[str]:
    rows = [
        row | {"link_rate": None if row["link_bits"] is None else row["link_bits"] / 1e6} for row in network_rows(runs)
    ]
    times = [time for row in rows for time in (row["epoch_s"], row["least_s"]) if time is not None]
    is_wide = bool(times) and max(times) > 5 * min(times)

    def scale(ax: Axes) -> None:
        log_y(times)(ax) if is_wide else ax.set_ylim(bottom=0)

    plot = _over_links("link", "Time of a typical epoch over the link's rate, with the least possible", rows, "epoch_s",
                       f"seconds per epoch{' (logarithmic)' if is_wide else ''}; dashed: the least possible", scale,
                       "least_s")
    return [plot] if plot is not None else []
