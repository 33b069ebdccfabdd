"""Plots of one epoch: where its time goes, and how the ranks differ."""
from __future__ import annotations

from . import svg, units
from .run import Run

MOST = 40  # rows of a plot
PARTS = (("computation", svg.BLUE), ("computation, communication behind it", svg.SKY),
         ("exposed communication", svg.RED), ("data", svg.AMBER), ("other", svg.GREY))


def parts_of(run: Run) -> list[float]:
    """Of the typical epoch, in the order of PARTS; they add up to its time."""
    compute, hidden = run.time("compute_s") or 0.0, min(run.hidden_s or 0.0, run.time("compute_s") or 0.0)
    return [compute - hidden, hidden, *(run.time(column) or 0.0 for column in ("exposed_comm_s", "data_s", "other_s"))]


def time_plot(runs: list[Run]) -> str | None:
    timed = [run for run in runs if run.epoch_s][:MOST]
    if not timed:
        return None
    height = 0.85 + 0.42 * len(timed)
    fig, (ax,) = svg.figure(height)
    fig.subplots_adjust(left=0.01, right=0.93, top=1 - 0.3 / height, bottom=0.5 / height)
    shown = [any(parts_of(run)[i] > 0 for run in timed) for i in range(len(PARTS))]
    for row, run in enumerate(timed):
        left = 0.0
        for (label, color), part in zip(PARTS, parts_of(run)):
            ax.barh(row, part, left=left, height=0.42, color=color, edgecolor=svg.PAGE, linewidth=0.4)
            left += part
        ax.text(0, row - 0.27, run.label, va="bottom", ha="left")
        ax.annotate(f"{units.digits(run.epoch_s)} s", (left, row), xytext=(5, 0), textcoords="offset points",
                    va="center", ha="left")
    ax.set_ylim(len(timed) - 0.65, -0.75)
    ax.set_xlim(0, 1.02 * max(run.epoch_s or 0.0 for run in timed))
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("seconds per epoch")
    handles = [ax.barh(0, 0, color=color, label=label) for (label, color), is_shown in zip(PARTS, shown) if is_shown]
    fig.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 1), ncol=len(handles), handlelength=1,
               handleheight=0.9, columnspacing=1.2, handletextpad=0.4, borderaxespad=0.1, fontsize=9, frameon=False)
    return svg.to_svg(
        fig, "time", "Time of a typical epoch for each run, stacked into computation, hidden and exposed "
        "communication, data and other")


def ranks_plot(runs: list[Run]) -> str | None:
    """Each dot a rank: computation and waiting for others; the straggler computes longest and waits least."""
    found = [(run, ranks) for run in runs if run.exchanges and (ranks := run.of_typical(run.ranks)) is not None
             and {"compute_s", "peer_wait_s", "rank"} <= set(ranks)][:MOST]
    if not found:
        return None
    height = 0.9 + 0.4 * len(found)
    fig, axes = svg.figure(height, 1, 2, sharey=True)
    fig.subplots_adjust(left=0.02, right=0.98, top=1 - 0.3 / height, bottom=0.5 / height, wspace=0.08)
    for ax, column, title, extreme in zip(axes, ("compute_s", "peer_wait_s"),
                                          ("computation", "waiting for other ranks"), ("idxmax", "idxmin")):
        most = max(float(ranks[column].max()) for _, ranks in found) or 1.0
        for row, (run, ranks) in enumerate(found):
            values = ranks[column]
            ax.plot([values.min(), values.max()], [row, row], color=svg.MUTED, linewidth=1)
            ax.plot(values, [row] * len(values), "o", color=svg.BLUE, markersize=6, markeredgecolor=svg.PAGE,
                    linestyle="none")
            place = getattr(values, extreme)()
            ax.plot([values[place]], [row], "D", color=svg.RED, markersize=6, markeredgecolor=svg.PAGE)
            at_right = column == "compute_s"
            ax.annotate(f"rank {int(ranks['rank'][place])}", (values[place], row), xytext=(7 if at_right else -7, 0),
                        textcoords="offset points", ha="left" if at_right else "right", va="center", fontsize=9)
            if ax is axes[0]:
                ax.text(0, row - 0.28, run.label, va="bottom", ha="left")
        ax.set_title(title)
        ax.set_xlim(-0.14 * most if column == "peer_wait_s" else 0, 1.16 * most)
        ax.set_xticks([tick for tick in ax.get_xticks() if 0 <= tick <= 1.1 * most])
        ax.spines["bottom"].set_bounds(0, ax.get_xlim()[1])
        ax.set_ylim(len(found) - 0.6, -0.75)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.set_xlabel("seconds per epoch")
    return svg.to_svg(fig, "ranks", "Computation and waiting of each rank; the rank that computes longest is marked")
