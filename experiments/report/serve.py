"""A page on this machine that follows runs while they go on (dpreport --serve).

GET /          the page (live_page.py), which asks for the rest every few seconds
GET /runs.json what the logs say now

A log is read anew when its file has changed. Nothing is written, and nobody but this machine is answered.
"""
from __future__ import annotations

import dataclasses
import http.server
import json
import math
import pathlib
import signal
import sys
import threading
import time
from typing import Any

from . import live_page, read_log, units, watch
from .run import Run

MOST_POINTS = 240
PORT = 8123
HOSTS = ("127.0.0.1", "localhost", "[::1]")


class Occupied(Exception):
    """The port cannot be had. The text says why."""


def _thinned(xs: list[float], ys: list[float]) -> list[list[float]]:
    """Points with finite values, MOST_POINTS at most, each the mean of neighbours; the last one is kept."""
    points = [(x, y) for x, y in zip(xs, ys) if math.isfinite(x) and math.isfinite(y)]
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return [list(point) for point in points]
    groups = [points[first:first + size] for first in range(0, len(points) - 1, size)]
    means = [[sum(values) / len(group) for values in zip(*group)] for group in groups]
    return [*means, list(points[-1])]


def _column(table, name: str, factor: float = 1.0) -> list[float]:
    return [factor * float(value) for value in table[name]] if table is not None and name in table else []


def _line(name: str, xs: list[float], ys: list[float]) -> dict[str, Any]:
    return {"name": name, "points": _thinned(xs, ys)}


def _chart(title: str, x_title: str, lines: list[dict[str, Any]], least: float | None = None) -> dict[str, Any] | None:
    lines = [line for line in lines if line["points"]]
    return {"title": title, "x": x_title, "lines": lines, "least": least} if lines else None


def _share_lines(run: Run) -> list[dict[str, Any]]:
    if run.shares is None or run.shares["step"].nunique() < 2:  # facts_of() has one division
        return []
    return [_line(f"rank {rank}", _column(rows, "step"), _column(rows, "images"))
            for rank, rows in run.shares.groupby("rank")][:8]


def charts_of(run: Run) -> list[dict[str, Any]]:
    steps = run.steps if run.steps is not None and len(run.steps) else None
    at, epochs = _column(steps, "step"), [epoch + 1 for epoch in _column(run.epochs, "epoch")]
    by_step = [_line("each step's", at, _column(steps, "train_loss"))]
    by_epoch = [_line("training", epochs, _column(run.epochs, "train_loss")), _line("test", epochs, _column(run.epochs, "test_loss"))]
    bits = [(a + b) / 2 for a, b in zip(_column(steps, "partial_bits"), _column(steps, "total_bits"))]
    found = [
        _chart("Loss of the steps", "step", by_step), _chart("Loss", "epoch", by_epoch),
        _chart("Test accuracy, %", "epoch", [_line("accuracy", epochs, _column(run.epochs, "test_accuracy", 100))]),
        _chart("Seconds a step", "step", [_line("whole step", at, _column(steps, "step_s")),
                                          _line("waiting for the exchange", at, _column(steps, "exposed_comm_s"))], 0.0),
        _chart("Seconds an epoch", "epoch", [_line("whole epoch", epochs, _column(run.epochs, "epoch_s")),
                                             _line("waiting for the exchange", epochs, _column(run.epochs, "exposed_comm_s"))], 0.0)
        if steps is None else None,
        _chart("Bits a value", "step", [_line("sent", at, bits), _line("hidden by the slowest link", at, _column(steps, "wished_bits"))]
               if any(map(math.isfinite, bits)) else [], 0.0),
        _chart("Rank 0's link, Mbit/s", "step", [_line("carries", at, _column(steps, "link_bytes_per_s", 8e-6))], 0.0),
        _chart("Images of each rank", "step", _share_lines(run), 0.0)
    ]
    return [chart for chart in found if chart is not None]


def _last(table, name: str) -> float | None:
    values = [value for value in _column(table, name) if math.isfinite(value)]
    return values[-1] if values else None


def _images(run: Run) -> str:
    if run.shares is None or not len(run.shares):
        return ""
    last = run.shares.groupby("rank")["images"].last()
    return ", ".join(f"{int(images)}" for images in last) if last.nunique() > 1 and len(last) <= 16 else ""


def facts_of(run: Run, since_last_s: float) -> list[list[str]]:
    """Titles and texts, of which those that are not known are left out."""
    steps, epochs = run.steps, run.epochs
    step_s, exposed = _last(steps, "step_s"), _last(steps, "exposed_comm_s")
    if step_s is None:
        step_s, exposed = _last(epochs, "epoch_s"), _last(epochs, "exposed_comm_s")
    accuracy, left = _last(epochs, "test_accuracy"), watch.left_s(run, since_last_s)
    loss = _last(steps, "train_loss")
    sent = sum(_column(epochs, "sent_bytes"))
    total = _last(steps, "total_bits")
    rows = [
        ("epoch", f"{len(epochs)}{' of ' + str(run.wanted_epochs) if run.wanted_epochs else ''}"),
        ("step", units.whole(_last(steps, "step"))),
        ("loss", units.fixed(4)(loss if loss is not None else _last(epochs, "train_loss"))),
        ("test accuracy", f"{units.percent(accuracy)} %" if accuracy is not None else units.DASH),
        ("learning rate", units.digits(_last(steps, "learning_rate") or _last(epochs, "learning_rate"))),
        ("waiting for the exchange", f"{units.percent(exposed / step_s)} %" if step_s and exposed is not None else units.DASH),
        ("bits a value", units.digits(total)),
        ("sent in whole epochs", f"{units.digits(sent / 1e6)} MB" if sent else units.DASH),
        ("time left", f"about {watch.duration(left)}" if left and not run.is_finished else units.DASH),
        ("images of the ranks", _images(run)),
        ("hosts", ", ".join(dict.fromkeys(run.hosts)))
    ]
    return [[title, text] for title, text in rows if text and text != units.DASH]


def summary(run: Run, charts: list[dict[str, Any]], since_last_s: float) -> dict[str, Any]:
    done = len(run.epochs) / run.wanted_epochs if run.wanted_epochs else 0.0
    return {"name": run.label, "title": watch.title_line(run), "state": watch.state_line(run, since_last_s),
            "is_finished": run.is_finished, "is_silent": watch.is_silent(run, since_last_s), "done": min(1.0, done),
            "facts": facts_of(run, since_last_s), "charts": charts,
            "problems": [read_log.printable(problem) for problem in run.problems] if run.is_finished else []}


@dataclasses.dataclass
class _Read:
    mark: tuple[int, int]  # time and size of the file
    result: Any
    charts: list[dict[str, Any]]


class Logs:
    """The named logs, also those that are made later in named folders."""

    def __init__(self, paths: list[pathlib.Path]) -> None:
        self._paths = paths
        self._read: dict[pathlib.Path, _Read] = {}
        self._lock = threading.Lock()

    def state(self) -> dict[str, Any]:
        with self._lock:
            logs, problems = read_log.find_logs(self._paths)
            found = []
            for log, label in zip(logs, read_log.labels_of(logs)):
                read = self._read_log(log)
                if isinstance(read.result, Run):
                    read.result.label = label
                    since = max(0.0, time.time() - 1e-9 * read.mark[0])
                    found.append((read, summary(read.result, read.charts, since)))
                else:
                    problems.append(f"{log}: {read.result}")
            # Runs that go on come first, and then the newest of the others.
            found.sort(key=lambda pair: (pair[1]["is_finished"], -pair[0].mark[0]))
            return {"runs": [run for _, run in found], "problems": [read_log.printable(problem) for problem in problems]}

    def _read_log(self, log: pathlib.Path) -> _Read:
        try:
            status = log.stat()
        except OSError as error:
            return _Read((0, 0), error.strerror, [])
        mark = (status.st_mtime_ns, status.st_size)
        if log not in self._read or self._read[log].mark != mark:
            result = next(read_log.read_all([log]))
            self._read[log] = _Read(mark, result, charts_of(result) if isinstance(result, Run) else [])
        return self._read[log]


class _Handler(http.server.BaseHTTPRequestHandler):
    server_version, sys_version = "dpreport", ""
    logs: Logs

    def do_GET(self) -> None:  # noqa: N802, the name that http.server calls
        # A page of another site may not read the logs through a name that leads here.
        if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in HOSTS:
            self.send_error(403)
        elif self.path == "/":
            self._answer("text/html; charset=utf-8", live_page.PAGE)
        elif self.path == "/runs.json":
            self._answer("application/json", json.dumps(self.logs.state(), allow_nan=False))
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(200)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
                            ("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"),
                            ("X-Content-Type-Options", "nosniff")):
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # the reader has gone
            pass

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


def serve(paths: list[pathlib.Path], port: int) -> None:
    """Until SIGTERM or Ctrl-C. Throws Occupied."""
    handler = type("Handler", (_Handler,), {"logs": Logs(paths)})
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise Occupied(f"port {port}: {error.strerror}; give another one, or 0 for a free one") from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"http://127.0.0.1:{server.server_port}/ shows the runs until Ctrl-C. From another machine: "
          f"ssh -L {server.server_port}:127.0.0.1:{server.server_port} THIS-HOST", flush=True)
    with server:
        server.serve_forever()
