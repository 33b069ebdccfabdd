"""The command lines of dplab and dpsweep. Options are checked, and an error is one sentence.

An option may be given once, and its name may not be shortened. A mistake is a LabError. Output goes through say().
If it cannot be written, the program ends with a sentence, or without one if the reader has gone (`... | head`).
"""
from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from typing import Callable, NoReturn

from lab.settings import LabError, shown

_READER_GONE = 128 + 13  # a shell's exit code of a program that SIGPIPE has ended
_OUTPUT_FAILED = 3


def prepare_output() -> None:
    """For a program's start. If standard files are closed, the program's own files must not get their numbers."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
    os.close(file)
    if sys.stdout is not None:  # names of files need not be text
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Prints a line and flushes it."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the rest of the buffer cannot be written either
        if isinstance(error, BrokenPipeError):
            raise SystemExit(_READER_GONE) from error
        raise LabError(f"the output cannot be written: {error.strerror}", _OUTPUT_FAILED) from error


def complain(program: str, text: str) -> None:
    """Prints the sentence of an error. If even that cannot be written, the exit code must be enough."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"{program}: {text}", file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """Prints one sentence for an error, without the usage, and accepts no shortened names."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def parse_args(self, args=None, namespace=None):
        """Takes a negative number, also with a unit, as a value; argparse would take it for an option."""
        words: list[str] = []
        for word in args:
            if re.match(r"-[0-9.]", word) and words and re.fullmatch("--[a-z-]+", words[-1]):
                words[-1] += f"={word}"
            else:
                words.append(word)
        return super().parse_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        raise LabError(f"{message.removeprefix('argument ')} (see {self.prog} --help)", 2)

    def _print_message(self, message, file=None):  # of --help
        if message:
            say(message.rstrip("\n"))


class Once(argparse.Action):
    """An option that may be given once."""

    def __call__(self, parser, namespace, values, option_string=None):
        if option_string in getattr(namespace, "given", ()):
            parser.error(f"{option_string}: is given twice")
        namespace.given = (*getattr(namespace, "given", ()), option_string)
        setattr(namespace, self.dest, values)


def value(parse: Callable[[str], object]) -> Callable[[str], object]:
    def convert(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return convert


def whole(lowest: int, highest: int) -> Callable[[str], object]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not lowest <= int(text) <= highest:
            raise ValueError(f"{shown(text)}: must be a whole number from {lowest} to {highest}")
        return int(text)
    return value(parse)


def filled(what: str) -> Callable[[str], object]:
    """Text that is not empty."""
    def parse(text: str) -> str:
        if not text:
            raise ValueError(f"'': must be {what}")
        return text
    return value(parse)
