"""The command line of dpreport: which logs, which form, which exit code."""
from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import NoReturn

from . import (advice, curves, output, peers, reach, read_log, serve, tables_codecs, tables_compared, tables_detail, tables_link,
               tables_network, tables_prediction, tables_reach, tables_rounds, tables_runs, tables_scaling, tables_shares, wandb_export,
               watch)
from .run import Run
from .table import Table, in_markdown

USAGE, NOTHING_READ = 2, 3
FEW, SOME = 4, 12
INTERVAL_S = 2.0
HELP = """Tables and plots from the run logs of dptrain.

  dpreport RUN.h5               tables of one run, down to its ranks and buckets
  dpreport results/exchange     of all *.h5 below a folder, side by side
  dpreport A.h5 B.h5 --html page.html
                                also as one page with plots, which needs no other file
  dpreport --compare A.h5 B.h5  two runs: loss, accuracy, time and bytes of B against A
  dpreport --serve RUN.h5|FOLDER...
                                a page on this machine that shows runs while they go on
  dpreport --watch RUN.h5       follows a run until it has finished; with --html as a page that reloads itself

A log may be unfinished, because its run was killed or still goes on. The report says what is wrong with a log and
reports the rest. It has speedups where there is a run on one rank, or one with --exchange off, of the same model, data,
precision, device, and cores and threads per rank. Epochs count from 1, as on dptrain's console; in files, the log and those of --csv, they
count from 0.

Logs and all other files that dpreport did not write are never overwritten; its own pages, plots and tables are.

Exit codes: 0 something was reported, 1 the Python packages cannot be installed, 2 wrong usage or an output that cannot be
written, 3 no log could be read."""


class Parser(argparse.ArgumentParser):
    """Prints one sentence for an error, without the usage, and accepts no shortened names."""
    def error(self, message: str) -> NoReturn:
        print(f"dpreport: {message}", file=sys.stderr)
        sys.exit(USAGE)


def _path(word: str) -> pathlib.Path:
    if not word:
        raise argparse.ArgumentTypeError("an empty word is no name of a file or folder")
    return pathlib.Path(word)


def _share(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{word}: must be an accuracy between 0 and 1, such as 0.94")
    return value


def _peers(word: str) -> tuple[peers.Peer, ...]:
    try:
        return peers.read(_path(word))
    except peers.Unreadable as error:
        raise argparse.ArgumentTypeError(f"{word}: {error}") from error


def _curves(word: str) -> tuple[Run, ...]:
    try:
        return curves.read(_path(word))
    except curves.Unreadable as error:
        raise argparse.ArgumentTypeError(f"{word}: {read_log.printable(str(error))}") from error


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{word}: must be a number of seconds from 0.05 to 3600")
    return value


def _port(word: str) -> int:
    if not word.isdecimal() or int(word) > 65535:
        raise argparse.ArgumentTypeError(f"{word}: must be a port, 1 to 65535, or 0 for a free one")
    return int(word)


def parse(words: list[str]) -> argparse.Namespace:
    parser = Parser(prog="dpreport", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter,
                    usage="dpreport RUN.h5|FOLDER... [options]", allow_abbrev=False)
    parser.add_argument("paths", nargs="*", type=_path, metavar="RUN.h5|FOLDER", help="logs, or folders of logs")
    parser.add_argument("--html", type=_path, metavar="FILE", help="write the page with tables and plots")
    parser.add_argument("--csv", type=_path, metavar="FOLDER",
                        help="write every table as FOLDER/NAME.csv, in full; experiments/README.md has their columns")
    parser.add_argument("--svg", type=_path, metavar="FOLDER", help="write every plot as FOLDER/NAME.svg")
    parser.add_argument("--wandb-offline", type=_path, metavar="FOLDER", dest="wandb",
                        help="write an offline run of Weights & Biases for each log (needs its package wandb), for wandb sync")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--all", action="store_true", dest="with_details",
                        help=f"print tables of epochs, ranks and buckets for more than {FEW} runs too")
    parser.add_argument("--reach", type=_share, metavar="A",
                        help="time and bytes to this test accuracy, a fraction (default: nine tenths of fp32's)")
    parser.add_argument("--peers", type=_peers, default=(), metavar="FILE",
                        help="steps of other programs, as in experiments/peers.csv, beside the time to an accuracy")
    parser.add_argument("--curves", type=_curves, default=(), metavar="FILE",
                        help="trainings that are kept without their logs, such as experiments/bytes.json, for the time and bytes "
                        "to an accuracy")
    parser.add_argument("--save-curves", type=_path, metavar="FILE",
                        help="write such a file, with the trainings of the logs and of --curves that are compared there")
    parser.add_argument("--compare", nargs=2, type=_path, metavar=("A", "B"),
                        help="compare two logs, or two folders with one log each")
    parser.add_argument("--watch", type=_path, metavar="RUN.h5",
                        help="show a run's epochs as they come, until it has finished; also with --html")
    parser.add_argument("--interval", type=_seconds, metavar="S", help="with --watch: look every S seconds (default 2)")
    parser.add_argument("--serve", nargs="*", type=_path, metavar="RUN.h5|FOLDER",
                        help="show runs while they go on, on a page of http://127.0.0.1, until Ctrl-C (default: this folder)")
    parser.add_argument("--port", type=_port, metavar="N", help=f"with --serve: the page's port, 0 for a free one (default {serve.PORT})")
    arguments = parser.parse_args(words)
    given = [what for what, is_given in (("logs", arguments.paths), ("--compare", arguments.compare),
                                         ("--watch", arguments.watch), ("--serve", arguments.serve is not None)) if is_given]
    if len(given) > 1:
        parser.error(f"{' and '.join(given)} do not go together")
    if not given:
        parser.error("which logs? the following arguments are required: RUN.h5|FOLDER")
    if arguments.watch is None and arguments.interval is not None:
        parser.error("--interval: only with --watch")
    if arguments.port is not None and arguments.serve is None:
        parser.error("--port: only with --serve")
    if arguments.watch is not None or arguments.serve is not None:
        live = "--watch" if arguments.serve is None else "--serve"
        for option, field in (("csv", "csv"), ("svg", "svg"), ("markdown", "markdown"), ("wandb-offline", "wandb"),
                              ("reach", "reach"), ("peers", "peers"), ("curves", "curves"), ("save-curves", "save_curves"),
                              *((("html", "html"),) if live == "--serve" else ())):
            if getattr(arguments, field):
                parser.error(f"--{option}: not with {live}; give the log alone when the run has finished")
    if arguments.watch is not None:
        if os.path.exists(arguments.watch) and not os.path.isfile(arguments.watch):
            parser.error(f"--watch: {arguments.watch} is {'a folder' if arguments.watch.is_dir() else 'no regular file'}; name a log")
    return arguments


def tables_of(runs: list[Run], with_details: bool, asked: reach.Asked = reach.Asked()) -> list[Table]:
    """All tables for which the runs have data, in the order of the report."""
    tables: list[Table | None] = [
        tables_runs.runs_table(runs),
        tables_runs.differences_table(runs),
        advice.advice_table(runs) if with_details or len(runs) <= SOME else None,
        tables_runs.time_table(runs),
        tables_runs.sessions_table(runs),
        tables_shares.shares_table(runs),
        tables_scaling.scaling_table(runs), *tables_scaling.batch_tables(runs),
        tables_scaling.communication_table(runs),
        tables_network.bandwidth_table(runs),
        tables_link.sent_table(runs),
        tables_link.links_table(runs),
        tables_prediction.prediction_table(runs), *tables_network.network_tables(runs),
        tables_codecs.codecs_table(runs), *tables_reach.reach_tables(runs, asked),
        tables_rounds.rounds_table(runs),
        tables_runs.learning_table(runs)
    ]
    if with_details:
        tables += [tables_runs.epochs_table(runs), tables_detail.ranks_table(runs), tables_detail.buckets_table(runs),
                   tables_detail.tensors_table(runs)]
    return [table for table in tables if table is not None]


def read_all(paths: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a sentence for everything that is wrong."""
    logs, problems = read_log.find_logs(paths)
    runs = []
    for log, result in zip(logs, read_log.read_all(logs)):
        if isinstance(result, Run):
            result.number = len(runs)
            runs.append(result)
            problems += [f"{log}: {problem}" for problem in result.problems]
        else:
            problems.append(f"{log}: {result}")
    return runs, [read_log.printable(problem) for problem in problems]


def _why_not_two(paths: list[pathlib.Path]) -> str | None:
    """Why these names do not stand for two logs, as far as they are there."""
    logs = [read_log.find_logs([path])[0] for path in paths]
    for path, found in zip(paths, logs):
        if len(found) > 1:
            return f"{path} has {len(found)} logs; name one of them"
    if all(logs) and os.path.samefile(logs[0][0], logs[1][0]):
        return f"both names stand for {logs[0][0]}; name two logs"
    return None


def _check_names(arguments: argparse.Namespace) -> None:
    """Checks the outputs as far as possible before the logs are read. Throws NotWritable."""
    if arguments.html is not None:
        output.check_file("--html", arguments.html)
    if arguments.save_curves is not None:
        output.check_new_file("--save-curves", arguments.save_curves)
    for option, folder in (("--csv", arguments.csv), ("--svg", arguments.svg), ("--wandb-offline", arguments.wandb)):
        if folder is not None:
            output.check_folder(option, folder)


def _asked(arguments: argparse.Namespace) -> reach.Asked:
    return reach.Asked(arguments.reach, arguments.peers, arguments.curves)


def _curves_text(runs: list[Run], asked: reach.Asked) -> str:
    trainings = reach.trainings(runs, asked.curves)
    for run in trainings:
        if not curves.is_whole(run):
            print(f"dpreport: --save-curves: leaves out {run.label}, whose accuracies or bytes are not all there", file=sys.stderr)
    try:
        return curves.text(trainings)
    except curves.Nothing as error:
        raise output.NotWritable(f"--save-curves: {error}") from error


def _outputs(arguments: argparse.Namespace, runs: list[Run], problems: list[str], compared: list[Table]) -> output.Outputs:
    outputs, asked = output.Outputs(), _asked(arguments)
    if arguments.csv is not None:
        outputs.add_tables("--csv", arguments.csv,
                           {f"{table.key}.csv": table.as_csv() for table in [*compared, *tables_of(runs, True, asked)]})
        outputs.check()  # before plots are drawn, which takes seconds
    if arguments.save_curves is not None:
        outputs.add_new("--save-curves", arguments.save_curves, _curves_text(runs, asked))
    if arguments.svg is not None or arguments.html is not None:
        from . import page  # brings matplotlib, which takes a second
    if arguments.svg is not None:
        for name, text in page.plot_files(runs, asked.curves).items():
            outputs.add_marked("--svg", arguments.svg / f"{name}.svg", text)
    if arguments.html is not None:
        outputs.add_marked(
            "--html", arguments.html,
            page.page(runs, problems, [*compared, *tables_of(runs, True, asked)], arguments.with_details or len(runs) <= SOME,
                      curves=asked.curves))
    return outputs


def _text(tables: list[Table], problems: list[str], is_markdown: bool) -> str:
    if is_markdown:
        said = "".join(f"- {in_markdown(problem)}\n" for problem in problems) + ("\n" if problems else "")
        return said + "\n".join(table.as_markdown() for table in tables)
    said = ["Problems", *(f"  {problem}" for problem in problems), ""] if problems else []
    return "\n".join(said + [table.as_text() for table in tables])


def main(words: list[str]) -> int:
    """Throws OSError if standard output cannot be written."""
    arguments = parse(words)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        _check_names(arguments)
        wandb = wandb_export.package() if arguments.wandb is not None else None
        if arguments.watch is not None:
            watch.watch(arguments.watch, arguments.html, arguments.interval or INTERVAL_S)
            return 0
        if arguments.serve is not None:
            serve.serve(arguments.serve or [pathlib.Path(".")], serve.PORT if arguments.port is None else arguments.port)
            return 0
        if arguments.compare and (why := _why_not_two(arguments.compare)):
            print(f"dpreport: --compare: {read_log.printable(why)}", file=sys.stderr)
            return USAGE
        runs, problems = read_all(arguments.compare or arguments.paths)
        asked = _asked(arguments)
        problems += map(read_log.printable, [*reach.repeated(runs), *reach.without_table(runs, asked)])
        for problem in problems:
            print(f"dpreport: {problem}", file=sys.stderr)
        if not runs:
            print("dpreport: no log could be read", file=sys.stderr)
            return NOTHING_READ
        if arguments.compare and len(runs) != 2:
            print(f"dpreport: --compare: needs two logs, and {len(runs)} could be read", file=sys.stderr)
            return USAGE
        compared = [tables_compared.compared_table(*runs), tables_compared.options_table(*runs)] if arguments.compare else []
        outputs = _outputs(arguments, runs, problems, compared)
        outputs.check()
        shown = compared if compared and not arguments.with_details else [
            *compared, *tables_of(runs, arguments.with_details or len(runs) <= FEW, _asked(arguments))]
        print(_text(shown, problems, arguments.markdown), end="",
              flush=True)
        outputs.write()
        if wandb is not None:
            wandb_export.export(wandb, runs, arguments.wandb)
    except (output.NotWritable, serve.Occupied) as error:
        print(f"dpreport: {error}", file=sys.stderr)
        return USAGE
    return 0
