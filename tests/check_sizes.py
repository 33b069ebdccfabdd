#!/usr/bin/env python3
"""No source file is longer than can be read in one sitting:  check_sizes.py [ROOT]

400 lines, in the folders of the program. A longer file is split where its parts need each other least.
"""

import pathlib
import sys
import tempfile

FOLDERS = ("app", "comm", "io", "kernels", "net")
SOURCES = {".hpp", ".cpp", ".cu", ".cuh", ".h", ".c"}
MOST_LINES = 400


def long_files(root: pathlib.Path) -> tuple[list[str], int]:
    """A line for each file that is too long, and how many were looked at."""
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in SOURCES]
    lines = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8").count("\n") for path in files}
    return [f"{name}: {count} lines; at most {MOST_LINES}" for name, count in lines.items() if count > MOST_LINES], len(files)


def check_itself() -> None:
    """Finds what it must find, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, count in {"app/a.cpp": 400, "kernels/cuda/k.cu": 401, "net/layers/n.hpp": 500,
                            "io/notes.txt": 900, "tests/t.cpp": 900}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("\n" * count, encoding="utf-8")
        found, seen = long_files(root)
        assert [line.split(":")[0] for line in found] == ["kernels/cuda/k.cu", "net/layers/n.hpp"] and seen == 3, found


def main() -> int:
    check_itself()
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found, seen = long_files(root)
    print("\n".join([*found, f"{seen} files, {len(found)} of them too long"]))
    return 1 if found or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
