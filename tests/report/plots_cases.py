"""Plots, looked at as matplotlib has laid them out: nothing is cut off, no labels meet, a run keeps its colour."""
from __future__ import annotations

import pathlib
import sys

import study
from report_support import DPREPORT, EPOCH
from run_log_fixture import write_log

sys.path.insert(0, str(pathlib.Path(DPREPORT).parent))

from report import command, page, plots_learning, plots_lines, plots_network, svg  # noqa: E402


def _laid_out(folder: pathlib.Path) -> dict[str, object]:
    """All plots of the logs in a folder, in both widths, by name."""
    figures = {}
    original = svg.to_svg

    def keep(figure, name: str, alt: str) -> str:
        figure.draw_without_rendering()
        figures[name + "-narrow" * svg.is_narrow()] = figure
        return original(figure, name, alt)

    svg.to_svg = keep
    try:
        runs, _ = command.read_all([folder])
        page.plots_of(runs)
        with svg.narrow():
            page.plots_of(runs)
    finally:
        svg.to_svg = original
    return figures


def _make(folder: pathlib.Path) -> None:
    study.make(folder)
    # Faster than ideal; losses and accuracies that hardly differ; a loss over four powers of ten.
    for name, loss, accuracy in (("fast", 7.96, 0.500), ("fast_2", 8.16, 0.504)):
        epochs = [EPOCH | {"epoch_s": 5, "train_loss": loss, "test_loss": 10.0**(2 - 2 * e), "test_accuracy": accuracy,
                           "learning_rate": 0.1, "comm_s": loss, "residual_norm": loss} for e in range(3)]
        write_log(folder / f"{name}.h5", ranks=4, epochs=epochs, config={"compress": "q4"}, codec_names=["q4"],
                  link_bytes_per_s=loss * 1e6, rank_rows=[{"epoch": e, "rank": r, "compute_s": 8, "peer_wait_s": 0.1 * r}
                                                         for e in range(3) for r in range(4)])


def plots_fit(folder: pathlib.Path) -> None:
    """Points lie inside their axes, texts inside the figure, and labels of ticks do not meet."""
    _make(folder)
    figures = _laid_out(folder)
    names = {"speedup-weak", "efficiency-weak", "loss", "test-loss", "learning-rate", "accuracy", "pareto", "time", "ranks",
             "wire", "busbw", "link", "residual"}
    assert names | {f"{name}-narrow" for name in names} <= set(figures), set(figures)
    for name, figure in figures.items():
        whole = figure.bbox
        for ax in figure.axes:
            (x0, x1), (y0, y1) = ax.get_xlim(), sorted(ax.get_ylim())
            for line in ax.lines:
                if line.get_transform() == ax.transData:
                    for x, y in zip(line.get_xdata(), line.get_ydata()):
                        assert x != x or (x0 <= x <= x1 * 1.0001 and y0 <= y <= y1 * 1.0001), f"{name}: {x}, {y} is cut off"
            for axis in (ax.xaxis, ax.yaxis):
                low, high = sorted(axis.get_view_interval())
                boxes = [tick.label1.get_window_extent() if tick.label1.get_visible() else tick.label2.get_window_extent()
                         for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
                boxes = [box for box in boxes if box.width]
                for box in boxes:
                    assert box.x0 >= -1 and box.x1 <= whole.x1 + 1 and box.y0 >= -1, f"{name}: the label of a tick is cut off"
                for one, other in zip(boxes, boxes[1:]):
                    assert not one.overlaps(other), f"{name}: labels of ticks meet"
        for text in figure.texts:
            box = text.get_window_extent()
            assert box.x0 >= -1 and box.x1 <= whole.x1 + 1, f"{name}: '{text.get_text()}' is cut off"


def axes_show_what_counts(folder: pathlib.Path) -> None:
    """An accuracy axis is long against chance, a loss axis is fitted, or logarithmic."""
    _make(folder)
    for path in folder.glob("*.h5"):  # only the two that are nearly alike
        if not path.name.startswith("fast"):
            path.unlink()
    figures = _laid_out(folder)
    low, high = figures["accuracy"].axes[0].get_ylim()
    # The standard error of 50 % of 1,000 images is 1.58 points, and the axis at least 8 of them long.
    assert high - low >= 8 * 1.58, (low, high)
    low, high = figures["loss"].axes[0].get_ylim()
    assert low > 7 and high < 9, (low, high)
    assert figures["test-loss"].axes[0].get_yscale() == "log"


def one_colour_a_run(folder: pathlib.Path) -> None:
    """In every plot a run, or a line that is of this run alone, has the run's colour; two lines never share one."""
    _make(folder)
    (folder / "fast_2.h5").unlink()
    found: list[tuple[str, list[plots_lines.Line]]] = []
    original = plots_lines.lines_plot

    def keep(name: str, alt: str, lines: list[plots_lines.Line], form: plots_lines.Form) -> str | None:
        found.append((name, lines))
        return original(name, alt, lines, form)

    plots_learning.lines_plot = plots_network.lines_plot = keep
    try:
        runs, _ = command.read_all([folder])
        page.plots_of(runs)
    finally:
        plots_learning.lines_plot = plots_network.lines_plot = original
    color = {run.label: svg.color_of(run.number) for run in runs}
    color |= {run.codec: svg.color_of(run.number) for run in runs if run.exchanges}  # each codec is in one run
    assert len(found) > 8 and len(color) == 8, found
    for name, lines in found:
        for line in lines:
            assert line.is_of_several or line.color == color[line.label.split(",")[0]], f"{name}: {line}"
        colors = [line.color for line in lines]
        assert len(colors) == len(set(colors)), f"{name}: two lines have one colour"
