#!/usr/bin/python3
"""dpreport: tables of logs with known numbers, damaged logs, forms of output.

    report_test.py DPREPORT CASE [DPTRAIN MPIEXEC]

Exit code 77: not possible here.
"""
from __future__ import annotations

import csv
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from typing import Callable

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
DPREPORT, CASE = sys.argv[1:3]

try:
    import h5py
    import matplotlib  # noqa: F401
    import pandas  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; experiments/setup.sh --tests installs it")
    sys.exit(77)

import study  # noqa: E402
from run_log_fixture import COLUMNS, write_log  # noqa: E402

EPOCH = {
    "epoch_s": 10, "compute_s": 8, "exposed_comm_s": 2, "comm_s": 4, "sent_bytes": 8e6, "received_bytes": 8e6,
    "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5
}


def report(folder: pathlib.Path, *words: str, code: int = 0,
           env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    answer = subprocess.run([DPREPORT, *words], cwd=folder, capture_output=True, text=True, timeout=200, check=False,
                            env=os.environ | {"XDG_CACHE_HOME": str(folder / "no-cache")} | (env or {}))
    assert answer.returncode == code, f"exit code {answer.returncode}, not {code}\n{answer.stdout}\n{answer.stderr}"
    assert "Traceback" not in answer.stderr, answer.stderr
    assert not (folder / "no-cache/dptrain").exists(), "an environment was made, and the packages are there"
    return answer


def has(text: str, *wanted: str) -> None:
    for line in wanted:
        assert line in text, f"'{line}' is missing in:\n{text}"


def known_numbers(folder: pathlib.Path) -> None:
    """The tables of study.py, where they are computed by hand, character by character."""
    logs = study.make(folder)
    output = report(folder, *(log.name for log in logs)).stdout
    expected = (HERE / "expected.txt").read_text(encoding="utf-8")
    if output != expected:
        for line, wanted in zip(output.splitlines() + [""], expected.splitlines() + [""]):
            assert line == wanted, f"this line:\n{line}\nshould be:\n{wanted}"
        raise AssertionError("there are more lines, or fewer")


def csv_and_markdown(folder: pathlib.Path) -> None:
    logs = study.make(folder)
    output = report(folder, *(log.name for log in logs), "--markdown", "--csv", "tables").stdout
    has(output, "### Scaling\n", "| four_none | 4 | 100 | 400 | 16.0 | 32.0 | 2.00 | 50.0 | 40.0 | 2.50 | 62.5 |")
    for line in output.splitlines():
        assert not line.startswith("|") or line.endswith("|"), line
    with open(folder / "tables/bandwidth.csv", encoding="utf-8", newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    # Numbers in full: 15 MB * 8 / 14 s.
    assert abs(float(rows["four_q8"]["wire_rate"]) - 120 / 14) < 1e-9, rows
    assert {path.name
            for path in (folder / "tables").iterdir()} >= {"runs.csv", "epochs.csv", "ranks.csv", "buckets.csv"}


def without_baseline(folder: pathlib.Path) -> None:
    """No speedup from a run that is something else, and the reason."""
    study.make(folder)
    write_log(folder / "eight.h5", ranks=1, epochs=[EPOCH] * 3, codec_names=[], cores_per_rank=8.0)
    has(
        report(folder, "eight.h5", "four_none.h5").stdout,
        "No strong or weak scaling, because without exchange there is cores_per_rank 8.0, not 1.0: four_none.")
    has(
        report(folder, "one_400.h5", "four_none.h5").stdout,
        "No weak scaling, because no run without exchange that is like them has their batch per rank: four_none.")
    # Where both are there, the table of batch sizes has the run that can be compared.
    output = report(folder, "eight.h5", "one.h5", "four_none.h5").stdout
    has(output, "\n    100       40.0       100        16.0     2.50\n")
    output = report(folder, "four_none.h5", "four_q8.h5").stdout
    has(output, "No strong or weak scaling, because there is no run on one rank or with --exchange off: four_none, four_q8.")
    assert "speedup" not in output and "T_N - T_1/N  " not in output, output


def without_exchange(folder: pathlib.Path) -> None:
    """Four ranks that exchange nothing: 9 s for a quarter of the images each, so T_1 is 36 s on their share of cores. With
    an exchange 10 s: the classical estimate of communication is 10 - 36 / 4 = 1 s. Strong scaling asks for one rank that
    computes batches of 400: with such ones 8 s, so 32."""
    share = {"cores_per_rank": 0.5}
    write_log(folder / "one.h5", ranks=1, epochs=[EPOCH] * 3, codec_names=[], cores_per_rank=2.0)
    write_log(folder / "alone.h5", ranks=4, epochs=[EPOCH | {"epoch_s": 9, "comm_s": 0, "sent_bytes": 0}] * 3,
              codec_names=[], config={"exchange": "off"}, **share)
    write_log(folder / "alone_400.h5", ranks=4, batch=400, codec_names=[], config={"exchange": "off"},
              epochs=[EPOCH | {"epoch_s": 8, "comm_s": 0, "sent_bytes": 0}] * 3, **share)
    write_log(folder / "four.h5", ranks=4, epochs=[EPOCH] * 3, config={"exchange": "on"}, **share)
    output = report(folder, "one.h5", "alone.h5", "alone_400.h5", "four.h5").stdout
    has(output, "no exchange")
    for table, row in (("Scaling", "four 4 100 400 10.0 32.0 3.20 80.0 36.0 3.60 90.0"),
                       ("Computation and communication", "four 4 100 10.0 8.00 4.00 2.00 36.0 9.00 1.00")):
        lines = output[output.index(f"\n{table}"):].splitlines()
        assert row in [" ".join(line.split()) for line in lines], f"'{row}' is missing in {table}:\n{output}"
    learnt = output[output.index("\nWhat was learnt") + 1:].split("\n\n")[0]
    assert "alone" not in learnt, "without an exchange there is no model that all have"


def damaged(folder: pathlib.Path) -> None:
    """What is wrong is said at the top and on stderr, and the rest is reported, on a page too."""
    logs = folder / "logs"
    logs.mkdir()
    good = write_log(logs / "good.h5", ranks=2, epochs=[EPOCH] * 2,
                     rank_rows=[{"epoch": e, "rank": r, "compute_s": 8} for e in range(2) for r in range(2)])
    whole = good.read_bytes()
    (logs / "cut.h5").write_bytes(whole[:len(whole) // 2])
    (logs / "text.h5").write_text("not a log")
    (logs / "empty.h5").write_bytes(b"")
    h5py.File(logs / "other.h5", "w").close()
    write_log(logs / "newer.h5", ranks=2, epochs=[EPOCH], format_version=2)
    write_log(logs / "nobody.h5", ranks=2, epochs=[EPOCH], world_size=None)
    write_log(logs / "begun.h5", ranks=2, epochs=[], finished=0, config={"epochs": "3"})
    write_log(logs / "killed.h5", ranks=2, epochs=[EPOCH], finished=0, config={"epochs": "3"})
    write_log(logs / "diverged.h5", ranks=2, epochs=[EPOCH, EPOCH | {"train_loss": math.nan, "skipped_steps": 3}])
    write_log(logs / "resumed.h5", ranks=2, epochs=[EPOCH] * 2,
              sessions=[{"start": 1, "world_size": 2}, {"start": 2, "world_size": 4, "first_epoch": 1}])
    for name, table in (("no_epochs", "epochs"), ("no_ranks", "ranks"), ("no_config", "config"), ("no_model", "model")):
        shutil.copy(good, logs / f"{name}.h5")
        with h5py.File(logs / f"{name}.h5", "r+") as file:
            del file[table]
    for name, table, column in (("no_time", "epochs", "epoch_s"), ("no_comm", "epochs", "comm_s"), ("no_rank", "ranks",
                                                                                                    "rank")):
        shutil.copy(good, logs / f"{name}.h5")
        with h5py.File(logs / f"{name}.h5", "r+") as file:
            rows = file[table][:]
            del file[table]
            file[table] = rows[[c for c in rows.dtype.names if c != column]]
    answer = report(folder, "logs", "missing.h5", "--all", "--html", "page.html")
    parse_page(folder / "page.html")
    problems = answer.stdout[:answer.stdout.index("\nRuns\n")]
    for text in ("missing.h5: there is no such file",
                 f"logs/cut.h5: is cut off: {len(whole) // 2:,} of {len(whole):,} bytes are there",
                 "logs/text.h5: is not an HDF5 file", "logs/empty.h5: is empty:",
                 "logs/other.h5: is not a run log: it has no attribute format_version",
                 "logs/newer.h5: has format_version 2; this dpreport reads 1",
                 "logs/nobody.h5: has no attribute world_size", "logs/begun.h5: is unfinished: 0 of 3 epochs",
                 "logs/killed.h5: is unfinished: 1 of 3 epochs",
                 "logs/diverged.h5: its training loss is not finite from epoch 2 on",
                 "logs/diverged.h5: skipped 3 steps with non-finite gradients",
                 "logs/resumed.h5: was resumed with another number of ranks (2, 4)",
                 "logs/no_epochs.h5: has no table /epochs", "logs/no_ranks.h5: has no table /ranks",
                 "logs/no_config.h5: has no group /config", "logs/no_model.h5: has no group /model",
                 "logs/no_time.h5: its table /epochs has no column epoch_s",
                 "logs/no_rank.h5: its table /ranks has no column rank"):
        has(problems, text)
        has(answer.stderr, text)
        has((folder / "page.html").read_text(encoding="utf-8"), text)
    runs = answer.stdout[answer.stdout.index("\nRuns\n"):answer.stdout.index("\nWhat the runs differ in\n")]
    for label, is_there in (("good", True), ("killed", True), ("begun", True), ("no_ranks", True), ("no_comm", True),
                            ("cut", False), ("newer", False), ("no_epochs", False), ("no_time", False)):
        assert any(line.split()[:1] == [label] for line in runs.splitlines()) == is_there, f"{label}: {runs}"


def exit_codes(folder: pathlib.Path) -> None:
    (folder / "text.h5").write_text("not a log")
    (folder / "nothing").mkdir()
    write_log(folder / "good.h5", ranks=1, epochs=[EPOCH], codec_names=[])
    has(
        report(folder, "text.h5", code=3).stderr, "dpreport: text.h5: is not an HDF5 file",
        "dpreport: no log could be read")
    has(report(folder, "nothing", code=3).stderr, "dpreport: nothing: there is no *.h5 file in this folder")
    for words, said in (([], "RUN.h5|FOLDER"), (["good.h5", "--colour"], "--colour"), (["good.h5", "--html"], "--html"),
                        (["good.h5", "--html", "no/page.html"], "--html: there is no folder no"),
                        (["good.h5", "--csv", "no/tables"], "--csv: there is no folder no")):
        answer = report(folder, *words, code=2)
        has(answer.stderr, said)
        assert answer.stderr.count("\n") == 1 and not answer.stdout, answer
    for words in (["--html", "nothing"], ["--csv", "text.h5"]):
        answer = report(folder, "good.h5", *words, code=2)
        has(answer.stderr, f"dpreport: {words[1]} cannot be written: ")
    assert not report(folder, "good.h5", "--svg", "plots").stderr
    for plot in (folder / "plots").iterdir():
        root = xml.etree.ElementTree.parse(plot).getroot()
        assert root.tag.endswith("svg") and "prefers-color-scheme" in plot.read_text(encoding="utf-8"), plot
    assert {plot.name for plot in (folder / "plots").iterdir()} >= {"loss.svg"}, list((folder / "plots").iterdir())
    has(report(folder, "--help").stdout, "Exit codes: 0")
    report(folder, "good.h5", "text.h5")


def damaged_metadata(folder: pathlib.Path) -> None:
    """Damage that ends the HDF5 library, or an exception of any kind, costs that log alone."""
    study.make(folder)
    whole = (folder / "four_q8.h5").read_bytes()
    generator = random.Random(1)
    for number in range(60):
        data = bytearray(whole)
        for _ in range(5):
            place = generator.choice([i for i in range(0, 4096) if data[i]])
            data[place] = generator.randrange(256)
        damaged_log = folder / f"damaged-{number}.h5"
        damaged_log.write_bytes(data)
        os.utime(damaged_log, (1e9, 1e9))  # nobody is writing it: it is tried once
    has(report(folder, ".", "--all", "--html", "page.html").stdout, "four_none")
    parse_page(folder / "page.html")


def parse_page(path: pathlib.Path) -> xml.etree.ElementTree.Element:
    """The page is well-formed, and needs nothing but itself."""
    text = path.read_text(encoding="utf-8")
    root = xml.etree.ElementTree.fromstring(text)
    places = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(places) == len(set(places)), "an id is there twice"
    for element in root.iter():
        name = element.tag.split("}")[1]
        assert name not in ("script", "link", "img", "iframe", "object", "image", "foreignObject"), name
        for key, value in element.attrib.items():
            assert not key.startswith("on") and key.split("}")[-1] != "src", f"{key} of {name}"
            if key.split("}")[-1] == "href":
                assert value.startswith("#") and value[1:] in places, f"{name} refers to {value}"
            for target in re.findall(r"url\(([^)]*)\)", value):
                assert target.startswith("#") and target[1:] in places, f"{name} refers to {target}"
    style = root.find(".//{*}style")
    assert style is not None and "url(" not in style.text and "@import" not in style.text, "the style sheet loads"
    names = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert names <= {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg",
                     "http://www.w3.org/1999/xlink"}, names
    return root


def page(folder: pathlib.Path) -> None:
    logs = study.make(folder)
    one = write_log(folder / "a<b>&'c' $x$.h5", ranks=3, epochs=[EPOCH] * 2, config={"compress": "q8"},
                    link_bytes_per_s=5e6)
    report(folder, *(log.name for log in logs), one.name, "--html", "page.html")
    root = parse_page(folder / "page.html")
    labels = {svg.get("aria-label") for svg in root.iter("{http://www.w3.org/2000/svg}svg")}
    for wanted in ("Time of a typical epoch for each run", "speedup over ranks with the ideal line",
                   "Efficiency over ranks", "Share of the link's rate", "Time of a typical epoch over the link's rate",
                   "Training loss", "Test accuracy over epochs", "Test accuracy over training time",
                   "Test accuracy over bytes sent", "Pareto", "each rank", "Error of the delivered",
                   "Norm of the residual"):
        assert any(wanted in str(label) for label in labels), f"no plot '{wanted}' among {labels}"
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a<b>&'c' $x$" in words and "16.0 s" in words and "ideal" in words, words
    titles = [title.text for title in root.iter("{http://www.w3.org/1999/xhtml}h2")]
    assert titles[0] == "Runs" and "Scaling" in titles and "Bandwidth" in titles, titles
    cells = [cell.text for cell in root.iter("{http://www.w3.org/1999/xhtml}td")]
    assert cells.count("62.5") == 1, "the efficiency of weak scaling"
    # Colours are the page's, for light and dark alike.
    assert not re.search(r'style="[^"]*#[0-9a-f]{6}',
                         (folder / "page.html").read_text(encoding="utf-8")), "a colour of its own"


def one_log(folder: pathlib.Path) -> None:
    """A run on one rank has nothing to be compared with."""
    write_log(folder / "alone.h5", ranks=1, epochs=[EPOCH | {"exposed_comm_s": 0, "comm_s": 0}], codec_names=[])
    output = report(folder, "alone.h5", "--html", "page.html").stdout
    parse_page(folder / "page.html")
    for title in ("Scaling", "Bandwidth", "What the runs differ in", "Ranks,", "Buckets,", "Problems"):
        assert f"\n{title}" not in output, f"{title} in:\n{output}"
    has(output, "alone  resnet20  synthetic   4,000      1    100")


def names(folder: pathlib.Path) -> None:
    """Folders below folders, files named twice, names that are alike."""
    for name in ("a/x.h5", "b/x.h5", "b/n10.h5", "b/n2.part.h5", "b/1gbit.h5", "b/50mbit.h5", "b/100mbit.h5"):
        (folder / name).parent.mkdir(exist_ok=True)
        write_log(folder / name, ranks=1, epochs=[EPOCH], codec_names=[])
    (folder / "b/notes.txt").write_text("no log")
    output = report(folder, ".", "b/x.h5", "./b").stdout
    found = [line.split()[0] for line in output[:output.index("Batch:")].splitlines() if line.strip()]
    assert found[-7:] == ["a/x", "50mbit", "100mbit", "1gbit", "n2", "n10", "b/x"], found


def many(folder: pathlib.Path) -> None:
    log = study.make(folder)[3]
    (folder / "all").mkdir()
    for number in range(200):
        shutil.copy(log, folder / f"all/{number}.h5")
    begin = time.monotonic()
    output = report(folder, "all").stdout
    print(f"200 logs in {time.monotonic() - begin:.1f} s")
    for number in (0, 99, 199):
        has(output, f"\n  {number:<3}  ")


def being_written(folder: pathlib.Path) -> None:
    """Rows appear while the log is read again and again; every report is whole."""
    log = write_log(folder / "run.h5", ranks=2, epochs=[EPOCH], finished=0, config={"epochs": "3000"})
    writer = subprocess.Popen([sys.executable, "-c", WRITE, str(log)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        rows = []
        for _ in range(4):
            answer = report(folder, "run.h5", "--csv", "tables")
            has(answer.stderr, "run.h5: is unfinished: ")
            with open(folder / "tables/epochs.csv", encoding="utf-8", newline="") as file:
                rows.append(len(list(csv.DictReader(file))))
        assert rows == sorted(rows) and rows[0] >= 1 and rows[-1] > rows[0], rows
    finally:
        writer.kill()
        writer.wait()
    report(folder, "run.h5")


WRITE = """import sys, time, h5py
with h5py.File(sys.argv[1], "r+", locking=False) as file:
    epochs = file["epochs"]
    print("writing", flush=True)
    for number in range(1, 3000):
        row = epochs[0]
        row["epoch"] = number
        epochs.resize((number + 1,))
        epochs[number] = row
        file.flush()
        time.sleep(0.02)
"""


def environment(folder: pathlib.Path) -> None:
    """Without the packages and without a network: one sentence that names Debian's. Its own environment is used."""
    study.make(folder)
    (folder / "bin").mkdir()
    bare = folder / "bin/python3"  # a Python without packages
    bare.write_text('#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n')
    bare.chmod(0o755)
    cache = folder / "cache"
    variables = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(cache),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_CACHE_DIR": "1"
    }
    command = [sys.executable, "-S", DPREPORT, "four_q8.h5"]

    def start() -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False,
                              env=variables)

    answer = start()
    said = answer.stderr.splitlines()
    assert answer.returncode == 1 and len(said) == 2 and "Traceback" not in answer.stderr, answer
    has(said[0], "installing them into", str(cache))
    has(said[1], "apt-get install python3-h5py python3-pandas python3-matplotlib")
    assert not any((cache / "dptrain").iterdir()), "something unfinished is left"

    own = said[0].split("installing them into ")[1].removesuffix(", once")
    (pathlib.Path(own) / "bin").mkdir(parents=True)
    (pathlib.Path(own) / "bin/python").write_text('#!/bin/sh\necho used >&2\nexec /usr/bin/python3 "$@"\n')
    (pathlib.Path(own) / "bin/python").chmod(0o755)
    answer = start()
    assert answer.returncode == 0 and answer.stderr == "used\n" and "four_q8" in answer.stdout, answer

    bare.write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')  # the PATH's python3 has them: nothing else is asked
    answer = start()
    assert answer.returncode == 0 and answer.stderr == "" and "four_q8" in answer.stdout, answer


def real_run(folder: pathlib.Path) -> None:
    """A run of the program: its log has the columns of run_log_fixture.py; read while it goes on and after kill -9."""
    dptrain, mpiexec = sys.argv[3:5]
    with open(folder / "output.txt", "w", encoding="utf-8") as output:
        run = subprocess.Popen([
            mpiexec, "-np", "2", "--oversubscribe", dptrain, "--model", "resnet20", "--limit-train", "64",
            "--limit-test", "32", "--batch-size", "16", "--epochs", "2000", "--autotune", "off", "--compress", "q8",
            "--log-steps", "1", "--throttle", "1gbit", "--log", "run.h5"
        ], cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        end = time.monotonic() + 90
        answer = None
        while answer is None or "Epochs, s" not in answer.stdout:
            assert run.poll() is None and time.monotonic() < end, (folder / "output.txt").read_text(encoding="utf-8")
            time.sleep(0.5)
            if (folder / "run.h5").exists() and (folder / "run.h5").stat().st_size > 0:
                answer = report(folder, "run.h5", "--html", "page.html")
        has(answer.stderr, "run.h5: is unfinished: ")
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    answer = report(folder, "run.h5", "--html", "page.html")
    parse_page(folder / "page.html")
    assert answer.stderr.count("\n") == 1, answer.stderr
    has(answer.stderr, "is unfinished: ", " of 2000 epochs are there")
    has(answer.stdout, "resnet20", "q8", "ring", "1 Gbit/s", "Scaling", "busbw, Mbit/s  median", "Link rate x codec")
    with h5py.File(folder / "run.h5", "r", locking=False) as file:
        for table, columns in COLUMNS.items():
            found = [name for name in file[table].dtype.names if table != "steps" or name in columns]
            assert found == columns, f"/{table} has {found}"
        lacking = {"cores_per_rank", "threads_per_rank", "link_bytes_per_s", "link_latency_s", "hosts", "devices"
                   } - set(file.attrs)
        assert not lacking, lacking


CASES: dict[str, Callable[[pathlib.Path], None]] = {
    function.__name__: function
    for function in (known_numbers, csv_and_markdown, without_baseline, without_exchange, damaged, damaged_metadata, exit_codes, page,
                     one_log, names, many, being_written, environment, real_run)
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        CASES[CASE](pathlib.Path(folder))


if __name__ == "__main__":
    main()
