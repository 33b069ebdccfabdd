"""The HTML page: tables and plots in one file that needs no script, no network and no other file."""
from __future__ import annotations

import html
from collections.abc import Collection
from dataclasses import dataclass

from . import compare, output, plots_learning, plots_network, plots_rate, plots_reach, plots_shares, plots_time, reach, svg
from .run import Run
from .style import COLORS
from .table import Table

STYLE = COLORS + """
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "DejaVu Sans", Verdana, Arial, sans-serif; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--grid); padding-top: 1rem; }
h3 { font-size: 1rem; margin-top: 1.5rem; }
a { color: var(--c1); } nav a { margin-right: 1em; white-space: nowrap; }
/* A shadow at the right edge says that there is more to the right. */
.wide { overflow-x: auto; background: linear-gradient(to left, var(--page) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--muted), transparent) right / 0.5rem 100% no-repeat scroll; }
table { border-collapse: separate; border-spacing: 0; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
th { background: var(--box); vertical-align: bottom; } .left { text-align: left; }
table.prose td:last-child { white-space: normal; min-width: 12rem; }
td:first-child.left { position: sticky; left: 0; background: var(--page); max-width: 45vw;
  overflow: hidden; text-overflow: ellipsis; }
svg { display: block; width: 100%; max-width: 56rem; height: auto; margin: 0.5rem 0 1.5rem; }
svg.narrow { display: none; max-width: 32rem; }
@media (max-width: 42rem) { svg.broad { display: none; } svg.narrow { display: block; }
  body { padding: 0.6rem; } table { font-size: 0.8rem; } th, td { padding: 0.2rem 0.4rem; }
  th { white-space: normal; } td:first-child.left { max-width: 34vw; }
  table.list, .list tbody, .list tr { display: block; } .list thead { display: none; }
  .list td, .list td:first-child.left { display: flex; justify-content: space-between; max-width: none; position: static; }
  .list td::before { content: attr(data-title); font-weight: bold; margin-right: 1em; } }
.note { color: var(--muted); font-size: 0.85rem; max-width: 48rem; }
.problems { border-left: 4px solid var(--c2); background: var(--box); padding: 0.5rem 1rem; overflow-wrap: anywhere; }
summary { cursor: pointer; margin: 1rem 0; font-weight: bold; }
.how summary { margin: 0.3rem 0; font: inherit; font-size: 0.85rem; color: var(--muted); }
@media print {
  svg, tr { break-inside: avoid; } .wide { overflow: visible; } nav { display: none; } }
"""


def plots_of(runs: list[Run], curves: Collection[Run] = ()) -> dict[str, list[str]]:
    """The plots of each section that has any."""
    return {
        "time": _list(plots_time.time_plot(runs)), "scaling": plots_network.scaling_plots(runs),
        "bandwidth": plots_network.bandwidth_plots(runs), "network": plots_network.network_plots(runs),
        "learning": plots_learning.learning_plots(reach.with_curves(runs)), "ranks": _list(plots_time.ranks_plot(runs)),
        "shares": plots_shares.shares_plots(runs),
        "reach": plots_reach.reach_plots(runs, curves), "rounds": plots_rate.round_plots(runs),
        "rate": plots_rate.rate_plots(runs), "errors": plots_learning.error_plots(runs)
    }


def file_of(plot: str) -> str:
    """A plot as a file of its own, light or dark as its reader's page is."""
    style = f"<style>{COLORS}svg {{ color: var(--ink); background: var(--page); }}</style>"
    end = plot.index(">") + 1
    return f"{output.MARK}\n{plot[:end]}{style}{plot[end:]}\n"


def plot_files(runs: list[Run], curves: Collection[Run] = ()) -> dict[str, str]:
    """Every plot as a separate SVG file, by name."""
    return {svg.name_of(plot): file_of(plot) for plots in plots_of(runs, curves).values() for plot in plots}


@dataclass
class Live:
    """A page of a run that goes on says where the run is, and reloads itself until it has finished."""
    state: str
    reloads: bool
    every_s: int = 5


def page(runs: list[Run], problems: list[str], tables: list[Table], has_details: bool, live: Live | None = None,
         curves: Collection[Run] = ()) -> str:
    """`tables` are all tables; those of epochs, ranks and buckets are shown if `has_details`."""
    by_key = {table.key: table for table in tables}

    def some(*prefixes: str) -> list[Table]:
        return [table for key, table in by_key.items() if key.startswith(prefixes)]

    plots = plots_of(runs, curves)
    with svg.narrow():
        for key, small in plots_of(runs, curves).items():
            plots[key] = [wide + narrow for wide, narrow in zip(plots[key], small, strict=True)]
    sections = [
        ("runs", "Runs", [], some("runs") + (some("advice") if has_details else []),
         some("differences") + ([] if has_details else some("advice"))),
        ("time", "Where the time goes", plots["time"], some("time"),
         some("epochs") if has_details else []),
        ("scaling", "Scaling", plots["scaling"], some("scaling", "batch_x_ranks"), []),
        ("communication", "Computation and communication", [], some("communication"), []),
        ("bandwidth", "Bandwidth", plots["bandwidth"], some("bandwidth", "sent"), []),
        ("network", "Link rate, codec, topology", plots["network"], some("links", "network", "link_x_codec", "codecs"), []),
        ("learning", "Loss and accuracy", plots["learning"], some("learning"), []),
        ("reach", "Time and bytes to an accuracy", plots["reach"], some("reach"), []),
        ("rounds", "Rounds", plots["rounds"], some("rounds"), []),
        ("ranks", "Ranks", plots["ranks"], [], some("ranks") if has_details else []),
        ("shares", "Shares of the batch", plots["shares"], some("shares"), []),
        ("rate", "Rate of the codec", plots["rate"], [], []),
        ("errors", "Errors and residuals", plots["errors"], [], some("buckets", "tensors") if has_details else [])
    ]
    if len(runs) > plots_time.MOST:
        problems = [*problems, f"plots with a row a run show the first {plots_time.MOST} of {len(runs)} runs"]
    if (left_out := len(runs) - len(reach.with_curves(runs))) > 0:
        problems = [*problems, f"plots of loss and accuracy leave out {left_out} short runs, which have times of steps for longer "
                    "trainings"]
    sections = [section for section in sections if any(section[2:])]
    links = " ".join(f'<a href="#{key}">{html.escape(title)}</a>' for key, title, *_ in sections)
    reload = f'<meta http-equiv="refresh" content="{live.every_s}"/>\n' if live is not None and live.reloads else ""
    state = f"<p><strong>{html.escape(live.state)}</strong></p>\n" if live is not None else ""
    body = "\n".join(_section(key, title, plots, shown, folded) for key, title, plots, shown, folded in sections)
    return f"""<!DOCTYPE html>
{output.MARK}
<html lang="en" xmlns="http://www.w3.org/1999/xhtml">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
{reload}<title>{html.escape(_title(runs))}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{html.escape(_title(runs))}</h1>
{state}{_problems(problems)}<nav>{links} <a href="#options">Options</a></nav>
{body}
{_options(runs)}
</body>
</html>
"""


def _list(plot: str | None) -> list[str]:
    return [plot] if plot is not None else []


def _title(runs: list[Run]) -> str:
    if len(runs) == 1:
        return f"dptrain: {runs[0].label}"
    models = sorted({run.model_name for run in runs})
    return f"dptrain: {len(runs)} runs of {', '.join(models[:3])}{' and others' if len(models) > 3 else ''}"


def _problems(problems: list[str]) -> str:
    if not problems:
        return ""
    items = "\n".join(f"<li>{html.escape(problem)}</li>" for problem in problems)
    return f'<div class="problems"><strong>Problems</strong>\n<ul>\n{items}\n</ul></div>\n'


def _table(table: Table, heading: str) -> str:
    text = table.as_html()
    if table.is_prose:
        text = text.replace("<table>", '<table class="prose">')
    return (f"<h3>{html.escape(table.title)}</h3>\n" if table.title != heading else "") + text


def _section(key: str, title: str, plots: list[str], shown: list[Table], folded: list[Table]) -> str:
    """A section that has no plot and no row, and only says why, is folded."""
    parts = [*plots, *(_table(table, title) for table in shown)]
    parts += [
        f"<details><summary>{html.escape(table.title)}</summary>\n{_table(table, table.title)}</details>"
        for table in folded
    ]
    text = "\n".join(parts)
    if not plots and not any(table.rows for table in shown + folded):
        return (f'<h2 id="{key}">{html.escape(title)}</h2>\n<details><summary>Nothing could be computed here: why'
                f"</summary>\n{text}</details>")
    return f'<h2 id="{key}">{html.escape(title)}</h2>\n{text}'


def _options(runs: list[Run]) -> str:
    """The choices that are the same in all runs."""
    names, settings = compare.differences(runs)
    same = {name: value for name, value in settings[0].items() if name not in names and value != ""}
    rows = "\n".join(f'<tr><td class="left">{html.escape(name)}</td><td class="left">{html.escape(value)}</td></tr>'
                     for name, value in sorted(same.items()))
    title = "Options and circumstances" + (" that are the same in all runs" if len(runs) > 1 else "")
    return (
        f'<h2 id="options">Options</h2>\n<details><summary>{title}</summary>\n'
        f'<div class="wide"><table><tbody>\n{rows}\n'
        "</tbody></table></div></details>")
