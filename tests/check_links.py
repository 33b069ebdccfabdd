#!/usr/bin/env python3
"""Checks that every relative link in the project's Markdown pages resolves:  check_links.py [ROOT]

A link is broken when its file or picture is not in the project, or when the page has no heading (or HTML anchor) of the
name behind #. Names of headings follow GitHub's rules. Links to the web are not followed.

experiments/docs/pages.py finds links by the same functions.
"""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse
from typing import Iterator

# The target of a link or picture, behind its text: ](target) or ](target "title"). It may hold one pair of parentheses.
TARGET = re.compile(r"""\]\(\s*<?((?:[^()\s<>]|\([^()\s<>]*\))+)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)""")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s<>]+)>?", re.MULTILINE)
ATTRIBUTE = re.compile(r"""<[a-zA-Z][^>]*?\s(?:href|src)\s*=\s*["']([^"']+)["']""")
HTML_ANCHOR = re.compile(r"""<[a-zA-Z][^>]*?\s(?:name|id)\s*=\s*["']([^"']+)["']""")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:[^\n]|\n(?![ \t]*\n))+?)(?<!`)\1(?!`)")
FENCE = re.compile(r" *(```+|~~~+)")
ITEM = re.compile(r"( *)(?:[-*+]|\d{1,9}[.)])( +)")
HEADING = re.compile(r"^ {0,3}#{1,6} +(.*?)(?: +#+)?[ \t]*$", re.MULTILINE)
UNDERLINED = re.compile(r"^(?![ \t]*$)(.+)\n(?:=+|-{2,})[ \t]*$", re.MULTILINE)


def blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def without_code_blocks(text: str) -> str:
    """The page with spaces in place of fenced and indented code. Offsets stay the same."""
    kept: list[str] = []
    fence = ""
    item = 0  # where the text of the open list item begins
    after_blank, in_code = True, False
    for line in text.splitlines(keepends=True):
        indent = len(line) - len(line.lstrip(" "))
        opening = FENCE.match(line)
        if fence:
            ends = opening and opening[1].startswith(fence) and not line.strip().strip(fence[0])
            fence = "" if ends else fence
            kept.append(blank(line))
            after_blank, in_code = False, False
            continue
        if not line.strip():
            kept.append(line)
            after_blank = True
            continue
        if after_blank and indent < item:
            item = 0
        in_code = indent >= item + 4 and (after_blank or in_code)
        after_blank = False
        if in_code:
            kept.append(blank(line))
        elif opening:
            fence = opening[1]
            kept.append(blank(line))
        else:
            started = ITEM.match(line)
            item = started.end() if started else item
            kept.append(line)
    return "".join(kept)


def without_code(text: str) -> str:
    return CODE_SPAN.sub(lambda span: blank(span[0]), without_code_blocks(text))


def targets(text: str) -> Iterator[tuple[int, int]]:
    """Where the target of each link or picture begins and ends in the text."""
    plain = without_code(text)
    for pattern in (TARGET, DEFINITION, ATTRIBUTE):
        for match in pattern.finditer(plain):
            yield match.span(1)


def is_relative(target: str) -> bool:
    return not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//", target)


def heading_name(heading: str) -> str:
    """The name that GitHub gives a heading: its text in lower case, without punctuation, with - for each space."""
    shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    shown = re.sub(r"<[^>]+>", "", re.sub(r"[`*]", "", shown))
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    plain = without_code_blocks(text)
    found = [(match.start(), match[1]) for pattern in (HEADING, UNDERLINED) for match in pattern.finditer(plain)
             if pattern is HEADING or not plain[match.start():].startswith(("#", "|"))]
    names: set[str] = set()
    for _, heading in sorted(found):
        name = first = heading_name(heading)
        count = 0
        while name in names:
            count += 1
            name = f"{first}-{count}"
        names.add(name)
    return names | set(HTML_ANCHOR.findall(without_code(text)))


def has_anchor(path: pathlib.Path, name: str) -> bool:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return name in anchors(text)
    lines = re.fullmatch(r"L(\d+)(?:-L(\d+))?", name)  # of a source file
    return bool(lines) and int(lines[2] or lines[1]) <= text.count("\n")


def files_of(root: pathlib.Path) -> set[pathlib.Path]:
    """The project's files and their folders: in a checkout those that git tracks or would add."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-zco", "--exclude-standard"], capture_output=True, check=False)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    files = [root / name for name in names] or [path for path in root.rglob("*") if path.is_file()]
    files = [path for path in files if path.exists()]
    return {*files, *(folder for path in files for folder in path.parents if folder == root or root in folder.parents)}


def pages_of(files: set[pathlib.Path]) -> list[pathlib.Path]:
    return sorted(path for path in files if path.suffix == ".md")


def resolved(root: pathlib.Path, page: pathlib.Path, target: str) -> tuple[pathlib.Path, str]:
    """The file and the name behind #. A target that begins with / begins at the root, as on GitHub."""
    name, _, anchor = target.partition("#")
    name = urllib.parse.unquote(name.partition("?")[0])
    if not name:
        return page, anchor
    # Lexically: a link that leaves the project must not come back by a symbolic link.
    place = root / name.lstrip("/") if name.startswith("/") else page.parent / name
    return pathlib.Path(os.path.normpath(place)), urllib.parse.unquote(anchor)


def broken_links(root: pathlib.Path) -> tuple[list[str], int]:
    """A line for each broken link, and the number of relative links."""
    files = files_of(root)
    found, seen = [], 0
    for page in pages_of(files):
        text = page.read_text(encoding="utf-8")
        for begin, end in sorted(targets(text)):
            target = text[begin:end]
            if not is_relative(target):
                continue
            seen += 1
            place = f"{page.relative_to(root)}:{text.count(chr(10), 0, begin) + 1}: {target}"
            other, anchor = resolved(root, page, target)
            if other not in files:
                found.append(f"{place}: no such file in the project")
            elif anchor and (other.is_dir() or not has_anchor(other, anchor)):
                found.append(f"{place}: no such heading")
    return found, seen


PAGE = """# One two
[x](a/README.md#what-it-costs-2) [y](a) [z](#one-two) [w](https://x.y/z) [m](mailto:a@b.c) ![p](a/p.svg "title")
`[c](gone.md)` ``[c](gone.md) ` ``

    [d](gone.md)

```sh
[e](gone.md)
```

- item [f](a/README.md#code-and-a-link)
    [g](gone-1.md)

  [h](a/README.md#same-1) [i](a/README.md#same-2)

      [j](gone.md)
- [![k](a/gone-2.svg)](a/README.md) [l](/a/README.md) [m](a/b_(c).txt#L2) [n](a/b_(c).txt#L3)

[o]: gone-3.md
<img src="gone-4.png"> <a id="here"></a> [p](#here) [q](#One-two) [r](ignored.txt) [s](../outside.md)
"""
OTHER = """## What it costs, 2
## `Code` and [a link](../README.md)
## Same
## Same
[x](../gone.md) [y](../README.md#gone) [z](README.md#under_lined) [u](#not-a-heading)

    # Not a heading

Under_lined
===
"""
EXPECTED = ["README.md:12: gone-1.md: file", "README.md:14: a/README.md#same-2: heading", "README.md:17: a/gone-2.svg: file",
            "README.md:17: a/b_(c).txt#L3: heading", "README.md:19: gone-3.md: file", "README.md:20: #One-two: heading",
            "README.md:20: ../outside.md: file", "README.md:20: gone-4.png: file", "README.md:20: ignored.txt: file",
            "a/README.md:5: ../README.md#gone: heading", "a/README.md:5: ../gone.md: file", "a/README.md:5: #not-a-heading: heading"]


def check_itself() -> None:
    """Finds what it must find, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve() / "root"
        (root / "a").mkdir(parents=True)
        for name, text in (("README.md", PAGE), ("a/README.md", OTHER), ("a/p.svg", ""), ("a/b_(c).txt", "1\n2\n"),
                           ("ignored.txt", ""), (".gitignore", "ignored.txt\n"), ("../outside.md", "")):
            (root / name).write_text(text, encoding="utf-8")
        subprocess.run(["git", "init", "-q", str(root)], check=False, capture_output=True)
        is_checkout = (root / ".git").exists()
        expected = [line for line in EXPECTED if is_checkout or "ignored" not in line]
        found, seen = broken_links(root)
        short = [re.sub("no such (file|heading).*", r"\1", line) for line in found]
        assert sorted(short) == sorted(expected), (set(short) ^ set(expected), found)
        assert seen == 24, seen


def main() -> int:
    check_itself()
    root = (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found, seen = broken_links(root)
    print("\n".join([*found, f"{seen} links, {len(found)} of them broken"]))
    return 1 if found or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
