"""Figures of matplotlib as SVG inside a page. They use the page's colours and text, light or dark.

Colours here are placeholders, which become variables of the page's style sheet in the SVG (page.py). Text stays
text. Every plot can be drawn in two widths, for a page and for a narrow screen, so that it need not be shrunk.
"""
from __future__ import annotations

import contextlib
import html
import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.collections import LineCollection  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

INK, GRID, MUTED, PAGE = "#010101", "#020202", "#030303", "#040404"
SERIES = [f"#1000{number:02x}" for number in range(1, 8)]
BLUE, ORANGE, GREEN, PINK, SKY, AMBER, GREY = SERIES
MARKERS = "os^DvP*"
_VARIABLES = {
    INK: "currentColor", GRID: "var(--grid)", MUTED: "var(--muted)", PAGE: "var(--page)",
    **{color: f"var(--c{number + 1})" for number, color in enumerate(SERIES)}
}
PAGE_WIDTH, NARROW_WIDTH = 8.0, 4.6  # inches, each 72 units of the SVG
FONT = 10.0
SMALL = 9.0

_STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "dpreport", "font.family": "sans-serif", "font.size": FONT,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"], "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": FONT, "axes.titlelocation": "left",
    "axes.titleweight": "bold", "legend.frameon": False, "legend.fontsize": FONT, "lines.linewidth": 1.8,
    "lines.markersize": 5, "savefig.transparent": True, "axes.facecolor": "none", "figure.facecolor": "none",
    "xtick.major.size": 3, "ytick.major.size": 0, "axes.formatter.useoffset": False, "axes.titlepad": 8.0,
    "axes.unicode_minus": True, "text.parse_math": False
}

matplotlib.rcParams.update(_STYLE)


_is_narrow = False


@contextlib.contextmanager
def narrow() -> Iterator[None]:
    """Plots that are drawn in this context are for a narrow screen."""
    global _is_narrow
    _is_narrow = True
    try:
        yield
    finally:
        _is_narrow = False


def is_narrow() -> bool:
    return _is_narrow


def width() -> float:
    return NARROW_WIDTH if _is_narrow else PAGE_WIDTH


def figure(height: float, rows: int = 1, columns: int = 1, **more) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page's column, with its axes row by row."""
    fig = Figure(figsize=(width(), height))
    return fig, list(fig.subplots(rows, columns, squeeze=False, **more).flat)


def text_width(text: str, points: float = FONT) -> float:
    """The approximate width in inches, for margins."""
    return len(text) * points * 0.6 / 72


def fit(text: str, inches: float, points: float = FONT) -> str:
    """The text, without its middle if it is longer than that."""
    most = max(5, int(inches / text_width("x", points)))
    return text if len(text) <= most else f"{text[:most - most // 2 - 1]}…{text[len(text) - most // 2:]}"


def titled(fig: Figure, text: str) -> None:
    """Writes the title into the upper left corner, on as many lines as it needs."""
    fig.text(0.04 / width(), 1 - 0.05 / fig.get_size_inches()[1], "\n".join(_title_lines(text)), va="top", ha="left",
             weight="bold")


def _title_lines(text: str) -> list[str]:
    return textwrap.wrap(text, int((width() - 0.1) / text_width("x", 1.12 * FONT)))  # bold


def title_height(text: str) -> float:
    """The height in inches, with the room above and below."""
    return 0.1 + 0.17 * len(_title_lines(text))


def legend_columns(labels: Sequence[str]) -> int:
    """The number of entries of a legend that stand side by side."""
    widest = max(text_width(label, SMALL) for label in labels) + 0.45
    return max(1, min(len(labels), int(width() / widest)))


def color_of(number: int) -> str:
    """The colour of the run or line with that number."""
    return SERIES[number % len(SERIES)]


def marker_of(number: int) -> str:
    """The style of a line, which differs between numbers with the same colour."""
    return MARKERS[(number + number // len(SERIES)) % len(MARKERS)]


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]], at_left: bool = False,
               are_all_beside: bool = False, line: str = "-") -> None:
    """Labels for the ends (x, y, text, colour) of lines. They stand beside the plot and are moved apart if they
    would overlap. If a line ends before the others, its label is next to its last point, away from other lines if
    there is room."""
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    fig.draw_without_rendering()
    scale = 72 / fig.dpi
    points = ax.transData.transform([(x, y) for x, y, _, _ in ends])
    outmost = min(points[:, 0]) if at_left else max(points[:, 0])
    side: dict[str, Any] = {"va": "center", "ha": "right" if at_left else "left", "annotation_clip": False}
    beside = [i for i in range(len(ends)) if are_all_beside or abs(points[i, 0] - outmost) < 20]
    inner = [(x, y, text) for i, (x, y, text, _) in enumerate(ends) if i not in beside]
    for i in label_points(ax, inner, _drawn_lines(ax), True) if inner else ():
        x, y, text = inner[i]
        ax.annotate(text, (x, y), xytext=(-7 if at_left else 7, 0), textcoords="offset points", fontsize=SMALL, **side)
    places = _apart([points[i, 1] for i in beside], 1.25 * FONT / scale)
    margin = ax.bbox.x0 - 10 if at_left else ax.bbox.x1 + 10
    for i, place in zip(beside, places):
        x, y, text, color = ends[i]
        ax.annotate(
            text, (x, y), xytext=((margin - points[i, 0]) * scale, (place - points[i, 1]) * scale),
            textcoords="offset points", **side, arrowprops={
                "arrowstyle": "-", "color": color, "linewidth": 0.8, "linestyle": line, "shrinkA": 0, "shrinkB": 3,
                "relpos": (1 if at_left else 0, 0.5)
            })


# Places of a label beside its point, the best first: offset in points, horizontal and vertical alignment.
_BESIDE = ((8, 0, "left", "center"), (-8, 0, "right", "center"), (7, 6, "left", "bottom"), (7, -6, "left", "top"),
           (-7, 6, "right", "bottom"), (-7, -6, "right", "top"), (0, 8, "center", "bottom"), (0, -8, "center", "top"))


def _drawn_lines(ax: Axes) -> list[Bbox]:
    """Small boxes, in pixels, along all lines and bars of the axes."""
    boxes = []
    paths = [line.get_transform().transform(line.get_xydata()) for line in ax.lines if len(line.get_xydata())]
    paths += [ax.transData.transform(bar) for bars in ax.collections if isinstance(bars, LineCollection)
              for bar in bars.get_segments()]
    for path in paths:
        for (x0, y0), (x1, y1) in zip(path, [*path[1:], path[-1]]):
            count = 1 + int(max(abs(x1 - x0), abs(y1 - y0)) / 3) if math.isfinite(x0 + y0 + x1 + y1) else 0
            boxes += [Bbox.from_bounds(x0 + (x1 - x0) * k / count - 1.5, y0 + (y1 - y0) * k / count - 1.5, 3, 3)
                      for k in range(count)]
    return boxes


def label_points(ax: Axes, points: Sequence[tuple[float, float, str]], blocked: Sequence[Bbox],
                 are_inside: bool = False) -> list[int]:
    """Writes each text of (x, y, text) next to its point, where it meets neither a blocked place (in pixels) nor another
    text. Texts are inside the figure, or inside the axes. Returns the numbers of those for which there is no room."""
    fig = ax.get_figure()
    assert isinstance(fig, Figure)
    fig.draw_without_rendering()
    taken, without = list(blocked), []
    for number, (x, y, text) in enumerate(points):
        for dx, dy, ha, va in _BESIDE:
            label = ax.annotate(text, (x, y), xytext=(dx, dy), textcoords="offset points", ha=ha, va=va, fontsize=SMALL)
            box = label.get_window_extent()
            if ax.bbox.x0 <= box.x0 and box.x1 <= (ax if are_inside else fig).bbox.x1 and ax.bbox.y0 <= box.y0 and box.y1 <= ax.bbox.y1 and not any(
                    box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()
        else:
            without.append(number)
    return without


def _apart(heights: list[float], step: float) -> list[float]:
    """The heights, moved apart symmetrically until neighbours have a distance of `step`."""
    places = list(heights)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    for _ in range(500):
        close = [(low, high) for low, high in zip(order, order[1:]) if places[high] - places[low] < step - 0.01]
        for low, high in close:
            push = (step - (places[high] - places[low])) / 2
            places[low] -= push
            places[high] += push
        if not close:
            break
    return places


def to_svg(fig: Figure, name: str, alt: str) -> str:
    """The figure as an <svg> element. `name` makes its ids unique in the page; `alt` describes the figure."""
    size = "narrow" if _is_narrow else "broad"
    name += "-narrow" * _is_narrow
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.DOTALL)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'xlink:href="#([^"]+)"', text))
    text = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', text)
    box = re.search(r'viewBox="[^"]+"', text)
    assert box is not None
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" '
            f'class="{size}" id="plot-{name}" aria-label="{html.escape(alt)}">')
    return head + text[text.index(">") + 1:].rstrip()


def name_of(svg: str) -> str:
    """The name that to_svg was given."""
    found = re.search(r'id="plot-([^"]+)"', svg)
    assert found is not None
    return found[1]
