"""Adds the project's Markdown pages to the documentation site. A hook of MkDocs; see mkdocs.yml and experiments/docs.sh.

Pages keep their paths (README.md becomes index.html), so most links between them stay. Source files that a page links to
become pages with their text; data and pictures are copied.
"""
from __future__ import annotations

import os
import pathlib
import re
import sys

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import check_links  # noqa: E402

COPIED = {".svg", ".png", ".csv", ".json", ".jsonl"}
LANGUAGES = {".hpp": "cpp", ".cpp": "cpp", ".cu": "cpp", ".cuh": "cpp", ".h": "c", ".c": "c", ".py": "python", ".sh": "bash",
             ".sbatch": "bash", ".yaml": "yaml", ".yml": "yaml", ".ini": "ini", "Containerfile": "docker"}
SEARCH_OFF = "---\nsearch:\n  exclude: true\n---\n"

_pages: dict[pathlib.Path, str] = {}    # a page's file in the project: its name in the site
_targets: dict[pathlib.Path, str] = {}  # the same for everything that can be linked to


def site_name(path: pathlib.Path) -> str:
    """MkDocs leaves out folders that begin with a dot."""
    return "/".join(part.lstrip(".") for part in path.relative_to(ROOT).parts)


def fits(path: pathlib.Path, pattern: str) -> bool:
    """A glob in which ** stands for any number of folders."""
    parts = [".*/" if part == "**" else re.sub(r"\[!", "[^", part).replace(".", r"\.").replace("*", "[^/]*") + "/"
             for part in pattern.split("/")]
    expression = "".join(parts).replace(".*/", "(?:.*/)?").rstrip("/")
    return re.fullmatch(expression, path.relative_to(ROOT).as_posix()) is not None


def on_config(config):
    files = check_links.files_of(ROOT)
    pages = check_links.pages_of(files)
    _pages.update({path: site_name(path) for path in pages})
    _targets.update(_pages)
    left = set(pages)

    def entries(patterns: list) -> list:
        """A pattern stands for its pages that are left; {title: patterns} is a group of its own, {title: pattern} a page's title."""
        found = []
        for pattern in patterns:
            title, inner = next(iter(pattern.items())) if isinstance(pattern, dict) else (None, pattern)
            if isinstance(inner, list):
                group = entries(inner)
                found += [{title: group}] if group else []
                continue
            some = sorted(path for path in left if fits(path, inner))
            left.difference_update(some)
            found += [{title: _pages[path]} if title else _pages[path] for path in some]
        return found

    navigation = entries([{section: patterns} for section, patterns in config.extra["sections"].items()])
    if left:
        raise PluginError(f"no section has {', '.join(sorted(_pages[path] for path in left))}")
    config.nav = navigation
    # Names of headings as GitHub's, by which the pages link to each other.
    config.mdx_configs["toc"]["slugify"] = lambda text, separator: check_links.heading_name(text)
    return config


def source_page(path: pathlib.Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        lines = "\n".join(sorted(child.name + "/" * child.is_dir() for child in path.iterdir() if not child.name.startswith((".", "__"))))
        return f"{SEARCH_OFF}# {name}/\n\n```text\n{lines}\n```\n"
    text = path.read_text(encoding="utf-8")
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    language = LANGUAGES.get(path.suffix or path.name, "text")
    return f"{SEARCH_OFF}# {name}\n\n{fence}{language}\n{text}\n{fence}\n"


def on_files(files: Files, config) -> Files:
    for path, name in _pages.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    known = check_links.files_of(ROOT)
    for page in _pages:
        text = page.read_text(encoding="utf-8")
        for begin, end in check_links.targets(text):
            if not check_links.is_relative(text[begin:end]):
                continue
            other, _ = check_links.resolved(ROOT, page, text[begin:end])
            if other in _targets or other not in known:  # a missing file is reported by MkDocs
                continue
            if other.is_dir() and other / "README.md" in _pages:
                _targets[other] = _pages[other / "README.md"]
            elif other.suffix in COPIED:
                _targets[other] = site_name(other)
                files.append(File.generated(config, _targets[other], abs_src_path=str(other)))
            else:
                _targets[other] = f"source/{site_name(other)}.md"
                files.append(File.generated(config, _targets[other], content=source_page(other)))
    return files


def titled(text: str, begin: int, other: pathlib.Path) -> tuple[int, str]:
    """Where the text of the link begins, and [text]( with the page's heading in place of its path."""
    shown = re.search(r"\[`?([\w./-]+\.md)`?\]\($", text[:begin])
    if not shown or not other.as_posix().endswith(shown[1]):
        return begin, ""
    heading = re.search(r"^# +(.+)$", other.read_text(encoding="utf-8"), re.MULTILINE)
    return (shown.start(), f"[{heading[1]}](") if heading else (begin, "")


def relinked(text: str, page: pathlib.Path, name: str) -> str:
    """The page's text with each relative link as the site has it. A link that shows a path shows the page's heading."""
    for begin, end in sorted(check_links.targets(text), reverse=True):
        target = text[begin:end]
        if not check_links.is_relative(target) or target.startswith("#"):
            continue
        other, anchor = check_links.resolved(ROOT, page, target)
        if other in _targets:
            link = os.path.relpath(_targets[other], os.path.dirname(name) or ".")
            anchor = "" if anchor and other.suffix != ".md" else anchor  # a line of a source file
            start, shown = titled(text, begin, other) if other in _pages else (begin, "")
            text = text[:start] + shown + link + (f"#{anchor}" if anchor else "") + text[end:]
    return text


def as_python_markdown(text: str) -> str:
    """What GitHub and Python-Markdown read differently: a list that follows a paragraph, and \\| in a table's code."""
    plain = check_links.without_code_blocks(text).splitlines()
    lines: list[str] = []
    for line, seen in zip(text.splitlines(), plain):
        before = lines[-1] if lines else ""
        if check_links.ITEM.match(seen) and not seen.startswith(" ") and before.strip() and not check_links.ITEM.match(before) \
                and not before.startswith(" ") and not _continues_item(lines):
            lines.append("")
        lines.append(re.sub(r"`[^`]*`", lambda span: span[0].replace("\\|", "|"), line) if seen.startswith("|") else line)
    return "\n".join(lines)


def _continues_item(lines: list[str]) -> bool:
    """Whether the last line belongs to a list item, without indentation."""
    for line in reversed(lines):
        if not line.strip() or line.startswith(("#", "|")):
            return False
        if check_links.ITEM.match(line):
            return True
    return False


def on_page_markdown(markdown: str, page, config, files) -> str:
    for path, name in _pages.items():
        if name == page.file.src_uri:
            return as_python_markdown(relinked(markdown, path, name))
    return markdown
