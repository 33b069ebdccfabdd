"""A table and the four formats in which it is written: text, Markdown, HTML and CSV."""
from __future__ import annotations

import csv
import html
import io
import math
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any, Callable

from . import units

Row = dict[str, Any]


@dataclass
class Column:
    """One column: `key` names it in rows and in CSV files, `title` (with its unit) elsewhere.

    If all values of a column that may fold are the same, a line above the table replaces the column.
    """
    key: str
    title: str
    text: Callable[[Any], str] = units.digits
    is_left: bool = False
    may_fold: bool = False
    is_count: bool = False  # whole numbers are written into CSV files without a decimal point


def name(key: str, title: str, may_fold: bool = False) -> Column:
    return Column(key, title, units.plain, True, may_fold)


def size(key: str, title: str, may_fold: bool = False) -> Column:
    return Column(key, title, units.size, False, may_fold, True)


def count(key: str, title: str, may_fold: bool = False) -> Column:
    return Column(key, title, units.whole, False, may_fold, True)


def epoch(key: str, title: str) -> Column:
    """An epoch's number, which counts from 0 in files, as in the log, and from 1 where people read it."""
    return Column(key, title, lambda number: units.DASH if number is None else units.whole(number + 1), is_count=True)


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _folded_notes(notes: list[str]) -> str:
    """The first sentence stays below the table; the others are folded."""
    if not notes:
        return ""
    first, *others = re.split(r"(?<=\.) (?=[A-Z])", notes[0], maxsplit=1)
    rest = "\n".join(_note(text) for text in [*others, *notes[1:]])
    return _note(first) + (f"\n<details class=\"how\"><summary>How to read this</summary>\n{rest}\n</details>" if rest else "")


@dataclass
class Table:
    key: str
    title: str
    columns: list[Column]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    is_prose: bool = False  # as text: a paragraph per row instead of columns

    def folded(self) -> tuple[list[Column], str]:
        """The columns that stay, and the line that replaces the others."""
        if len(self.rows) < 2:
            return self.columns, ""
        gone = [c for c in self.columns if c.may_fold and len({c.text(row.get(c.key)) for row in self.rows}) == 1]
        said = [
            f"{c.title} {c.text(self.rows[0].get(c.key))}" for c in gone if self.cell(self.rows[0], c) != units.DASH
        ]
        return [c for c in self.columns if c not in gone], "The same in all: " + "; ".join(said) + "." if said else ""

    @staticmethod
    def cell(row: Row, column: Column) -> str:
        return column.text(row.get(column.key))

    def as_text(self) -> str:
        if self.is_prose:
            told = [f"{self.cell(row, self.columns[0])}: {self.cell(row, self.columns[1])}" for row in self.rows]
            lines = [self.title] + ["  " + "\n    ".join(_wrapped(text, 116)) for text in told]
            return "\n".join(lines + [f"  {line}" for note in self.notes for line in _wrapped(note)]) + "\n"
        columns, common = self.folded()
        lines = [self.title] + ([f"  {line}" for line in _wrapped(common)] if common else [])
        if not self.rows:
            return "\n".join(lines + [f"  {line}" for note in self.notes for line in _wrapped(note)]) + "\n"
        cells = [[c.title for c in columns]] + [[self.cell(row, c) for c in columns] for row in self.rows]
        widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
        cells.insert(1, ["-" * width for width in widths])
        for line in cells:
            padded = [
                text.ljust(width) if c.is_left else text.rjust(width) for text, width, c in zip(line, widths, columns)
            ]
            lines.append(("  " + "  ".join(padded)).rstrip())
        for note in self.notes:
            lines += [f"  {line}" for line in _wrapped(note)]
        return "\n".join(lines) + "\n"

    def as_markdown(self) -> str:
        columns, common = self.folded()
        lines = [f"### {in_markdown(self.title)}", ""] + ([in_markdown(common), ""] if common else [])
        notes = [in_markdown(note) for note in self.notes]
        if not self.rows:
            return "\n".join(lines + ["\n\n".join(notes)]) + "\n"
        lines.append("| " + " | ".join(_bars(c.title) for c in columns) + " |")
        lines.append("|" + "|".join("---" if c.is_left else "---:" for c in columns) + "|")
        lines += ["| " + " | ".join(_bars(self.cell(row, c)) for c in columns) + " |" for row in self.rows]
        lines += [text for note in notes for text in ("", note)]
        return "\n".join(lines) + "\n"

    def as_html(self) -> str:
        columns, common = self.folded()
        said = f"<p>{html.escape(common)}</p>" if common else ""
        head = "".join(f'<th scope="col"{_side(c)}>{html.escape(c.title)}</th>' for c in columns)
        # A single row can be shown as a list on a narrow screen, with the titles beside the values.
        is_list = len(self.rows) == 1 and not self.is_prose

        def cell(row: Row, column: Column) -> str:
            title = f' data-title="{html.escape(column.title)}"' if is_list else ""
            return f"<td{_side(column)}{title}>{html.escape(self.cell(row, column))}</td>"

        body = "\n".join("<tr>" + "".join(cell(row, c) for c in columns) + "</tr>" for row in self.rows)
        start = '<table class="list">' if is_list else "<table>"
        if not self.rows:
            return "\n".join(_note(note) for note in self.notes)
        notes = _folded_notes(self.notes)
        return (
            f'{said}<div class="wide">{start}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
            f"\n{notes}")

    def as_csv(self) -> str:
        """All columns, numbers in full."""
        file = io.StringIO(newline="")
        writer = csv.writer(file)
        writer.writerow([c.key for c in self.columns])
        for row in self.rows:
            writer.writerow([_in_csv(row.get(c.key), c.is_count) for c in self.columns])
        return file.getvalue()


def _in_csv(value: Any, is_count: bool) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return int(value) if is_count and value is not None and value == int(value) else value


def in_markdown(text: str) -> str:
    """Names and texts of a log are no markup: HTML, links, images, code, formulas and emphasis are shown as they are
    written."""
    for letter, shown in (("&", "&amp;"), ("<", "&lt;"), ("\\", "&#92;"), ("`", "&#96;"), ("~", "&#126;"), ("[", "\\["),
                          ("$", "&#36;"), ("://", "&#58;//"), ("www.", "www&#46;"), ("\n", " ")):
        text = text.replace(letter, shown)
    # A star between spaces and an underscore between letters are no emphasis; the last are headings, lists and quotes.
    text = re.sub(r"\*(?=\S)|(?<=\S)\*|(?<![^\W_])_|_(?![^\W_])", lambda mark: f"&#{ord(mark[0])};", text)
    text = re.sub(r"^(\d{1,9})([.)])(?=\s)", lambda mark: f"{mark[1]}&#{ord(mark[2])};", text)
    return re.sub(r"^(?: |>|[#+-](?=[#\s]))", lambda mark: f"&#{ord(mark[0])};", text)


def _bars(text: str) -> str:
    return in_markdown(text).replace("|", "&#124;")


def _side(column: Column) -> str:
    return ' class="left"' if column.is_left else ""


def _wrapped(text: str, width: int = 118) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False) or [""]
