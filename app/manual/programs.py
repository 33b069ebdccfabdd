"""What a program's own --help says, taken apart: the C++ programs' text, and the parsers of those in Python.

Both come from the tables that read the options, so that pages and completions cannot say anything else.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
from unittest import mock

# Modules of the tools that need not be on the machine that builds.
_MODULES = ("h5py", "numpy", "pandas", "torch", "matplotlib", "matplotlib.pyplot")
_TEXT_COLUMN = 26  # app/options/options_print.cpp


class NotUnderstood(Exception):
    """The help of a program has another form than expected."""


@dataclasses.dataclass
class Option:
    names: list[str]  # "--model"
    placeholder: str  # empty: it has no value
    text: str
    values: list[str] = dataclasses.field(default_factory=list)  # all or the usual ones; empty: not known
    keys: list[list[str]] = dataclasses.field(default_factory=list)  # of NAME:key=value,...: "key=X" and its text

    def kind(self) -> str:
        """What completes its value: flag, values, file, folder or nothing."""
        if not self.placeholder:
            return "flag"
        if self.values:
            return "values"
        first = re.split(r"[^A-Z]", self.placeholder)[0]
        return {"FILE": "file", "PATH": "file", "PROGRAM": "file", "DIR": "folder", "FOLDER": "folder"}.get(first, "nothing")


@dataclasses.dataclass
class Program:
    name: str  # of a command: "dpbench codec"
    head: str  # what stands before the options
    groups: list[tuple[str, list[Option]]] = dataclasses.field(default_factory=list)
    lists: list[tuple[str, list[tuple[str, str]]]] = dataclasses.field(default_factory=list)
    words: str = ""  # placeholder of what is no option; empty: nothing
    one_of: list[str] = dataclasses.field(default_factory=list)  # in place of `words`: all that may stand there
    commands: dict[str, "Program"] = dataclasses.field(default_factory=dict)

    def options(self) -> list[Option]:
        return [option for _, options in self.groups for option in options]


def _known_values(option: Option, lists: list[tuple[str, list[tuple[str, str]]]]) -> list[str]:
    parts = option.placeholder.removesuffix("[:key=value,...]").split("|")
    words = [part for part in parts if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", part)]
    if len(parts) > 1 and words:
        return words
    for title, entries in lists:
        if option.placeholder in ("NAME", "SPEC") and re.search(rf"for {option.names[0]}$", title):
            return [re.split(r"[\[:]", name)[0] for name, _ in entries]
    said = re.search(r": ([\w.-]+(?:, [\w.-]+)+)(?: \[|$)", option.text)
    return said.group(1).split(", ") if said and option.placeholder == "NAME" else []


def parse_help(name: str, text: str) -> Program:
    """The form is that of app/options/options_print.cpp: titles at column 0 with indented entries right below."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines[:-1])
              if line and line[0] != " " and re.match(r"  \S", lines[i + 1]) and (i == 0 or not lines[i - 1])]
    if not starts:
        raise NotUnderstood(f"{name} --help has no list of options")
    program = Program(name, "\n".join(lines[:starts[0]]).strip())
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        entries: list[list[str]] = []  # head and text
        keys: dict[int, list[list[str]]] = {}  # by the entry above them
        for line in filter(None, lines[start + 1:end]):
            if re.match(r"  \S", line):
                # A head that leaves no room has its text on the next lines.
                is_long = len(line) <= _TEXT_COLUMN or line[_TEXT_COLUMN - 2:_TEXT_COLUMN] != "  "
                head, rest = (line, "") if is_long else (line[:_TEXT_COLUMN], line[_TEXT_COLUMN:])
                if is_long and not line.startswith("  --"):  # the name of an entry runs into its text
                    head, _, rest = line.strip().partition(" ")
                entries.append([head.strip(), rest])
            elif entries and (key := re.match(r"    (\S+=\S+)(?: {2,}|$)(.*)", line)):
                keys.setdefault(len(entries) - 1, []).append([key[1], key[2]])
            elif line.startswith(" " * _TEXT_COLUMN) and entries:
                last = keys[len(entries) - 1][-1] if len(entries) - 1 in keys else entries[-1]
                last[1] = f"{last[1]} {line.strip()}".strip()
            else:
                raise NotUnderstood(f"{name} --help: {line!r}")
        if entries[0][0].startswith("--"):
            options = [Option([head.split(" ")[0]], head.partition(" ")[2], said, keys=keys.get(place, []))
                       for place, (head, said) in enumerate(entries)]
            program.groups.append((lines[start], options))
        else:
            program.lists.append((lines[start], [(head, said) for head, said in entries]))
    for option in program.options():
        option.values = _known_values(option, program.lists)
    return program


def ask(path: str, name: str) -> Program:
    """A C++ program, with its commands. The environment's DP_EMULATOR runs it, if it is for another processor."""
    def help_of(*words: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.endswith("_RANK")}
        command = [*shlex.split(environment.get("DP_EMULATOR", "")), path, *(words if "--help" in words else [*words, "--help"])]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    text = help_of()
    if f"{name} --help all" in text:  # the usual ones alone
        text = help_of("--help", "all")
    program = parse_help(name, text)
    for title, entries in list(program.lists):
        if f"; {name} " not in title:
            continue
        for command, text in entries:
            program.commands[command] = parse_help(f"{name} {command}", help_of(command))
            program.commands[command].head = text + "."
            program.commands[command].words = (re.search(r"\[([A-Z]+)\.\.\.\]", help_of(command)) or [""] * 2)[1]
        program.lists.remove((title, entries))
    return program


class _Captured(Exception):
    pass


def _from_parser(name: str, parser: argparse.ArgumentParser) -> Program:
    program = Program(name, parser.description or "")
    options, words = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help for choice in action._choices_actions}
            for command, inner in action.choices.items():
                program.commands[command] = _from_parser(f"{name} {command}", inner)
                program.commands[command].head = f"{texts[command][0].upper()}{texts[command][1:].rstrip('.')}."
            continue
        text = "print this help, then end" if isinstance(action, argparse._HelpAction) else action.help or ""
        text = parser._get_formatter()._expand_help(argparse.Action([], action.dest, help=text)) if "%" in text else text
        choices = list(map(str, action.choices)) if action.choices else []
        placeholder = ""
        if action.nargs != 0:
            placeholder = action.metavar or ("|".join(choices) if choices else action.dest.upper())
            if isinstance(placeholder, tuple):  # a name for each of several values
                placeholder = " ".join(placeholder)
        if action.option_strings:
            options.append(Option(list(action.option_strings), placeholder, text, choices))
        else:
            words.append(Option([placeholder], "", text))
    if words:
        program.words = words[0].names[0]
        if any(word.text for word in words):
            program.lists.append(("Arguments", [(word.names[0], word.text) for word in words]))
    program.groups.append(("Options", options))
    return program


def read_script(path: pathlib.Path, name: str) -> Program:
    """A program in Python: its parser, as it is when it begins to read the command line."""
    found: list[argparse.ArgumentParser] = []

    def capture(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        found.append(parser)
        raise _Captured

    sys.dont_write_bytecode = True
    before = list(sys.path)
    # The modules of one tool, such as lab, must not be taken for those of another one.
    with mock.patch.dict(sys.modules, {module: mock.MagicMock() for module in _MODULES}), \
            mock.patch.dict(os.environ, {"DPREPORT_PYTHON_IS_CHOSEN": "1"}), \
            mock.patch.object(argparse.ArgumentParser, "parse_args", capture), \
            mock.patch.object(argparse.ArgumentParser, "parse_known_args", capture), \
            mock.patch.object(sys, "argv", [str(path)]), contextlib.redirect_stderr(io.StringIO()):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except _Captured:
            pass
        finally:
            sys.path[:] = before
    if not found:
        raise NotUnderstood(f"{path} reads no command line")
    return _from_parser(name, found[0])


def read_shell_script(path: str, name: str) -> Program:
    """A script that knows no option but --help: its first word is one of those after "Usage:", its text the description."""
    said = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    usage, _, head = said.partition("\n\n")
    found = re.fullmatch(r"Usage: \S+ ([a-z0-9|]+)( \[[A-Z]+\])?", usage)
    if not found:
        raise NotUnderstood(f"{path} --help: {usage!r}")
    return Program(name, head, [("Options", [Option(["--help"], "", "print this help, then end")])], one_of=found[1].split("|"))
