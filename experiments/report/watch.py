"""Follows the log of a run that goes on: on the terminal, and as a page that reloads itself."""
from __future__ import annotations

import datetime
import os
import pathlib
import shutil
import sys
import time
from typing import TextIO

from . import output, read_log, units
from .run import Run

SHOWN = 12  # epochs on a terminal
SILENT_S, SILENT_EPOCHS = 60.0, 3.0  # after which it is said that nothing was written


def duration(seconds: float) -> str:
    """0:07, 12:34, 1:02:03"""
    whole = max(0, int(seconds + 0.5))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def epoch_with_all_s(run: Run) -> float | None:
    """How long an epoch takes with its evaluation and checkpoints."""
    parts = [run.time(column) or 0.0 for column in ("epoch_s", "eval_s", "checkpoint_s")]
    return sum(parts) if run.epoch_s is not None else None


def left_s(run: Run, since_last_s: float) -> float | None:
    """Until the last epoch ends, when the last row was written so many seconds ago."""
    each = epoch_with_all_s(run)
    if each is None or run.wanted_epochs is None or run.is_finished:
        return None
    left = max(0, run.wanted_epochs - (int(run.epochs["epoch"].iloc[-1]) + 1))
    return max(0.0, left * each - since_last_s) if left else 0.0


def _of(run: Run) -> str:
    return f"/{run.wanted_epochs}" if run.wanted_epochs else ""


def epoch_line(run: Run, row: int) -> str:
    """One epoch, as dptrain's console tells it."""
    values = run.epochs.iloc[row]
    wanted = len(str(run.wanted_epochs or ""))
    parts = [f"epoch {int(values['epoch']) + 1:>{wanted}}{_of(run)}"]
    for title, column, text in (("loss", "train_loss", units.fixed(4)), ("test loss", "test_loss", units.fixed(4)),
                                ("test accuracy", "test_accuracy", lambda share: f"{units.percent(share)} %")):
        if column in values and units.is_number(float(values[column])):
            parts.append(f"{title} {text(float(values[column]))}")
    parts.append(f"{units.digits(values['epoch_s'])} s")
    told = [f"{title} {units.digits(float(values[column]))}" for title, column in
            (("compute", "compute_s"), ("exposed", "exposed_comm_s"), ("data", "data_s")) if column in values]
    parts += [f"({', '.join(told)})"] if told else []
    if values["epoch_s"] > 0:
        parts.append(f"{values['samples'] / values['epoch_s']:,.0f} images/s")
    if run.exchanges and "sent_bytes" in values:
        parts.append(f"sent {units.digits(values['sent_bytes'] / 1e6)} MB")
    return "  ".join(parts)


def is_silent(run: Run, since_last_s: float) -> bool:
    """Whether a run that has not finished wrote nothing for so long that it may have died."""
    return not run.is_finished and since_last_s > max(SILENT_S, SILENT_EPOCHS * (epoch_with_all_s(run) or 0.0))


def state_line(run: Run, since_last_s: float) -> str:
    """Where the run is: running, silent or finished."""
    done = int(run.epochs["epoch"].iloc[-1]) + 1 if len(run.epochs) else 0
    at = f"{done}{' of ' + str(run.wanted_epochs) if run.wanted_epochs else ''} epochs"
    if run.is_finished:
        trained = float(run.epochs["epoch_s"].sum()) if len(run.epochs) else 0.0
        return f"finished: {at}, {duration(trained)} of training"
    text = f"running: {at}"
    if run.steps is not None and len(run.steps):
        text += f", step {int(run.steps['step'].iloc[-1])}"
    if is_silent(run, since_last_s):
        return f"{text}; silent for {duration(since_last_s)}: it may have ended early"
    left = left_s(run, since_last_s)
    if left is not None:
        ends = datetime.datetime.now() + datetime.timedelta(seconds=left)
        text += f", about {duration(left)} left (until {ends:%H:%M})"
    return text


def title_line(run: Run) -> str:
    ranks = f"{run.world_size} rank{'' if run.world_size == 1 else 's'}"
    said = [f"{run.label}: {run.model_name} on {run.config.get('dataset', 'unknown data')}", ranks]
    return ", ".join(said + ([run.codec] if run.codec else []) + ([f"link {run.link_name}"] if run.link_name and run.link_bits is not None else []))


def screen(run: Run, since_last_s: float) -> list[str]:
    """What a terminal shows."""
    first = max(0, len(run.epochs) - SHOWN)
    more = [f"  ... {first} epochs before"] if first else []
    return [title_line(run), *more, *(f"  {epoch_line(run, row)}" for row in range(first, len(run.epochs))),
            state_line(run, since_last_s)]


class Watcher:
    def __init__(self, path: pathlib.Path, page_path: pathlib.Path | None, stream: TextIO) -> None:
        self._path, self._page_path, self._stream = path, page_path, stream
        self._is_terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._drawn = 0  # lines on the terminal that the next picture replaces
        self._told = 0  # epochs that were printed as lines
        self._said: str | None = None  # of what is wrong, and of the title
        self._is_silent = False  # and whether that was said
        self._page: tuple[int, bool, bool] | None = None  # epochs and state that the page shows

    def look(self) -> bool:
        """Shows what is new; returns whether the run has finished. Throws NotWritable."""
        if not os.path.exists(self._path):
            self._wait_for(f"{self._path}: waiting for this log to be made")
            return False
        result = next(read_log.read_all([self._path]))
        if not isinstance(result, Run):
            self._wait_for(f"{read_log.printable(str(self._path))}: {result}")
            return False
        try:
            since = max(0.0, time.time() - self._path.stat().st_mtime)
        except OSError:
            since = 0.0
        self._show(result, since)
        self._write_page(result, since)
        return result.is_finished

    def _wait_for(self, why: str) -> None:
        if why != self._said:
            self._draw([why])
        self._said = why

    def _show(self, run: Run, since_last_s: float) -> None:
        if self._is_terminal:
            self._draw(screen(run, since_last_s))
            return
        lines = [title_line(run)] if self._said != title_line(run) else []
        self._said = title_line(run)
        if len(run.epochs) < self._told:  # it went on from an earlier checkpoint
            lines.append(f"went on after {len(run.epochs)} epochs")
            self._told = len(run.epochs)
        for row in range(self._told, len(run.epochs)):
            lines.append(epoch_line(run, row))
        self._told = len(run.epochs)
        silent = is_silent(run, since_last_s)
        is_news = silent != self._is_silent
        self._is_silent = silent
        if run.is_finished or is_news or (lines and len(run.epochs)):
            lines.append(state_line(run, since_last_s))
        for line in lines:
            print(line, file=self._stream, flush=True)

    def _draw(self, lines: list[str]) -> None:
        if not self._is_terminal:
            print(*lines, sep="\n", file=self._stream, flush=True)
            return
        # A line that wraps would count as two.
        columns = shutil.get_terminal_size().columns - 1
        back = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        print(back + "\n".join(line[:columns] for line in lines), file=self._stream, flush=True)
        self._drawn = len(lines)

    def _write_page(self, run: Run, since_last_s: float) -> None:
        shown = (len(run.epochs), run.is_finished, is_silent(run, since_last_s))
        if self._page_path is None or shown == self._page:
            return
        from . import command, page  # brings matplotlib, which takes a second
        text = page.page([run], [read_log.printable(problem) for problem in run.problems if run.is_finished],
                         command.tables_of([run], True), True, page.Live(state_line(run, since_last_s), not run.is_finished))
        outputs = output.Outputs()
        outputs.add_marked("--html", self._page_path, text)
        outputs.check()
        outputs.write()
        self._page = shown


def watch(path: pathlib.Path, page_path: pathlib.Path | None, interval_s: float) -> None:
    """Returns when the run has finished. Throws NotWritable, and KeyboardInterrupt."""
    watcher = Watcher(path, page_path, sys.stdout)
    while not watcher.look():
        time.sleep(interval_s)
