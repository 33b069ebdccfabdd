"""Cases of report_test.py: two runs compared, and a run that is followed while it goes on."""
from __future__ import annotations

import http.client
import importlib
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from report_support import DPREPORT, EPOCH, has, parse_page, quick, read_csv
from run_log_fixture import write_log


def two_runs_compared(folder: pathlib.Path) -> None:
    (folder / "one").mkdir()
    (folder / "other").mkdir()
    slow = [EPOCH | {"test_accuracy": accuracy, "train_loss": 2 - accuracy} for accuracy in (0.4, 0.5, 0.6)]
    fast = [epoch | {"epoch_s": 8, "exposed_comm_s": 0, "sent_bytes": 2e6, "test_accuracy": epoch["test_accuracy"] - 0.1}
            for epoch in slow]
    write_log(folder / "one/run.h5", ranks=4, epochs=slow, test_augment="shift", augmented_test_accuracy=0.63)
    write_log(folder / "other/run.h5", ranks=4, epochs=fast, config={"compress": "q8"})
    said = quick(folder, "--compare", "one", "other/run.h5", "--csv", "t", "--html", "p.html")
    lines = {" ".join(line.split()) for line in said.stdout.splitlines()}
    for line in ("epochs 3 3 0 1.00", "training loss, last epoch 1.40 1.40 0 1.00",
                 "test accuracy, last epoch, % 60 50 -10.0 0.833", "epoch, s 10 8 -2.00 0.800",
                 "exposed communication, s 2 0 -2.00 0", "sent in all epochs, MB 24 6 -18.0 0.250",
                 # B reaches 50 % in its third epoch, A in its second.
                 "until 50.0 % test accuracy, s 20 24 +4.00 1.20", "until 50.0 % test accuracy, sent MB 16 6 -10.0 0.375",
                 # Test-time augmentation stands beside the plain accuracy, and counts for nothing else.
                 "test accuracy over views (shift), % 63 - - -", "compress none q8"):
        assert line in lines, f"'{line}' is missing in:\n{said.stdout}"
    assert "Runs\n" not in said.stdout  # the usual tables are in files, and come with --all
    rows = {row["quantity"]: row for row in read_csv(folder / "t/runs_compared.csv")}
    assert rows["epoch, s"]["ratio"] == "0.8" and float(rows["sent in all epochs, MB"]["difference"]) == -18, rows
    parse_page(folder / "p.html")
    has((folder / "p.html").read_text(), "A: one/run, against B: other/run")
    said = quick(folder, "--compare", "one", "other", "--all").stdout
    has(said, "A: one/run", "Runs\n", "Over views: the test accuracy with test-time augmentation")
    for table, row in (("\nRuns", "60.0 63.0 shift"), ("\nLoss and accuracy,", "60.0 63.0 shift")):
        part = said[said.index(table):]
        assert row in " ".join(part[:part.index("Over views:")].split()), part
    # Several folders are read side by side.
    has(quick(folder, "one", "other").stdout, "one/run", "other/run")
    # Same options, no accuracy.
    write_log(folder / "a.h5", ranks=1, epochs=[{"epoch_s": 1}])
    write_log(folder / "b.h5", ranks=1, epochs=[{"epoch_s": 2}])
    said = quick(folder, "--compare", "a.h5", "b.h5").stdout
    has(said, "The runs have the same options.")
    assert "accuracy, last" not in said and "until" not in said.replace("The accuracy until which", ""), said
    for words, why in ((("--compare", "a.h5", "missing.h5"), "needs two logs, and 1 could be read"),
                       (("--compare", "a.h5", "."), "--compare: . has 4 logs; name one of them"),
                       (("--compare", "a.h5", "./a.h5"), "--compare: both names stand for a.h5; name two logs"),
                       (("--compare", "a.h5"), "expected 2 arguments"),
                       (("a.h5", "--compare", "a.h5", "b.h5"), "logs and --compare do not go together"),
                       ((), "the following arguments are required"),
                       (("--interval", "1", "a.h5"), "--interval: only with --watch"),
                       (("--watch", "a.h5", "--csv", "t"), "--csv: not with --watch"),
                       (("--watch", "."), "--watch: . is a folder; name a log"),
                       (("--watch", "a.h5", "--interval", "0"), "must be a number of seconds"),
                       (("--port", "1", "a.h5"), "--port: only with --serve"),
                       (("--serve", "a.h5", "--port", "70000"), "70000: must be a port"),
                       (("--serve", "a.h5", "--html", "x.html"), "--html: not with --serve"),
                       (("--serve", "a.h5", "--watch", "a.h5"), "--watch and --serve do not go together")):
        has(quick(folder, *words, code=2).stderr, why)


def _grow(path: pathlib.Path, epochs: int, finished: int) -> None:
    """The log of a later moment takes the place of the earlier one, as dptrain does it."""
    write_log(path.with_suffix(".new"), ranks=2, epochs=[EPOCH | {"train_loss": 2 - 0.5 * e} for e in range(epochs)],
              finished=finished, config={"epochs": "3", "compress": "q8"})
    os.replace(path.with_suffix(".new"), path)


def _until(what: str, is_there: object) -> None:
    end = time.monotonic() + 60
    while not is_there():  # type: ignore[operator]
        assert time.monotonic() < end, f"{what} has not come"
        time.sleep(0.02)


def watched(folder: pathlib.Path) -> None:
    path, page, said = folder / "run.h5", folder / "live.html", folder / "said.txt"
    with open(said, "w", encoding="utf-8") as out:
        process = subprocess.Popen([DPREPORT, "--watch", "run.h5", "--html", "live.html", "--interval", "0.05"], cwd=folder,
                                   stdout=out, stderr=subprocess.STDOUT)
    try:
        _until("the wait", lambda: "waiting for this log" in said.read_text())
        _grow(path, 0, 0)
        _until("the title", lambda: "run: resnet20 on synthetic, 2 ranks, q8" in said.read_text())
        _grow(path, 1, 0)
        _until("epoch 1", lambda: "epoch 1/3  loss 2.0000" in said.read_text())
        _until("its page", lambda: page.exists() and "running: 1 of 3 epochs" in page.read_text())
        parse_page(page)
        has(page.read_text(), '<meta http-equiv="refresh" content="5"/>')
        _grow(path, 2, 0)
        _until("epoch 2", lambda: "epoch 2/3  loss 1.5000" in said.read_text())
        _grow(path, 3, 1)
        assert process.wait(60) == 0, said.read_text()
    finally:
        process.kill()
    text = said.read_text()
    has(text, "running: 2 of 3 epochs, about 0:", "epoch 3/3  loss 1.0000", "finished: 3 of 3 epochs, 0:30 of training\n")
    assert text.count("epoch 1/3") == 1 and "\x1b" not in text, text
    parse_page(page)
    assert "refresh" not in page.read_text()
    has(page.read_text(), "finished: 3 of 3 epochs")


class Server:
    """dpreport --serve of that folder, on a free port."""
    def __init__(self, folder: pathlib.Path, *words: str) -> None:
        self.process = subprocess.Popen([DPREPORT, "--serve", *words, "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        self.port = int(re.search(r"^http://127\.0\.0\.1:(\d+)/ shows the runs", line)[1])  # type: ignore[index]

    def get(self, path: str, host: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def runs(self) -> list[dict]:
        return json.loads(self.get("/runs.json")[1])["runs"]


def served(folder: pathlib.Path) -> None:
    steps = [{"step": step, "comm_s": 0.1, "exposed_comm_s": 0.05, "step_s": 0.2, "train_loss": 2 - 0.001 * step, "partial_bits": 0.5,
              "total_bits": 0.3, "wished_bits": 0.4, "link_bytes_per_s": 1.25e6, "learning_rate": 0.1} for step in range(1, 1001)]
    (folder / "logs").mkdir()
    write_log(folder / "logs/a.h5", ranks=2, epochs=[], finished=0, config={"epochs": "3", "compress": "auto"}, steps=steps)
    server = Server(folder, "logs", "missing.h5")
    try:
        status, page = server.get("/")
        assert status == 200 and "http" not in page.replace("http://www.w3.org/2000/svg", ""), "the page needs something from elsewhere"
        (run,) = server.runs()
        assert run["state"] == "running: 0 of 3 epochs, step 1000" and run["done"] == 0 and not run["is_finished"], run
        facts = dict(run["facts"])
        assert facts["loss"] == "1.0000" and facts["step"] == "1,000" and facts["waiting for the exchange"] == "25.0 %", facts
        charts = {chart["title"]: chart for chart in run["charts"]}
        loss = charts["Loss of the steps"]["lines"][0]["points"]
        assert len(loss) <= 242 and loss[-1] == [1000, 1.0] and abs(loss[0][1] - (2 - 0.001 * loss[0][0])) < 1e-9, loss
        assert charts["Bits a value"]["lines"][0]["points"][-1] == [1000, 0.4], charts["Bits a value"]
        assert charts["Rank 0's link, Mbit/s"]["lines"][0]["points"][-1] == [1000, 10], charts
        assert json.loads(server.get("/runs.json")[1])["problems"] == ["missing.h5: there is no such file"]
        # A run that begins later, beside one that has grown.
        _grow(folder / "logs/b.h5", 2, 0)
        _grow(folder / "logs/a.h5", 3, 1)
        b, a = server.runs()
        assert (b["name"], a["name"]) == ("b", "a") and a["is_finished"] and a["state"].startswith("finished: 3 of 3 epochs"), (a, b)
        assert abs(b["done"] - 2 / 3) < 1e-9 and dict(b["facts"])["time left"].startswith("about 0:"), b
        assert [line["name"] for line in a["charts"][0]["lines"]] == ["training", "test"], a["charts"]
        (folder / "logs/c.h5").write_bytes(b"no log")
        assert any("c.h5" in problem for problem in json.loads(server.get("/runs.json")[1])["problems"])
        # Pages of other sites, and other paths.
        assert server.get("/runs.json", "evil.example")[0] == 403 and server.get("/../run.h5")[0] == 404
        has(quick(folder, "--serve", "logs", "--port", str(server.port), code=2).stderr, f"port {server.port}: ", "0 for a free one")
        server.process.terminate()
        assert server.process.wait(30) == 0
    finally:
        server.process.kill()


def served_to_a_browser(folder: pathlib.Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("skipped: no chromium; apt-get install chromium")
        sys.exit(77)
    _grow(folder / "run.h5", 2, 0)
    server = Server(folder, "run.h5")
    try:
        seen = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}",
                               "--virtual-time-budget=8000", "--dump-dom", f"http://127.0.0.1:{server.port}/"],
                              capture_output=True, text=True, timeout=120, check=True).stdout
        has(seen, "run: resnet20 on synthetic, 2 ranks, q8", "running: 2 of 3 epochs", "<title>1 running - dptrain</title>",
            'aria-label="Loss over epochs"', "<path", "training 1.5")
        assert "NaN" not in seen and 'id="gone" hidden' in seen, seen
    finally:
        server.process.kill()


FAKE_WANDB = """
import json
def Settings(**named): return named
class Run:
    def __init__(self, named):
        self.file = open(named["dir"] + "/" + named["id"], "w")
        self.tell(named)
    def tell(self, what): print(json.dumps(what), file=self.file)
    def log(self, values, step): self.tell([step, values])
    def finish(self): self.file.close()
def init(**named): return Run(named)
"""


def exported_for_wandb(folder: pathlib.Path) -> None:
    write_log(folder / "a.h5", ranks=2, epochs=[EPOCH, EPOCH | {"train_loss": 0.5}], config={"compress": "q4"})
    sys.modules.pop("wandb", None)
    if importlib.util.find_spec("wandb") is None:
        has(quick(folder, "a.h5", "--wandb-offline", "w", code=2).stderr, "has no package wandb; start dpreport by a Python")
        assert not (folder / "w").exists()
    (folder / "package").mkdir()
    (folder / "package/wandb.py").write_text(FAKE_WANDB)
    sys.path.insert(0, str(folder / "package"))
    importlib.invalidate_caches()
    for _ in range(2):  # the same id both times
        quick(folder, "a.h5", "--wandb-offline", "w")
    (made,) = (folder / "w").iterdir()
    start, *epochs = (json.loads(line) for line in made.read_text().splitlines())
    assert (start["mode"], start["name"], start["config"]["compress"]) == ("offline", "a", "q4"), start
    assert [step for step, _ in epochs] == [1, 2] and epochs[1][1]["loss/train"] == 0.5
    assert epochs[0][1]["exchange/sent_bytes"] == 8e6 and "exchange/residual_norm" not in epochs[0][1]  # not measured


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched_while_it_is_silent(folder: pathlib.Path) -> None:
    # A run that has died is told once, in a pipe and on the page; so is that it goes on.
    sys.path.insert(0, str(pathlib.Path(DPREPORT).parent))
    from report import watch
    path, page, pipe = folder / "run.h5", folder / "live.html", io.StringIO()
    watcher = watch.Watcher(path, page, pipe)
    _grow(path, 1, 0)
    watcher.look()
    assert "silent" not in page.read_text() + pipe.getvalue()
    os.utime(path, (time.time() - 600,) * 2)
    for _ in range(2):
        watcher.look()
    assert pipe.getvalue().count("silent for 10:0") == 1, pipe.getvalue()
    has(page.read_text(), "silent for 10:0", "it may have ended early")
    os.utime(path)
    watcher.look()
    assert pipe.getvalue().count("running: 1 of 3 epochs") == 3 and "silent" not in page.read_text(), pipe.getvalue()


def watched_on_a_terminal(folder: pathlib.Path) -> None:
    sys.path.insert(0, str(pathlib.Path(DPREPORT).parent))
    from report import watch
    path, terminal = folder / "run.h5", Terminal()
    os.environ["TERM"], os.environ["COLUMNS"] = "xterm", "70"
    watcher = watch.Watcher(path, None, terminal)
    assert not watcher.look()
    _grow(path, 2, 0)
    assert not watcher.look()
    # The line before is replaced by four: title, two epochs, state; none is as wide as the terminal.
    before, _, picture = terminal.getvalue().partition("\x1b[1F\x1b[J")
    assert "waiting for" in before and len(picture.splitlines()) == 4, terminal.getvalue()
    assert all(len(line) < 70 for line in picture.splitlines()), picture
    has(picture, "epoch 2/3", "running: 2 of 3 epochs, about 0:")
    _grow(path, 1, 0)  # it goes on from an earlier checkpoint
    assert not watcher.look()
    assert "\x1b[4F\x1b[J" in terminal.getvalue()
    _grow(path, 3, 1)
    assert watcher.look()
    has(terminal.getvalue().split("\x1b[3F\x1b[J")[-1], "finished: 3 of 3 epochs")
    # A run that writes nothing any more.
    _grow(path, 1, 0)
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    assert not watcher.look()
    text = terminal.getvalue()
    assert re.search(r"running: 1 of 3 epochs; silent for 2:00:\d\d: it may have ended early", text), text
