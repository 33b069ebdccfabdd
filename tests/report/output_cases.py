"""Pages and files, exit codes, the Python that is used."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import study
from report_support import DPREPORT, EPOCH, has, parse_page, quick, report
from run_log_fixture import write_log


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
    for words, said in ((["--html", "nothing"], "--html: nothing cannot be written: it is a folder"),
                        (["--csv", "text.h5"], "--csv: text.h5 is there and is not a folder")):
        answer = report(folder, "good.h5", *words, code=2)
        has(answer.stderr, f"dpreport: {said}")
        assert answer.stderr.count("\n") == 1 and not answer.stdout, answer
    assert not report(folder, "good.h5", "--svg", "plots").stderr
    for plot in (folder / "plots").iterdir():
        root = xml.etree.ElementTree.parse(plot).getroot()
        assert root.tag.endswith("svg") and "prefers-color-scheme" in plot.read_text(encoding="utf-8"), plot
    assert {plot.name for plot in (folder / "plots").iterdir()} >= {"loss.svg"}, list((folder / "plots").iterdir())
    has(report(folder, "--help").stdout, "Exit codes: 0")
    report(folder, "good.h5", "text.h5")


def page(folder: pathlib.Path) -> None:
    logs = study.make(folder)
    one = write_log(folder / "a<b>&'c' $x$.h5", ranks=3, epochs=[EPOCH | {"samples": 4000}] * 3, config={"compress": "q8"},
                    link_bytes_per_s=5e6)
    report(folder, *(log.name for log in logs), one.name, "--html", "page.html")
    root = parse_page(folder / "page.html")
    labels = {svg.get("aria-label") for svg in root.iter("{http://www.w3.org/2000/svg}svg")}
    for wanted in ("Time of a typical epoch for each run", "speedup over ranks with the ideal line",
                   "Efficiency over ranks", "Share of the link's rate", "Time of a typical epoch over the link's rate",
                   "Training loss", "Test loss", "Learning rate", "Test accuracy over epochs", "Test accuracy over training time",
                   "Test accuracy over bytes sent", "Pareto", "each rank", "Error of the delivered",
                   "Norm of the residual"):
        assert any(wanted in str(label) for label in labels), f"no plot '{wanted}' among {labels}"
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a<b>&'c' $x$" in words and "16.0 s" in words, words
    titles = [title.text for title in root.iter("{http://www.w3.org/1999/xhtml}h2")]
    assert titles[0] == "Runs" and "Scaling" in titles and "Bandwidth" in titles, titles
    cells = [cell.text for cell in root.iter("{http://www.w3.org/1999/xhtml}td")]
    assert cells.count("62.5") == 1, "the efficiency of weak scaling"
    # Colours are the page's, for light and dark alike.
    assert not re.search(r'style="[^"]*#[0-9a-f]{6}',
                         (folder / "page.html").read_text(encoding="utf-8")), "a colour of its own"


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


def nothing_overwritten(folder: pathlib.Path) -> None:
    """Logs and files of others stay as they are, whichever option names them; what dpreport wrote is written again."""
    write_log(folder / "a.h5", ranks=1, epochs=[EPOCH], codec_names=[])
    write_log(folder / "b.h5", ranks=1, epochs=[EPOCH], codec_names=[])
    (folder / "mine.html").write_text("<!DOCTYPE html>\n<title>my page</title>\n")
    for name in ("tables", "plots"):
        (folder / name).mkdir()
    (folder / "tables/runs.csv").write_text("run,ranks\r\nmine,1\r\n")
    (folder / "plots/loss.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>\n')
    (folder / "link.html").symlink_to("a.h5")

    def contents() -> dict[pathlib.Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "no-cache" not in path.parts}

    before = contents()
    assert "a.h5 exists already" in report(folder, "--html", "a.h5", "b.h5", code=2).stderr and contents() == before
    for words, name in ((["--html", "a.h5", "b.h5"], "a.h5"), (["a.h5", "--html", "new.h5"], "new.h5"),
                        (["a.h5", "--html", "mine.html"], "mine.html"), (["a.h5", "--html", "link.html"], "link.html"),
                        (["--csv", "a.h5", "b.h5"], "a.h5"), (["--svg", "a.h5", "b.h5"], "a.h5"),
                        (["a.h5", "--csv", "tables"], "tables/runs.csv"),
                        (["a.h5", "--svg", "plots"], "plots/loss.svg"),
                        (["--markdown", "--html", "a.h5", "b.h5"], "a.h5"),
                        (["a.h5", "--html", "page.html", "--csv", "tables"], "tables/runs.csv")):
        answer = quick(folder, *words, code=2)
        has(answer.stderr, f": {name} ")
        assert answer.stderr.count("\n") == 1 and not answer.stdout, answer
        assert contents() == before, f"{words} changed a file"

    own = ["a.h5", "--html", "page.html", "--csv", "own", "--svg", "own"]
    quick(folder, *own)
    first = contents()
    assert (folder / "own/runs.csv") in first and (folder / "own/loss.svg") in first and (folder / "page.html") in first
    quick(folder, "b.h5", *own[1:])
    assert contents() != first and b"b," in (folder / "own/runs.csv").read_bytes()
    (folder / "own/runs.csv").write_bytes((folder / "own/runs.csv").read_bytes() + b"a row of mine\r\n")
    before = contents()
    has(quick(folder, *own, code=2).stderr, "own/runs.csv was not written by dpreport, or was changed since")
    assert contents() == before, "a table that was changed is overwritten, or something else is"
    assert not [path for path in before if path.name.startswith(".")], "something unfinished is left"


def odd_files(folder: pathlib.Path) -> None:
    """Pipes, devices, empty names, names that are too long, a full disk: one sentence each."""
    write_log(folder / "good.h5", ranks=1, epochs=[EPOCH], codec_names=[])
    os.mkfifo(folder / "pipe")
    for name, code, said in (("pipe", 3, "pipe: is not a regular file"), ("/dev/null", 3, "/dev/null: is not a regular file"),
                             ("", 2, "an empty word is no name"), ("x" * 300, 3, "x: cannot be read: File name too long")):
        answer = (report if name == "pipe" else quick)(folder, name, code=code)
        has(answer.stderr, said)
        assert not answer.stdout and answer.stderr.count("\n") == (1 if code == 2 else 2), answer
    has(quick(folder, "good.h5", "pipe").stdout, "pipe: is not a regular file", "\n  good  ")
    for option in ("--html", "--csv", "--svg"):
        has(quick(folder, "good.h5", option, "", code=2).stderr, option, "an empty word")
    has(quick(folder, "good.h5", "--html", "pipe", code=2).stderr, "pipe is there and is not a regular file")
    has(quick(folder, "good.h5", "--html", "x" * 300, code=2).stderr, "cannot be written: File name too long")
    for words in (["good.h5"], ["--help"]):
        with open("/dev/full", "w", encoding="utf-8") as full:
            answer = subprocess.run([DPREPORT, *words], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True,
                                    timeout=200, check=False)
        assert answer.returncode == 2, answer
        assert answer.stderr == "dpreport: standard output cannot be written: No space left on device\n", answer
    answer = subprocess.run(["bash", "-c", f"ulimit -f 8; '{DPREPORT}' good.h5 --html page.html"], cwd=folder,
                            capture_output=True, text=True, timeout=200, check=False)
    assert answer.returncode == 2, answer
    assert answer.stderr == "dpreport: --html: page.html cannot be written: File too large\n", answer
    assert not (folder / "page.html").exists() and not list(folder.glob(".unfinished*")), "something unfinished is left"
    answer = subprocess.run(["sh", "-c", f"'{DPREPORT}' good.h5 >&-"], cwd=folder, capture_output=True, text=True,
                            timeout=200, check=False)
    assert "Traceback" not in answer.stderr and "Exception" not in answer.stderr, answer


def page_layout(folder: pathlib.Path) -> None:
    """Every plot is there for broad and for narrow screens, and the style sheet shows one of them. A section that has
    nothing but reasons is folded."""
    logs = study.make(folder)
    report(folder, *(log.name for log in logs[2:]), "--html", "page.html")
    root = parse_page(folder / "page.html")
    kinds = [svg.get("class") for svg in root.iter("{http://www.w3.org/2000/svg}svg")]
    assert len(kinds) > 10 and kinds == ["broad", "narrow"] * (len(kinds) // 2), kinds
    style = root.find(".//{*}style")
    assert style is not None and style.text is not None
    has(" ".join(style.text.split()), "svg.narrow { display: none;", "svg.broad { display: none; }")
    body = list(root.find("{*}body") or [])
    after = {title.text: body[i + 1] for i, title in enumerate(body) if title.tag.endswith("h2")}
    assert after["Scaling"].tag.endswith("details") and "open" not in after["Scaling"].attrib, after
    has("".join(after["Scaling"].itertext()), "there is no run on one rank")
    assert not [table for table in root.iter("{http://www.w3.org/1999/xhtml}table") if table.get("class") == "list"]
    assert not after["Bandwidth"].tag.endswith("details"), after
    # The table of a single run becomes a list on a narrow screen, each value with its title.
    quick(folder, logs[3].name, "--html", "one.html")
    cells = [cell for cell in parse_page(folder / "one.html").iter("{http://www.w3.org/1999/xhtml}td")
             if cell.get("data-title") == "images/s"]
    assert [cell.text for cell in cells] == ["200"], cells
