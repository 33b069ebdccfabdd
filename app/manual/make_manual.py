#!/usr/bin/env python3
"""Makes manual pages and completions:  make_manual.py OUT VERSION DATE NAME=PROGRAM... NAME=SCRIPT.py...

OUT/man has NAME.1 and NAME.1.gz, OUT/bash has NAME and OUT/zsh has _NAME. Options come from each program's --help;
NAME.txt beside this file has the rest of a page. A PATH in a source tree that has no suffix and begins with #! counts as a script, too.
"""
from __future__ import annotations

import gzip
import pathlib
import sys
from collections.abc import Callable

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from completions import bash, zsh  # noqa: E402
from page import escaped, make_page  # noqa: E402
from programs import Program, ask, read_script, read_shell_script  # noqa: E402

# What runs another program: its name comes after "--".
STARTS = {"dptrun": "dptrain"}


def program_of(name: str, path: str) -> Program:
    file = pathlib.Path(path)
    first = file.read_bytes().split(b"\n", 1)[0] if file.is_file() else b""
    if first.startswith(b"#!") and first.endswith(b"bash"):
        return read_shell_script(path, name)
    if first.startswith(b"#!"):
        program = read_script(file, name)
        for part in (program, *program.commands.values()):  # the script may have another name in the source tree
            part.head = part.head.replace(file.name, name)
        return program
    program = ask(path, name)
    if name == "dptrain-pack":
        program.words = "FILE"
    return program


def main(out: pathlib.Path, version: str, date: str, pairs: list[str]) -> None:
    for folder in ("man", "bash", "zsh"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    programs = dict(pair.split("=", 1) for pair in pairs)

    def as_installed(text: str, form: Callable[[str], str] = str) -> str:
        """The programs name scripts of the source tree by their paths there."""
        for name, path in programs.items():
            text = text.replace(form(f"experiments/{pathlib.Path(path).name}"), form(name))
        return text

    for name, path in programs.items():
        program = program_of(name, path)
        page = as_installed(make_page(program, (HERE / f"{name}.txt").read_text(), version, date), escaped)
        (out / "man" / f"{name}.1").write_text(page)
        (out / "man" / f"{name}.1.gz").write_bytes(gzip.compress(page.encode(), 9, mtime=0))
        (out / "bash" / name).write_text(as_installed(bash(program, STARTS.get(name, ""))))
        (out / "zsh" / f"_{name}").write_text(as_installed(zsh(program, STARTS.get(name, ""))))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
