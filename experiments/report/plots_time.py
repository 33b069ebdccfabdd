"""Plots of one epoch: where its time goes, and how the ranks differ."""
from __future__ import annotations

import math

from . import svg, units
from .run import Run

MOST = 40  # the most rows of a plot
VISIBLE = 0.002  # the share of the longest bar from which on a part can be seen and is in the legend
PARTS = (("computation", svg.BLUE), ("computation, communication behind it", svg.SKY),
         ("exposed communication", svg.ORANGE), ("data", svg.AMBER), ("other", svg.GREY))


def parts_of(run: Run) -> list[float]:
    """The parts of the typical epoch, in the order of PARTS. They add up to its time."""
    compute, hidden = run.time("compute_s") or 0.0, min(run.hidden_s or 0.0, run.time("compute_s") or 0.0)
    return [compute - hidden, hidden, *(run.time(column) or 0.0 for column in ("exposed_comm_s", "data_s", "other_s"))]


def time_plot(runs: list[Run]) -> str | None:
    timed = [run for run in runs if run.epoch_s][:MOST]
    if not timed:
        return None
    least = VISIBLE * max(run.epoch_s or 0.0 for run in timed)
    labels = [label for i, (label, _) in enumerate(PARTS) if any(parts_of(run)[i] > least for run in timed)] or [PARTS[0][0]]
    columns = svg.legend_columns(labels)
    above, width = 0.1 + 0.2 * math.ceil(len(labels) / columns), svg.width()
    height = above + 0.55 + 0.42 * len(timed)
    fig, (ax,) = svg.figure(height)
    fig.subplots_adjust(left=0.24 / width, right=1 - 0.7 / width, top=1 - above / height, bottom=0.5 / height)
    for row, run in enumerate(timed):
        left = 0.0
        for (label, color), part in zip(PARTS, parts_of(run)):
            ax.barh(row, part, left=left, height=0.42, color=color, edgecolor=svg.PAGE, linewidth=0.4)
            left += part
        ax.text(0, row - 0.27, svg.fit(run.label, width - 0.3), va="bottom", ha="left")
        ax.annotate(f"{units.digits(run.epoch_s)} s", (left, row), xytext=(5, 0), textcoords="offset points",
                    va="center", ha="left")
    ax.set_ylim(len(timed) - 0.65, -0.75)
    ax.set_xlim(0, 1.02 * max(run.epoch_s or 0.0 for run in timed))
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("seconds per epoch")
    handles = [ax.barh(0, 0, color=color, label=label) for label, color in PARTS if label in labels]
    fig.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 1), ncol=columns, handlelength=1, handleheight=0.9,
               columnspacing=1.2, handletextpad=0.4, borderaxespad=0.1, fontsize=svg.SMALL, frameon=False)
    return svg.to_svg(
        fig, "time", "Time of a typical epoch for each run, stacked into computation, hidden and exposed "
        "communication, data and other")


def ranks_plot(runs: list[Run]) -> str | None:
    """One dot per rank: its computation and its waiting for others. The straggler computes longest and waits
    least."""
    found = [(run, ranks) for run in runs if run.exchanges and (ranks := run.of_typical(run.ranks)) is not None
             and {"compute_s", "peer_wait_s", "rank"} <= set(ranks)][:MOST]
    if not found:
        return None
    # Side by side; on a narrow screen one below the other.
    rows, columns = (2, 1) if svg.is_narrow() else (1, 2)
    width, height = svg.width(), rows * (0.9 + 0.4 * len(found))
    fig, axes = svg.figure(height, rows, columns)
    fig.subplots_adjust(left=0.24 / width, right=1 - 0.16 / width, top=1 - 0.3 / height, bottom=0.5 / height, wspace=0.08,
                        hspace=0.9 / (0.4 * len(found)))
    for ax, column, title, extreme in zip(axes, ("compute_s", "peer_wait_s"),
                                          ("computation", "waiting for other ranks"), ("idxmax", "idxmin")):
        most = max(float(ranks[column].max()) for _, ranks in found) or 1.0
        for row, (run, ranks) in enumerate(found):
            values = ranks[column]
            ax.plot([values.min(), values.max()], [row, row], color=svg.MUTED, linewidth=1)
            ax.plot(values, [row] * len(values), "o", color=svg.BLUE, markersize=6, markeredgecolor=svg.PAGE,
                    linestyle="none")
            place = getattr(values, extreme)()
            ax.plot([values[place]], [row], "D", color=svg.ORANGE, markersize=6, markeredgecolor=svg.PAGE)
            at_right = column == "compute_s"
            ax.annotate(f"rank {int(ranks['rank'][place])}", (values[place], row), xytext=(7 if at_right else -7, 0),
                        textcoords="offset points", ha="left" if at_right else "right", va="center", fontsize=svg.SMALL)
            if ax is axes[0] or svg.is_narrow():
                ax.text(0, row - 0.28, svg.fit(run.label, width / columns - 0.3), va="bottom", ha="left")
        ax.set_title(title)
        beside = 0.65 / (ax.bbox.width / fig.dpi)  # room for "rank 3" beside the outmost dot
        ax.set_xlim(-beside * most if column == "peer_wait_s" else 0, (1 + beside) * most)
        ax.set_xticks([tick for tick in ax.get_xticks() if 0 <= tick <= 1.1 * most])
        ax.spines["bottom"].set_bounds(0, ax.get_xlim()[1])
        ax.set_ylim(len(found) - 0.6, -0.75)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.set_xlabel("seconds per epoch")
    return svg.to_svg(fig, "ranks", "Computation and waiting of each rank; the rank that computes longest is marked")
