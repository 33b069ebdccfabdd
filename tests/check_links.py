#!/usr/bin/env python3
"""Every link between the project's pages leads somewhere:  check_links.py [ROOT]

Files and folders must exist, and the heading behind a # must be in the page. Addresses on the web are not asked for.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    """The page without its code blocks (four spaces) and code in lines, where brackets mean something else."""
    lines = ["" if line.startswith("    ") else line for line in text.splitlines()]
    return re.sub(r"`[^`]*`", "", "\n".join(lines))


def anchors(text: str) -> set[str]:
    """The names by which a page's headings can be linked to, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", "\n".join(line for line in text.splitlines() if not line.startswith("    ")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(root: pathlib.Path, pages: list[pathlib.Path]) -> tuple[list[str], int]:
    """A line for each link that leads nowhere, and how many were looked at."""
    found, seen = [], 0
    for page in pages:
        for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            seen += 1
            name, _, heading = target.partition("#")
            other = (page.parent / name).resolve() if name else page.resolve()
            if not other.exists():
                found.append(f"{page.relative_to(root)}: {target}: no such file")
            elif heading and heading not in anchors(other.read_text(encoding="utf-8")):
                found.append(f"{page.relative_to(root)}: {target}: no such heading")
    return found, seen


def pages_of(root: pathlib.Path) -> list[pathlib.Path]:
    """The pages that belong to the project: in a checkout those that git knows or would add."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True, text=True, check=False)
    return [root / line for line in listed.stdout.splitlines()] or sorted(root.rglob("*.md"))


def check_itself() -> None:
    """Finds what it must find, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "a").mkdir()
        (root / "README.md").write_text("# One two\n[x](a/README.md#what-it-costs-2) [y](a) [z](#one-two) [w](https://x.y/z)\n"
                                        "`[c](gone.md)`\n\n    [d](gone.md)\n", encoding="utf-8")
        (root / "a" / "README.md").write_text("## What it costs, 2\n[x](../gone.md) [y](../README.md#gone)\n", encoding="utf-8")
        found, seen = broken_links(root, sorted(root.rglob("*.md")))
        assert seen == 5 and found == ["a/README.md: ../gone.md: no such file", "a/README.md: ../README.md#gone: no such heading"], found


def main() -> int:
    check_itself()
    root = (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found, seen = broken_links(root, pages_of(root))
    print("\n".join([*found, f"{seen} links, {len(found)} of them broken"]))
    return 1 if found or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
