#!/usr/bin/env python3
"""Does what a tutorial of experiments/tutorials says:  tutorial_test.py SOURCES BUILD CASE [--show]

A block ```sh of the page is executed, and each line of the block ```text behind it must be in what the commands print.
In these lines numbers (with their units) and hashes may differ, ... stands for anything, and so do the words that a
comment before the block lists:  <!-- may differ: ring, q4 -->

Cases: the pages' names, and wrong_option, which changes a page so that it must fail. --show prints the real output.
Exit code 77: hosts cannot be made here, or a package is missing.
"""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

SOURCES, BUILD = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
CASE, SHOW = sys.argv[3], "--show" in sys.argv
DPLAB = SOURCES / "experiments" / "dplab"
LAB = f"tutorial-{os.getpid()}"
LIMIT_S = 540 * (5 if os.environ.get("DP_SANITIZE") else 1)

UNIT = r"(?: (?:us|ms|s|min|%|[kMGT]?B|[kMG]?bit/s)(?![\w/]))?"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w|\.\w)" + UNIT)
VERSION = re.compile(r"\bv?\d+(?:\.\d+){2,}\b")  # an address, too
HASH = re.compile(r"\b[0-9a-f]{12,16}\b")


@dataclass
class Block:
    line: int
    commands: str
    expected: list[str] = field(default_factory=list)
    may_differ: list[str] = field(default_factory=list)


def blocks_of(page: str) -> list[Block]:
    blocks: list[Block] = []
    words: list[str] = []
    for match in re.finditer(r"^<!-- may differ: (.*?) -->$|^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        differing, language, text = match.groups()
        if differing:
            words = differing.split(", ")
        elif language == "sh":
            blocks.append(Block(page.count("\n", 0, match.start()) + 1, text))
        elif language == "text":
            assert blocks and not blocks[-1].expected, "a block ```text without commands"
            blocks[-1].expected, blocks[-1].may_differ = text.splitlines(), words
            words = []
    return blocks


def pattern_of(line: str, may_differ: list[str]) -> re.Pattern[str]:
    """What a line of the page may look like."""
    line = " ".join(line.split())
    line = re.sub(r"-{2,}(?: -{2,})*", "\0d", line) if re.fullmatch("[- ]+", line) else line
    line = VERSION.sub("\0v", HASH.sub("\0h", line))
    line = NUMBER.sub("\0n", line)
    for word in may_differ:
        line = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", "\0w", line)
    text = re.escape(line.replace("...", "\0a")).replace("\\\0", "\0").replace("\\ ", r"\s+")
    for mark, meaning in (("d", r"[- ]+"), ("h", r"[0-9a-f]{12,16}"), ("v", r"v?\d[\d.]*"), ("n", r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?" + UNIT),
                          ("w", r"\S+(?:\s\([^)]*\))?"), ("a", ".*")):
        text = text.replace("\0" + mark, meaning)
    return re.compile(text)


def missing_lines(block: Block, printed: str) -> list[str]:
    """The lines of the page that are not printed; each printed line counts for one of them."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    missing = []
    for wanted in (line for line in block.expected if line.strip(" .")):
        pattern = pattern_of(wanted, block.may_differ)
        found = next((k for k, line in enumerate(lines) if pattern.fullmatch(line)), None)
        if found is None:
            missing.append(wanted)
        else:
            del lines[found]
    return missing


def check_itself() -> None:
    page = "# T\n\n```sh\na\n```\n\n<!-- may differ: q4 -->\n\n```text\nnode1   12.3 Mbit/s  q8 v1.2.3\n...\n----  --\nof q4: ...\n```\n\n    b\n"
    block, = blocks_of(page)
    assert block.line == 3 and block.commands == "a\n" and block.may_differ == ["q4"], block
    good = "x\nnode1 9 kbit/s  q8 v4.0.10\n--  ----\nof none: 3"
    assert not missing_lines(block, good), missing_lines(block, good)
    for bad in (good.replace("node1", "node2"), good.replace("q8", "q6"), good.replace("9 kbit/s", "fast"), good.replace(" v4", " 9 v4"), good.replace("of", "by"), ""):
        assert missing_lines(block, bad), bad
    assert missing_lines(Block(1, "", ["a 1", "a 2"]), "a 3\nb 4") == ["a 2"]


def script_of(blocks: list[Block]) -> str:
    """All blocks in one shell, with a line behind each one that has succeeded. dplab's commands get our lab."""
    parts = ["set -eo pipefail", "exec 2>&1"]
    for k, block in enumerate(blocks):
        commands = re.sub(r"\bdplab (up|down|run|exec|status|rate|cut|mend|speed)\b",
                          lambda match: f"dplab {match[1]} --lab {LAB}" + (f" --while {os.getpid()}" if match[1] == "up" else ""),
                          block.commands)
        parts.append(f"{commands}\nprintf '\\n@@@ {k}\\n'")
    return "\n".join(parts)


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


def problems_of(page: str, needs_two_machines: bool) -> list[str]:
    """Carries out a page in a new folder. One line for each thing that is not as the page says."""
    blocks = blocks_of(page)
    assert blocks, "the page has no commands"
    environment = os.environ | {"PATH": f"{BUILD}/bin:{SOURCES}/experiments:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "commands")
        script.write_text(script_of(blocks), encoding="utf-8")
        (place := pathlib.Path(folder, "empty")).mkdir()
        command = ["bash", str(script)]
        if needs_two_machines:
            up = subprocess.run([str(DPLAB), "up", "--lab", LAB, "--nodes", "2", "--rate", "4mbit", "--while", str(os.getpid())],
                                capture_output=True, text=True, timeout=60, check=False)
            if up.returncode == 77 or "apt-get install" in up.stderr:
                skip(up.stderr.strip())
            assert up.returncode == 0, up.stderr
            # As with ssh, the other machine has nothing of this shell's environment.
            agent = pathlib.Path(folder, "agent")
            agent.write_text(f'#!/bin/sh\nexec env -i HOME="{folder}" PATH=/usr/bin:/bin:/usr/sbin:/sbin "{SOURCES}/experiments/lab/dplab-agent" "$@"\n',
                             encoding="utf-8")
            agent.chmod(0o755)
            command = [str(DPLAB), "exec", "--lab", LAB, "1", "--", "env", f"OMPI_MCA_plm_rsh_agent={agent}", *command]
        output = pathlib.Path(folder, "output")
        try:
            with output.open("wb") as file:
                code = subprocess.run(command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                                      stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False).returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            subprocess.run([str(DPLAB), "down", "--lab", LAB], capture_output=True, timeout=60, check=False)
        printed = re.split(r"\n@@@ \d+\n", output.read_text(encoding="utf-8").replace(LAB, "lab"))
    found = []
    for k, block in enumerate(blocks):
        if SHOW:
            print(f"$ {block.commands}{printed[k] if k < len(printed) else ''}", flush=True)
        if k + 1 >= len(printed):
            how = f"fail, exit code {code}" if code is not None else f"have not ended after {LIMIT_S} s"
            found.append(f"line {block.line}: the commands {how}:\n{block.commands}{printed[-1]}")
            break
        missing = missing_lines(block, printed[k])
        found += [f"line {block.line}: not printed: {line}" for line in missing]
        if missing:
            found.append(f"but:\n{printed[k]}")
    return found


def read(name: str) -> str:
    return (SOURCES / "experiments" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")


def wrong_option() -> None:
    """A codec that does not exist, another codec than the page shows, and programs that the other machine does not find."""
    page = read("first_training")
    page = page[:page.index("## 4.")]  # up to --check, which takes seconds
    for right, wrong, reason in (("--check --compress q8\n```", "--check --compress q7\n```", "the commands fail"),
                                 ("--check --compress q8\n```", "--check --compress q4\n```", "not printed"),
                                 (" -x PATH", "", "the commands fail")):
        assert right in page, right
        found = problems_of(page.replace(right, wrong, 1), True)
        assert found and reason in found[0], (wrong, found)


def main() -> None:
    check_itself()
    if subprocess.run(["/usr/bin/python3", "-c", "import h5py, pandas, matplotlib"], capture_output=True, check=False).returncode:
        skip("dpreport needs h5py, pandas and matplotlib (experiments/setup.sh --tests)")
    if CASE == "wrong_option":
        wrong_option()
        return
    found = problems_of(read(CASE), CASE == "first_training")
    print("\n".join(found))
    sys.exit(1 if found else 0)


main()
