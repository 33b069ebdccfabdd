#!/usr/bin/env python3
"""Every include runs along the arrows of the house:  check_includes.py [ROOT]

The table says what a folder's sources may include beside their own folder and kernels/base, which is everyone's.
The most exact name of a folder counts: kernels/codecs before kernels. Files of the target dp_device count as a folder
of their own, "device", though they lie in kernels. Only app/process, app/bench, comm/mpi and comm/capi include mpi.h; exchanges
and topologies do not, nor does anything that they include: they have a transport.
"""

import pathlib
import re
import sys
import tempfile

BELOW = {  # what is below a room inside its folder
    "comm": {
        "comm/mpi": (),
        "comm/mpi/runtime": ("comm/mpi",),
        "comm/rate": ("comm/mpi",),
        "comm/exchange": ("comm/rate", "comm/mpi"),
        "comm/topologies": ("comm/exchange", "comm/mpi"),
        "comm/reducer": ("comm/topologies", "comm/exchange", "comm/rate", "comm/mpi"),
        "comm/network": ("comm/reducer", "comm/topologies", "comm/exchange", "comm/mpi"),
        "comm": ("comm/network", "comm/reducer", "comm/topologies", "comm/exchange", "comm/rate", "comm/mpi/runtime",
                 "comm/mpi"),
    },
    "io": {
        "io/files": (),
        "io/images": ("io/files",),
        "io/log": ("io/files",),
    },
    "app": {
        "app/process": (),
        "app/options": ("app/process",),
        "app/checkpoint": ("app/options", "app/process"),
        "app/output": ("app/checkpoint", "app/options", "app/process"),
        "app/training/replica": ("app/output", "app/options", "app/process"),
        "app/training/setup": ("app/training/replica", "app/output", "app/checkpoint", "app/options", "app/process"),
        "app/training/shares": (),
        "app/training": ("app/training/setup", "app/training/shares", "app/training/replica", "app/output", "app/checkpoint", "app/options",
                         "app/process"),
        "app/planning": ("app/training", "app/training/setup", "app/training/shares", "app/training/replica", "app/output", "app/checkpoint", "app/options", "app/process"),
        "app/bench": ("app/planning", "app/output", "app/options", "app/process"),
        "app/dptrun": ("app/options", "app/process"),
        "app": ("app/planning", "app/training", "app/training/setup", "app/output", "app/checkpoint", "app/options", "app/process", "app/bench",
                "app/dptrun"),
    },
}
COMM, IO = tuple(BELOW["comm"]), tuple(BELOW["io"])
ARROWS = {
    **{room: [*below, *COMM, *IO, "net", "kernels", "kernels/codecs", "device"] for room, below in BELOW["app"].items()},
    **{room: [*below, "kernels/codecs", "device"] for room, below in BELOW["comm"].items()},
    **{room: list(below) for room, below in BELOW["io"].items()},
    "comm/capi": [*COMM, "io/files", "kernels/codecs", "device"],  # of io the file of a trace alone: the target dp_trace_file
    "io": [],
    "net": ["kernels", "device"],
    "kernels": ["device"],
    "kernels/codecs": ["device"],
    "kernels/base": [],
    "device": [],
}
DEVICE = {f"kernels/{name}" for name in (
    "device.hpp", "device.cpp", "device_waits.hpp", "device_waits.cpp", "bucket_link.hpp", "gpu_needs.hpp", "rank_gather.hpp",
    "tensor.hpp", "tuning.hpp", "tuning.cpp",
    "cuda/bucket_link.cu", "cuda/cuda_check.cpp", "cuda/cuda_check.hpp", "cuda/device.cpp", "cuda/device.hpp", "cuda/handles.hpp",
    "cuda/launch.cuh", "cuda/libraries.cpp", "cuda/libraries.hpp", "cuda/library_check.hpp",
    "cuda/library_handles.cpp")}
MPI = {"app/process", "app/bench", "comm/mpi", "comm/mpi/runtime", "comm/capi"}
EXCHANGES = ("comm/rate", "comm/exchange", "comm/topologies")
EVERYONES = "kernels/base"
SOURCES = {".hpp", ".cpp", ".cu", ".cuh", ".h", ".c"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_of(path: str) -> str | None:
    """The folder of the table that a file counts to."""
    if path in DEVICE:
        return "device"
    return max((name for name in ARROWS if path.startswith(f"{name}/")), key=len, default=None)


def is_allowed(folder: str, included: str) -> bool:
    return folder_of(included) in {folder, EVERYONES, *ARROWS[folder]}


def wrong_includes(root: pathlib.Path) -> tuple[list[str], int]:
    """What stands against the table, and how many includes were looked at."""
    wrong, seen = [], 0
    for top in sorted({name.split("/")[0] for name in ARROWS} - {"device"}):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            name = path.relative_to(root).as_posix()
            folder = folder_of(name)
            text = path.read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                seen += 1
                included = match[2]
                place = f"{name}:{text.count(chr(10), 0, match.start(2)) + 1}"
                if included == "mpi.h":
                    if folder not in MPI:
                        wrong.append(f"{place}: only {' and '.join(sorted(MPI))} include mpi.h")
                elif match[1] == '"':
                    if not (root / included).is_file():
                        wrong.append(f"{place}: {included} is no file; includes are written by path from the top")
                    elif not is_allowed(folder, included):
                        wrong.append(f"{place}: {folder} may not include {included}")
    return wrong, seen


def ways_to_mpi(root: pathlib.Path, sources) -> list[str]:
    """For each of the sources that includes mpi.h, itself or through others: how."""
    ways = []
    for source in sources:
        way_to, todo = {source: source}, [source]
        while todo:
            name = todo.pop()
            for match in INCLUDE.finditer((root / name).read_text(encoding="utf-8")):
                included = match[2]
                if included in way_to or (included != "mpi.h" and not (root / included).is_file()):
                    continue
                way_to[included] = f"{way_to[name]} -> {included}"
                if included == "mpi.h":
                    ways.append(f"{way_to[included]}: exchanges know no MPI")
                else:
                    todo.append(included)
    return ways


def check_itself() -> None:
    """Finds what it must find, and nothing else."""
    files = {
        "app/a.cpp": ("app/a.hpp", "net/n.hpp", "kernels/k.hpp", "kernels/codecs/c.hpp", "kernels/base/b.hpp", "comm/mpi/m.hpp"),
        "app/a.hpp": ("! mpi.h",),
        "app/training/t.cpp": ("app/output/o.hpp", "! app/planning/p.hpp", "! app/a.hpp"),
        "app/output/o.hpp": ("app/options/o.hpp", "! app/training/t.cpp"),
        "app/options/o.hpp": (),
        "app/planning/p.hpp": ("app/training/t.cpp",),
        "comm/mpi/m.hpp": ("mpi.h", "! comm/c.hpp"),
        "net/n.cpp": ("net/n.hpp", "kernels/k.hpp", "kernels/base/b.hpp"),
        "net/n.hpp": ("! comm/c.hpp", "! kernels/codecs/c.hpp", "! app/a.hpp", "! io/i.hpp", "! mpi.h"),
        "comm/c.cpp": ("comm/mpi/m.hpp", "kernels/device.hpp", "kernels/codecs/c.hpp", "! kernels/k.hpp"),
        "comm/d.cpp": ("kernels/cuda/device.hpp", "! kernels/cuda/k.cu"),
        "comm/c.hpp": ("! net/n.hpp", "! missing.hpp", "! n.hpp"),
        "io/i.hpp": ("kernels/base/b.hpp", "! kernels/k.hpp"),
        "kernels/k.hpp": ("kernels/base/b.hpp", "! kernels/codecs/c.hpp", "! mpi.h"),
        "kernels/device.hpp": ("kernels/base/b.hpp", "! kernels/k.hpp", "! kernels/codecs/c.hpp", "! tests/t.hpp"),
        "kernels/cuda/device.hpp": ("kernels/device.hpp", "! kernels/cuda/k.cu"),
        "kernels/cuda/k.cu": ("kernels/k.hpp", "kernels/cuda/device.hpp", "! io/i.hpp"),
        "kernels/codecs/c.hpp": ("kernels/base/b.hpp", "kernels/cuda/device.hpp", "! kernels/cuda/k.cu", "! kernels/k.hpp"),
        "kernels/base/b.hpp": ("! kernels/k.hpp",),
        "tests/t.hpp": ("app/a.hpp",),
    }
    with tempfile.TemporaryDirectory() as folder:
        root, expected, count = pathlib.Path(folder), [], 0
        for name, includes in files.items():
            lines = ["#pragma once", "#include <vector>", '// #include "nothing.hpp"']
            for include in includes:
                file = include.removeprefix("! ")
                quoted = f"<{file}>" if file == "mpi.h" else f'"{file}"'
                lines.append(f"  #  include {quoted}  // why" if include.startswith("!") else f"#include {quoted}")
                if include.startswith("!"):
                    expected.append(f"{name}:{len(lines)}")
            count += 0 if name.startswith("tests") else len(includes) + 1
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines), encoding="utf-8")
        wrong, seen = wrong_includes(root)
        places = [":".join(line.split(":")[:2]) for line in wrong]
        assert sorted(places) == sorted(expected), (set(places) ^ set(expected), wrong)
        assert seen == count, (seen, count)
        (root / "comm/d.cpp").write_text('#include "comm/d.hpp"', encoding="utf-8")
        (root / "comm/d.hpp").write_text('#include "comm/mpi/m.hpp"', encoding="utf-8")
        ways = ways_to_mpi(root, ["comm/d.cpp", "app/options/o.hpp"])
        assert [way.split(": ")[0] for way in ways] == ["comm/d.cpp -> comm/d.hpp -> comm/mpi/m.hpp -> mpi.h"], ways


def main() -> int:
    check_itself()
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    wrong, seen = wrong_includes(root)
    exchanges = [path.relative_to(root).as_posix() for room in EXCHANGES for path in sorted((root / room).glob("*.cpp"))]
    wrong += ways_to_mpi(root, exchanges)
    print("\n".join([*wrong, f"{seen} includes, {len(wrong)} of them wrong"]))
    return 1 if wrong or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
