"""The command line of dpreport: which logs, which form, which exit code."""
from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterable
from typing import NoReturn

from . import advice, read_log, tables_detail, tables_network, tables_runs, tables_scaling
from .run import Run
from .table import Table

USAGE, NOTHING_READ = 2, 3
FEW, SOME = 4, 12
HELP = """Tables and plots from the run logs of dptrain.

  dpreport RUN.h5               tables of one run, down to its ranks and buckets
  dpreport results/exchange     of all *.h5 below a folder, side by side
  dpreport A.h5 B.h5 --html page.html
                                also as one page with plots, which needs nothing else

A log may be unfinished, be it that its run was killed or that it goes on. What is wrong with a log is said, the rest
is reported. Speedups are told where a run on one rank, or one with --exchange off, can be compared: the same model,
data, precision, device, and cores and threads per rank.

Exit codes: 0 something could be reported, 1 the Python packages cannot be had, 2 usage, 3 no log could be read."""


class Parser(argparse.ArgumentParser):
    """One sentence instead of the usage and a sentence; no guessing at shortened names."""
    def error(self, message: str) -> NoReturn:
        print(f"dpreport: {message}", file=sys.stderr)
        sys.exit(USAGE)


def parse(words: list[str]) -> argparse.Namespace:
    parser = Parser(prog="dpreport", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter,
                    usage="dpreport RUN.h5|FOLDER... [options]", allow_abbrev=False)
    parser.add_argument("paths", nargs="+", type=pathlib.Path, metavar="RUN.h5|FOLDER", help="logs, or folders of logs")
    parser.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write the page with tables and plots")
    parser.add_argument("--csv", type=pathlib.Path, metavar="FOLDER",
                        help="write every table as FOLDER/NAME.csv, in full")
    parser.add_argument("--svg", type=pathlib.Path, metavar="FOLDER", help="write every plot as FOLDER/NAME.svg")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--all", action="store_true", dest="with_details",
                        help=f"print tables of epochs, ranks and buckets for more than {FEW} runs too")
    return parser.parse_args(words)


def tables_of(runs: list[Run], with_details: bool) -> list[Table]:
    """All tables that the runs have something for, in the order of the report."""
    tables: list[Table | None] = [
        tables_runs.runs_table(runs),
        tables_runs.differences_table(runs),
        advice.advice_table(runs) if with_details or len(runs) <= SOME else None,
        tables_runs.time_table(runs),
        tables_scaling.scaling_table(runs), *tables_scaling.batch_tables(runs),
        tables_scaling.communication_table(runs),
        tables_network.bandwidth_table(runs), *tables_network.network_tables(runs),
        tables_runs.learning_table(runs)
    ]
    if with_details:
        tables += [tables_runs.epochs_table(runs), tables_detail.ranks_table(runs), tables_detail.buckets_table(runs)]
    return [table for table in tables if table is not None]


def read_all(paths: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a sentence for everything that is wrong."""
    logs, problems = read_log.find_logs(paths)
    runs = []
    for log, result in zip(logs, read_log.read_all(logs)):
        if isinstance(result, Run):
            runs.append(result)
            problems += [f"{log}: {problem}" for problem in result.problems]
        else:
            problems.append(f"{log}: {result}")
    return runs, [read_log.printable(problem) for problem in problems]


def main(words: list[str]) -> int:
    arguments = parse(words)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for option, path in (("--html", arguments.html), ("--csv", arguments.csv), ("--svg", arguments.svg)):
        folder = path and path.parent
        if folder is not None and not folder.is_dir():
            print(f"dpreport: {option}: there is no folder {folder}", file=sys.stderr)
            return USAGE
    runs, problems = read_all(arguments.paths)
    for problem in problems:
        print(f"dpreport: {problem}", file=sys.stderr)
    if not runs:
        print("dpreport: no log could be read", file=sys.stderr)
        return NOTHING_READ
    tables = tables_of(runs, arguments.with_details or len(runs) <= FEW)
    problem_lines = [f"  {problem}" for problem in problems]
    if arguments.markdown:
        print(
            "".join(f"- {problem}\n"
                    for problem in problems) + ("\n" if problems else "") + "\n".join(table.as_markdown()
                                                                                      for table in tables), end="")
    else:
        print("\n".join((["Problems", *problem_lines, ""] if problems else []) + [table.as_text() for table in tables]),
              end="")
    try:
        if arguments.csv is not None:
            arguments.csv.mkdir(exist_ok=True)
            for table in tables_of(runs, True):
                table.write_csv(arguments.csv)
        if arguments.svg is not None or arguments.html is not None:
            from . import page  # brings matplotlib, which takes a second
        if arguments.svg is not None:
            page.write_plots(runs, arguments.svg)
        if arguments.html is not None:
            arguments.html.write_text(
                page.page(runs, problems, tables_of(runs, True), arguments.with_details or len(runs) <= SOME),
                encoding="utf-8")
    except OSError as error:
        print(f"dpreport: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return USAGE
    return 0
