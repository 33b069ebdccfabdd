"""Accuracy over the time that a training takes over each link, and over bytes, with a band over the seeds (reach.py)."""
from __future__ import annotations

import re
from collections.abc import Collection

from matplotlib.axes import Axes

from . import compare, reach
from .plots_learning import accuracy_limits
from .plots_lines import MOST_PANELS, Form, Line, lines_plot, log_x
from .run import Run

OWN, EXACT = "this exchange", "fp32 at every step"


def _family(curve: reach.Curve) -> str:
    """The curves of a family share a figure."""
    run = curve.runs[0]
    if not run.sync_every:
        return "at every step"
    return "in rounds with an outer optimiser" if run.outer else "in rounds"


def _word(text: str) -> str:
    """The text as a part of a file's name."""
    return re.sub("[^A-Za-z0-9]+", "-", text)


def _line(panel: str, kind: str, x: list[float], curve: reach.Curve) -> Line:
    """Without the epochs before anything was sent, for which a logarithmic axis has no place."""
    there = [e for e, value in enumerate(x) if value > 0]
    line = Line(panel, panel, [x[e] for e in there], [100 * curve.accuracy[e] for e in there], kind,
                kind_number=[OWN, EXACT].index(kind))
    line.band = [100 * curve.spread[e] for e in there] if len(curve.runs) > 1 else []
    return line


def _plot(name: str, alt: str, title: str, x_title: str, found: reach.Reach, curves: list[reach.Curve], x) -> str | None:
    """A small plot for each curve beside fp32's, with the others in grey."""
    lines, exact = [], x(found.fp32)
    shorts = [re.sub(", outer [0-9./]+", "", curve.exchange) for curve in curves]
    for curve, short in zip(curves, shorts):
        xs, panel = x(curve), short if shorts.count(short) == 1 else curve.exchange
        if xs is not None:
            lines += [_line(panel, EXACT, exact, found.fp32)] if exact is not None else []
            lines.append(_line(panel, OWN, xs, curve))
    lines = [line for line in lines if line.x]
    if not lines:
        return None

    def prepare(ax: Axes) -> None:
        ax.set_ylim(accuracy_limits(lines))
        log_x([value for line in lines for value in line.x])(ax)

    return lines_plot(name, alt, lines, Form(x_title, title, prepare, are_many=True,
                                             mark=None if found.equal is None else 100 * found.equal))


def reach_plots(runs: list[Run], curves: Collection[Run] = ()) -> list[str]:
    plots = []
    kinds = reach.reaches(runs, curves)
    for number, found in enumerate(kinds, 1):
        has_seeds, of = any(len(curve.runs) > 1 for curve in found.curves), f"{found.title}: " * (len(kinds) > 1)
        about = "mean over the seeds, with a band of one standard deviation" if has_seeds else "one seed each"
        about += "; dashed: the least at the end that is equal to fp32" if found.equal is not None else ""
        families = compare.groups(found.curves[1:], _family)
        parts = [(family, part, own[part:part + MOST_PANELS]) for family, own in families.items()
                 for part in range(0, len(own), MOST_PANELS)]
        for family, part, own in parts:
            key = f"reach-{number}-{_word(family)}" + (f"-{part}" if part else "")
            for link in found.links:
                plots.append(_plot(
                    f"{key}-{_word(link)}", f"{of}Test accuracy over time at {link}, exchanges {family}",
                    f"{of}test accuracy over time at {link}, %; exchanges {family}; {about}",
                    f"seconds of training over {link} (logarithmic)", found, own,
                    lambda curve, link=link: curve.after_epochs(curve.step_s[link]) if link in curve.step_s else None))
            plots.append(_plot(f"{key}-bytes", f"{of}Test accuracy over bytes sent, exchanges {family}",
                               f"{of}test accuracy over bytes sent, %; exchanges {family}; {about}",
                               f"MB {'on the wire of' if found.is_on_wire else 'sent by'} a rank (logarithmic)", found, own, lambda curve: curve.sent_mb))
    return [plot for plot in plots if plot is not None]
