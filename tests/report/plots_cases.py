"""Plots, looked at as matplotlib has laid them out: nothing is cut off, no labels meet, a run keeps its colour."""
from __future__ import annotations

import pathlib
import sys

import study
from matplotlib.text import Text
from report_support import DPREPORT, EPOCH
from run_log_fixture import write_log

sys.path.insert(0, str(pathlib.Path(DPREPORT).parent))

from report import command, page, plots_learning, plots_lines, plots_network, plots_rate, plots_time, svg  # noqa: E402


def _laid_out(folder: pathlib.Path, draw=page.plots_of) -> dict[str, object]:
    """All plots of the logs in a folder, or those that `draw` makes, in both widths, by name."""
    figures = {}
    original = svg.to_svg

    def keep(figure, name: str, alt: str) -> str:
        figures[name + "-narrow" * svg.is_narrow()] = figure
        text = original(figure, name, alt)
        figure.draw_without_rendering()  # in the figure's own resolution, and not in that of the SVG
        return text

    svg.to_svg = keep
    try:
        runs, _ = command.read_all([folder])
        draw(runs)
        with svg.narrow():
            draw(runs)
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
                boxes = [box for box in boxes if box.width > 1]  # without those of hidden labels
                for box in boxes:
                    assert box.x0 >= -1 and box.x1 <= whole.x1 + 1 and box.y0 >= -1, f"{name}: the label of a tick is cut off"
                for one, other in zip(boxes, boxes[1:]):
                    assert not one.overlaps(other), f"{name}: labels of ticks meet"
        for text in figure.texts:
            box = text.get_window_extent()
            assert box.x0 >= -1 and box.x1 <= whole.x1 + 1, f"{name}: '{text.get_text()}' is cut off"


def front_is_labelled(folder: pathlib.Path) -> None:
    """Points close to one another, near the borders, and one on another: each has its label, and no two labels meet."""
    for name, codec, sent_mb, accuracy in (("four_none", "none", 48.6, 0.124), ("four_q8", "q8", 12.4, 0.136),
                                           ("four_q4", "q4", 6.3, 0.102), ("four_q4n", "q4n", 6.3, 0.1025),
                                           ("four_fp8", "fp8", 12.4, 0.141), ("a_run_with_a_rather_long_name", "q2", 6.4, 0.11),
                                           ("four_q2", "q2", 6.2, 0.15), ("four_bf16", "bf16", 48.0, 0.125)):
        write_log(folder / f"{name}.h5", ranks=4, codec_names=[codec], config={"compress": codec},
                  epochs=[EPOCH | {"sent_bytes": 4e6 * sent_mb, "test_accuracy": accuracy}])
    figures = _laid_out(folder, lambda runs: plots_learning.pareto_plots(runs)[0])
    for name in ("pareto", "pareto-narrow"):
        ax = figures[name].axes[0]
        boxes = {text.get_text(): Text.get_window_extent(text) for text in ax.texts}  # without the lines to the points
        for codec in ("none", "q8", "q4", "fp8", "q2"):
            labels = [text for text in boxes if f"four_{codec} " in text + " " or f"{codec} and" in text]
            assert len(labels) == 1, f"{name}: the label of {codec} in {list(boxes)}"
        assert any("four_q4" in text and "1 more" in text or "four_q4 and four_q4n" in text for text in boxes), list(boxes)
        whole = figures[name].bbox
        for text, box in boxes.items():
            assert box.x0 >= -1 and box.x1 <= whole.x1 + 1 and box.y0 >= -1 and box.y1 <= whole.y1 + 1, f"{name}: {text}"
            assert not any(box.overlaps(other) for key, other in boxes.items() if key != text), f"{name}: {text} meets another"


def labels_avoid_lines(folder: pathlib.Path) -> None:
    """The label of a line that ends before the others, among them, lies on none of them. A part that takes nearly no time
    is not in the legend."""
    for name, seconds, accuracies in (("four_none", (6.0, 6.4, 4.3), (0.10, 0.122, 0.124)),
                                      ("four_q4", (2.6, 2.6, 3.1), (0.098, 0.11, 0.102)),
                                      ("four_q8", (4.3, 3.9, 3.0), (0.10, 0.118, 0.136)),
                                      ("one", (3.4, 3.4, 3.5), (0.112, 0.104, 0.1))):
        write_log(folder / f"{name}.h5", ranks=4, codec_names=["none"], config={"compress": "none", "lr": name},
                  epochs=[EPOCH | {"epoch_s": s, "compute_s": s - 0.3, "exposed_comm_s": 0.3, "data_s": 1e-4,
                                   "test_accuracy": a} for s, a in zip(seconds, accuracies)])

    def draw(runs: list) -> None:
        plots_learning._accuracy_plots(runs, plots_learning.naming_of(runs))
        plots_time.time_plot(runs)

    figures = _laid_out(folder, draw)
    ax = figures["accuracy-time"].axes[0]
    labels = {text.get_text(): Text.get_window_extent(text) for text in ax.texts}
    assert set(labels) == {"four_none", "four_q4", "four_q8", "one"}, labels
    drawn = svg._drawn_lines(ax)
    assert len(drawn) > 100
    for name, box in labels.items():
        assert not any(box.overlaps(other) for other in drawn), f"{name} lies on a line"
    legend = {text.get_text() for text in figures["time"].legends[0].get_texts()}
    assert legend == {"computation", "computation, communication behind it", "exposed communication"}, legend


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


def rate_over_steps(folder: pathlib.Path) -> None:
    """Bits, links and residuals of runs with a rate, in at most plots_rate.MOST_POINTS points; runs without one have no line."""
    def steps(bits: float, link: float) -> list[dict[str, float]]:
        return [{"step": s, "comm_s": 1, "step_s": 2, "partial_bits": 0.9 * bits, "total_bits": 1.1 * bits,
                 "planned_bits": 1.5 * bits, "wished_bits": 100.0 * bits, "link_bytes_per_s": link, "residual_growth": 2 * bits}
                for s in range(1, 201)]

    write_log(folder / "auto.h5", ranks=4, epochs=[EPOCH] * 2, config={"compress": "auto"}, steps=steps(0.5, 1.25e6))
    write_log(folder / "fixed.h5", ranks=4, epochs=[EPOCH] * 2, config={"compress": "ecq:bits=0.1"},
              steps=[row | {"link_bytes_per_s": float("nan"), "wished_bits": float("nan")} for row in steps(0.1, 0.0)])
    write_log(folder / "none.h5", ranks=4, epochs=[EPOCH] * 2, steps=[{"step": s, "comm_s": 1} for s in range(1, 5)])
    write_log(folder / "old.h5", ranks=4, epochs=[EPOCH] * 2, config={"compress": "q8"})
    figures = _laid_out(folder, lambda runs: plots_rate.rate_plots(runs))
    names = {"rate", "link-rate", "residual"}
    assert set(figures) == names | {name + "-narrow" for name in names}, figures.keys()
    lines = figures["rate"].axes[0].lines
    assert max(len(line.get_xdata()) for line in lines) <= plots_rate.MOST_POINTS, lines
    values = {line.get_linestyle(): set() for line in lines}
    for line in lines:
        values[line.get_linestyle()] |= {round(float(y), 9) for y in line.get_ydata() if y == y}
    # The means of both sites, what was planned, and what the slowest link of auto hides, of which no more than fp32 counts.
    assert values == {"-": {0.1, 0.5}, "--": {0.15, 0.75}, ":": {32.0}}, values
    waiting = sorted(set(round(float(y), 9) for line in figures["residual"].axes[0].lines for y in line.get_ydata()))
    assert waiting == [0.2, 1.0], waiting
    (link,) = figures["link-rate"].axes[0].lines
    assert set(round(float(y), 9) for y in link.get_ydata()) == {10.0}, link.get_ydata()  # Mbit/s
