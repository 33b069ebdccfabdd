"""A manual page in man's roff, from what a program says of itself and a text that is written by hand.

The text consists of sections. A line of capitals begins one; lines indented by four blanks stay as they are; a
paragraph "term :: text" is an entry of a list. `--options` are set in bold.
"""
from __future__ import annotations

import re
import textwrap

from programs import Option, Program

# Sections in the order of a page. Options, lists and exit codes come from the program between the two parts.
FIRST = ("NAME", "SYNOPSIS", "DESCRIPTION")
LAST = ("EXIT STATUS", "EXAMPLES", "ENVIRONMENT", "FILES", "SEE ALSO")


def escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    return "\\&" + text if text.startswith(".") else text


def running(text: str) -> str:
    """Text between other text: options are bold, and names(1) of pages."""
    text = escaped(text)
    text = re.sub(r"(?<![\w])(\\-\\-[a-z][\w]*(?:\\-\w+)*)", r"\\fB\1\\fR", text)
    return re.sub(r"\b([\w\\-]+)\(([1-8])\)", r"\\fB\1\\fR(\2)", text)


def sections_of(text: str) -> dict[str, str]:
    parts = re.split(r"^([A-Z][A-Z ]+)\n", text, flags=re.MULTILINE)
    if parts[0].strip():
        raise ValueError(f"text before the first section: {parts[0]!r}")
    return {title: body.strip("\n") for title, body in zip(parts[1::2], parts[2::2])}


def body(text: str) -> list[str]:
    """Paragraphs, entries, and lines that stay as they are."""
    lines: list[str] = []
    for number, block in enumerate(re.split(r"\n\s*\n", text.strip("\n"))):
        rows = block.split("\n")
        if all(row.startswith("  ") for row in rows):
            lines += ([".PP"] if number else []) + [".nf", ".RS 4", *map(escaped, textwrap.dedent(block).split("\n")), ".RE", ".fi"]
        elif " :: " in rows[0] and not rows[0].startswith(" "):
            for entry in re.split(r"\n(?=\S.* :: )", block):
                term, _, said = entry.partition(" :: ")
                lines += [".TP", f"\\fB{escaped(term)}\\fR", running(" ".join(said.split()))]
        else:
            lines += ([".PP"] if number else []) + [running(" ".join(block.split()))]
    return lines


def option_lines(options: list[Option]) -> list[str]:
    lines = []
    for option in options:
        names = ", ".join(f"\\fB{escaped(name)}\\fR" for name in option.names)
        value = f" \\fI{escaped(option.placeholder)}\\fR" if option.placeholder else ""
        lines += [".TP", names + value, running(option.text)]
        if option.keys:
            lines += [".RS", *option_lines([Option([key], "", said) for key, said in option.keys]), ".RE"]
    return lines


def _generated(program: Program) -> tuple[list[str], list[str]]:
    """Options and lists; exit codes."""
    lines, codes = [], []
    for number, (title, options) in enumerate(program.groups):
        lines += ([".SH OPTIONS"] if number == 0 else []) + ([f".SS {escaped(title)}"] if len(program.groups) > 1 else [])
        lines += option_lines(options)
    for command in program.commands.values():
        lines += [f".SH {escaped(command.name).upper()}", running(command.head)]
        for _, entries in command.lists:
            if entries[0][0] == entries[0][0].upper():  # arguments, not the list of codecs once more
                lines += option_lines([Option([name], "", text) for name, text in entries])
        lines += option_lines(command.options())
    for title, entries in program.lists:
        entry_lines = option_lines([Option([name], "", text) for name, text in entries])
        if title.startswith("Exit codes"):
            codes = entry_lines
        else:
            name, _, said = title.partition(", ")
            lines += [f".SH {escaped(name.upper())}", running(f"{said[:1].upper()}{said[1:]}:") if said else "", *entry_lines]
    return lines, codes


def make_page(program: Program, text: str, version: str, date: str) -> str:
    hand = sections_of(text)
    unknown = set(hand) - {*FIRST, *LAST}
    if unknown or not {"NAME", "SYNOPSIS", "SEE ALSO"} <= set(hand):
        raise ValueError(f"{program.name}: sections {sorted(hand)}")
    generated, codes = _generated(program)
    lines = [f'.TH "{program.name.upper()}" 1 "{date}" "dptrain {version}" "User Commands"', ".nh", ".ad l", ".SH NAME",
             f"{escaped(program.name)} \\- {escaped(' '.join(hand['NAME'].split()))}", ".SH SYNOPSIS"]
    for number, row in enumerate(hand["SYNOPSIS"].split("\n")):
        lines += ([".br"] if number else []) + [running(row.strip())]
    described = hand.get("DESCRIPTION", "")
    if not described:  # a tool in Python says it itself; its exit codes have a section of their own
        head, _, said = program.head.partition("\n\nExit codes: ")
        described = head
        if said:
            hand["EXIT STATUS"] = " ".join(said.split())[:1].upper() + " ".join(said.split())[1:]
    lines += [".SH DESCRIPTION", *body(described), *generated]
    if codes:
        lines += [".SH EXIT STATUS", *codes]
    for title in LAST:
        if title in hand and not (title == "EXIT STATUS" and codes):
            lines += [f".SH {title}", *body(hand[title])]
    return "\n".join(line for line in lines if line) + "\n"
