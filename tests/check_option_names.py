#!/usr/bin/env python3
"""No library names an option of a program:  check_option_names.py [ROOT]

comm, kernels, net and io say settings by names of their own (kernels/base/setting_error.hpp), and app adds the options
(app/process/option_names.hpp). So "--compress" and the like stand in no string of theirs. Comments may have them, and strings
may have options of srun behind its name.

Every name that a source gives a setting, Setting{"codec"}, is in app's table, and every name of the table is given somewhere.
"""

import pathlib
import re
import sys
import tempfile

LIBRARIES = ("comm", "kernels", "net", "io")
SOURCES = {".hpp", ".cpp", ".cu", ".cuh", ".h", ".c"}
# A comment, a character (which may be a quotation mark) or a string, whichever begins first.
TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|(?P<string>"(?:\\.|[^"\\\n])*")""", re.DOTALL)
SETTING = re.compile(r'\bSetting\b\s*\w*\s*[({]\s*"([^"]*)"')
TABLE = "app/process/option_names.cpp"
ROW = re.compile(r'\{"([^"]+)",\s*"(?:--[a-z-]+)?"\}')
OPTION = re.compile(r"(?<![\w-])(?<!srun )--[a-z][a-z-]*")


def named_options(text: str) -> list[tuple[int, str]]:
    """The options in strings of a source, with their lines."""
    return [(text.count("\n", 0, token.start()) + 1, option[0])
            for token in TOKEN.finditer(text) if token["string"]
            for option in OPTION.finditer(token["string"])]


def check(root: pathlib.Path) -> tuple[list[str], int]:
    """What is wrong, and how many files were read."""
    files = [path for library in LIBRARIES for path in sorted((root / library).rglob("*")) if path.suffix in SOURCES]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    wrong = [f"{path.relative_to(root).as_posix()}:{line}: {option} is a program's option; name the setting with SettingError"
             for path, text in texts.items() for line, option in named_options(text)]
    for path in sorted((root / "app").rglob("*")):
        if path.suffix in SOURCES:
            texts[path] = path.read_text(encoding="utf-8")
    known, *others = [set(ROW.findall(rows)) for rows in texts[root / TABLE].split("};")]  # dptrain's table is the first
    wrong += [f'{TABLE}: only another program has a row for the setting "{word}"' for word in sorted(set().union(*others) - known)]
    given = {}
    for path, text in texts.items():
        given |= {word: path.relative_to(root).as_posix() for word in SETTING.findall(text)}
    wrong += [f'{place}: the setting "{word}" has no row in {TABLE}' for word, place in given.items() if word not in known]
    wrong += [f'{TABLE}: no source names the setting "{word}"' for word in sorted(known - given.keys())]
    return wrong, len(files)


def check_itself() -> None:
    """Finds what it must find, and nothing else."""
    text = ('// "--log" in a comment\n'
            'f("--compress {}: unknown");\n'
            'g("raise "\n'
            '  "--comm-timeout", \'"\', i--, "a -- b", "x--y");\n'
            '/* "--lr"\n'
            '   */ h("\\"quoted\\" --lr", 1\'000, "--batch-size or --model");\n'
            'if (--n > 0) --k;\n'
            '"srun --mpi=pmix"\n')
    found = named_options(text)
    assert found == [(2, "--compress"), (4, "--comm-timeout"), (6, "--lr"), (6, "--batch-size"), (6, "--model")], found
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"comm/a.cpp": '"--log"', "kernels/cuda/b.cu": '"--log" Setting{"log"}', "app/c.cpp": '"--log"',
                           "io/d.txt": '"--log"', "io/e.hpp": 'f(Setting{"lgo"}); Setting remedy(\n  "pack")',
                           TABLE: '{{"log", "--log"},\n{"pack", ""}, {"trace", "--trace"}}; {{"lgo", "--log"}};'}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        wrong, seen = check(root)
        assert [line.split(": ")[0] for line in wrong] == ["comm/a.cpp:1", "kernels/cuda/b.cu:1", TABLE, "io/e.hpp", TABLE], wrong
        assert '"lgo"' in wrong[2] and '"lgo"' in wrong[3] and '"trace"' in wrong[4] and seen == 3, wrong


def main() -> int:
    check_itself()
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    wrong, seen = check(root)
    print("\n".join([*wrong, f"{seen} files, {len(wrong)} wrong names"]))
    return 1 if wrong or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
