"""Plots of how ranks shared the images of a step, where shares changed or were uneven (--shares)."""
from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .plots_lines import Form, Line, lines_plot
from .run import Run
from .tables_shares import changes_of, has_uneven_shares

MOST_RANKS = 16


def _last_step(run: Run, changes: list[tuple[int, pd.DataFrame]]) -> int:
    if run.steps is not None and len(run.steps):
        return max(int(run.steps["step"].max()), changes[-1][0])
    steps = sum(int(row["samples"] // max(row["global_batch"], 1)) for _, row in run.epochs.iterrows())
    return max(steps, changes[-1][0])


def shares_plots(runs: list[Run]) -> list[str]:
    lines = []
    for run in (run for run in runs if has_uneven_shares(run)):
        changes = changes_of(run)
        ends = [step for step, _ in changes[1:]] + [_last_step(run, changes)]
        for rank in range(min(run.world_size, MOST_RANKS)):
            x: list[float] = []
            y: list[float] = []
            for (first, rows), end in zip(changes, ends):
                of_rank = rows[rows["rank"] == rank]["images"]
                if len(of_rank):
                    x += [first, max(end, first)]
                    y += [float(of_rank.iloc[0])] * 2
            lines.append(Line(f"rank {rank}", run.label, x, y, f"rank {rank}", number=rank, kind_number=rank))
    if not lines:
        return []

    def prepare(ax: Axes) -> None:
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        ax.yaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))

    told = {line.group for line in lines}
    plot = lines_plot("shares", "the images that each rank computed in a step, over the steps of a run", lines,
                      Form("steps", "images a step", prepare, are_many=len(told) > 1))
    return [plot] if plot is not None else []
