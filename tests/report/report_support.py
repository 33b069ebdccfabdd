"""What the tests of dpreport share: to start it, to look at its output and its pages."""
from __future__ import annotations

import contextlib
import csv
import io
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

DPREPORT = sys.argv[1]



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


def quick(folder: pathlib.Path, *words: str, code: int = 0) -> subprocess.CompletedProcess:
    """As report(), in this process: a tenth of the time."""
    sys.path.insert(0, str(pathlib.Path(DPREPORT).parent))
    from report import command
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            try:
                found = command.main(list(words))
            except SystemExit as leave:
                found = leave.code
    finally:
        os.chdir(before)
        sys.path.pop(0)
    said = [stream.buffer.getvalue().decode() for stream in streams]  # type: ignore[attr-defined]
    assert found == code, f"exit code {found}, not {code}\n{said[0]}\n{said[1]}"
    return subprocess.CompletedProcess(words, code, *said)


def has(text: str, *wanted: str) -> None:
    for line in wanted:
        assert line in text, f"'{line}' is missing in:\n{text}"


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


def words_of(answer: subprocess.CompletedProcess) -> str:
    """Standard output without its line breaks."""
    return " ".join(answer.stdout.split())


def read_csv(path: pathlib.Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
