"""Logs that claim more than they have, and logs whose tables do not fit together."""
from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import zlib
from typing import Any

import h5py
from report_support import DPREPORT, EPOCH, has, parse_page, quick
from run_log_fixture import write_log

MOST_MIB = 300
START = """import resource, subprocess, sys
answer = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(answer.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
print(answer.stderr, answer.stdout[answer.stdout.index("Runs"):])
"""


def _deflated(count: int) -> bytes:
    """So many MiB of zeros."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(count)) + packer.flush()


def _remade(folder: pathlib.Path, name: str, table: str, **layout: Any) -> h5py.File:
    """A log, open, with another form of one table and no values in it."""
    path = write_log(folder / f"{name}.h5", ranks=2, epochs=[EPOCH] * 2,
                     rank_rows=[{"epoch": e, "rank": r} for e in range(2) for r in range(2)])
    file = h5py.File(path, "r+")
    kind = file[table].dtype
    del file[table]
    file.create_dataset(table, dtype=kind, **layout)
    return file


def claims_bounded(folder: pathlib.Path) -> None:
    """Rows that were never written, chunks and texts that grow, other files: a sentence each, little memory, and the
    other logs are reported."""
    write_log(folder / "whole.h5", ranks=2, epochs=[EPOCH] * 2)
    for table in ("epochs", "ranks"):
        _remade(folder, f"unwritten_{table}", table, shape=(8_000_000,), chunks=(1024,)).close()
        with _remade(folder, f"packed_{table}", table, shape=(2_000_000,), chunks=(2_000_000,), compression="gzip") as file:
            size = 2_000_000 * file[table].dtype.itemsize
            file[table].id.write_direct_chunk((0,), _deflated(-(-size >> 20) + 1))
    with _remade(folder, "bomb", "ranks", shape=(4,), chunks=(4,), compression="gzip") as file:
        file["ranks"].id.write_direct_chunk((0,), _deflated(1000))
    _remade(folder, "external", "ranks", shape=(10,), external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)]).close()
    with _remade(folder, "linked", "ranks", shape=(0,)) as file:
        del file["ranks"]
        file["ranks"] = h5py.ExternalLink("whole.h5", "/ranks")
    with _remade(folder, "shared_text", "ranks", shape=(0,)) as file:
        hosts = ["y" * 600_000] + ["z"] * 3000
        file.attrs.create("hosts", hosts, dtype=h5py.string_dtype())
    _share_first_text(folder / "shared_text.h5")
    answer = subprocess.run([sys.executable, "-c", START, DPREPORT, "."], cwd=folder, capture_output=True, text=True,
                            timeout=200, check=True).stdout
    print(answer)
    code, mib = answer.splitlines()[0].split()
    assert code == "0" and int(mib) < MOST_MIB, f"exit code {code}, {mib} MiB"
    for text in ("unwritten_epochs.h5: is damaged: its table /epochs claims 2,", " bytes, and 0 bytes of it are in the file",
                 "packed_epochs.h5: is damaged: its table /epochs claims", "unwritten_ranks.h5: its table /ranks claims",
                 "packed_ranks.h5: its table /ranks claims", "bomb.h5: ", "external.h5: its table /ranks lies in other files",
                 "linked.h5: has no table /ranks", "shared_text.h5: is damaged: its values take more memory than a file of"):
        has(answer, text)
    has(answer, "\n  whole  ")
    assert "whole.h5" not in answer and "Traceback" not in answer, answer


def _share_first_text(path: pathlib.Path) -> None:
    """Lets all texts of the attribute hosts be its first one: an entry is a length, a heap and a place in it."""
    data = path.read_bytes()
    first = data.index((600_000).to_bytes(4, "little"), data.index(b"hosts\0"))
    entry = data[first:first + 16]
    end = first + 16 * 3001
    assert data[first + 16:first + 20] == (1).to_bytes(4, "little"), "the entries lie elsewhere"
    path.write_bytes(data[:first] + entry * 3001 + data[end:])


def epochs_lack_rows(folder: pathlib.Path) -> None:
    """Each table may end before the others, as after a loss of power: the whole report is there, and says which epoch
    lacks what."""
    epochs = 4
    good = write_log(
        folder / "good.h5", ranks=2, epochs=[EPOCH] * epochs, link_bytes_per_s=1e6, tensor_names=["a"],
        rank_rows=[{"epoch": e, "rank": r, "compute_s": 8, "sent_bytes": 10} for e in range(epochs) for r in range(2)],
        buckets=[{"epoch": e, "bucket": b, "elements": 10} for e in range(epochs) for b in range(3)],
        steps=[{"step": 20 * e + k, "epoch": e, "comm_s": 0.1, "step_s": 0.2} for e in range(epochs) for k in range(20)],
        tensors=[{"epoch": e, "elements": 4, "waiting": 2, "longest_wait": 3} for e in range(epochs)],
        config={"log-steps": "1", "compress": "topk"})
    assert not quick(folder, "good.h5", "--all").stderr
    for table, left, said in (
            ("ranks", 6, ["epoch 4 has no rows in /ranks"]),
            ("ranks", 5, ["epoch 4 has no rows in /ranks",
                          "epoch 3 has only a part of the rows in /ranks (1 of 2), which is left out"]),
            ("ranks", 0, ["epochs 1 to 4 have no rows in /ranks"]),
            ("buckets", 0, ["epochs 1 to 4 have no rows in /buckets"]),
            ("steps", 0, ["epochs 1 to 4 have no rows in /steps"]),
            ("buckets", 9, ["epoch 4 has no rows in /buckets"]),
            ("buckets", 7, ["epoch 3 has only a part of the rows in /buckets (1 of 3)"]),
            ("steps", 40, ["epochs 3 and 4 have no rows in /steps"]),
            ("tensors", 2, []), ("sessions", 0, []),
            ("epochs", 3, [f"epoch 4 has no row in /epochs; the rows in /{name} are left out"
                           for name in ("ranks", "buckets", "tensors", "steps")]),
            ("epochs", 0, ["has no epochs", "epochs 1 to 4 have no row in /epochs"])):
        log = folder / f"{table}_{left}.h5"
        shutil.copy(good, log)
        with h5py.File(log, "r+") as file:
            file[table].resize((left,))
        answer = quick(folder, log.name, "--all")
        assert not answer.stderr if not said else "Problems" in answer.stdout, answer
        has(answer.stdout, *(f"{log.name}: {text}" if table != "epochs" else text for text in said))
        assert left or table == "epochs" or answer.stderr.count("\n") == len(said), answer.stderr
    for name, edit in (("no_buckets", lambda file: file["model"].attrs.__setitem__("buckets", 0)),
                       ("no_steps", lambda file: file["config"].attrs.__setitem__("log-steps", "0"))):
        log = folder / f"{name}.h5"  # a run that has none
        shutil.copy(good, log)
        with h5py.File(log, "r+") as file:
            edit(file)
            file[name.removeprefix("no_")].resize((0,))
        assert not quick(folder, log.name).stderr, name
    answer = quick(folder, ".", "--all", "--markdown", "--html", "page.html", "--csv", "tables")
    has(answer.stdout, "- ranks_6.h5: epoch 4 has no rows in /ranks\n")
    parse_page(folder / "page.html")
    has((folder / "page.html").read_text(encoding="utf-8"), "ranks_6.h5: epoch 4 has no rows in /ranks")


def markdown_has_no_markup(folder: pathlib.Path) -> None:
    """Names with bars, backticks, backslashes and line breaks stay in their cell, as they are."""
    write_log(folder / "a|b`c\\|d.h5", ranks=2, epochs=[EPOCH] * 2,
              config={"compress": "q8`|`\n\n# head", "model": "*m*_n_~~o~~"})
    write_log(folder / "x\n- y.h5", ranks=2, epochs=[EPOCH] * 2)
    lines = quick(folder, ".", "--markdown").stdout.splitlines()
    row = next(line for line in lines if line.startswith("| a"))
    has(row, "| a&#124;b&#96;c&#92;&#124;d | &#42;m&#42;&#95;n&#95;&#126;&#126;o&#126;&#126; | q8&#96;&#124;&#96;  # head |")
    assert not any(line.startswith(("# ", "- ")) for line in lines), lines
    for head, line in zip(lines, lines[1:]):
        if head.startswith("|") and line.startswith("|"):
            assert head.count("|") == line.count("|"), (head, line)
    # Neither lists, code, formulas nor links of GitHub's kind, in problems and in cells.
    names = ("1. one", "12) two", "    code", "- - three", "$x_1$ and $y$", "www.four.example", "=== five", "> six")
    shown = ("1&#46; one", "12&#41; two", "&#32;   code", "&#45; - three", "&#36;x_1&#36; and &#36;y&#36;", "www&#46;four.example",
             "=== five", "&#62; six")
    (folder / "names").mkdir()
    for name in names:
        write_log(folder / f"names/{name}.h5", ranks=2, epochs=[EPOCH] * 2, finished=0, config={"dataset": f"https://{name}"})
    answer = quick(folder / "names", ".", "--markdown").stdout
    has(answer, *(f"\n- {name}.h5: is unfinished" for name in shown[1:]), *(f"\n| {name} | " for name in shown))
    assert "https&#58;//" in answer and not any(text in answer for text in ("://", "www.", "$")), answer


def odd_values(folder: pathlib.Path) -> None:
    """Attributes and rows of which nothing can be made: a sentence each, and the rest is reported, with its plots."""
    def changed(name: str, edit: Any, code: int = 0) -> str:
        path = write_log(folder / f"{name}.h5", ranks=2, epochs=[EPOCH] * 3)
        with h5py.File(path, "r+") as file:
            edit(file)
        return quick(folder, path.name, "--all", code=code).stderr

    def put(table: str, column: str, value: Any, kind: str | None = None, in_all: bool = False) -> Any:
        def edit(file: h5py.File) -> None:
            rows = file[table][:]
            if kind:
                rows = rows.astype([(name, kind if name == column else rows.dtype[name]) for name in rows.dtype.names])
            rows[column][slice(None) if in_all else -1] = value
            del file[table]
            file[table] = rows
        return edit

    for name, value in (("hosts", 3.5), ("devices", 7), ("codec_names", float("nan")), ("link_bytes_per_s", -1.0),
                        ("link_latency_s", 1e308), ("nominal_bit_per_s", "fast"), ("cores_per_rank", [1.0, 2.0])):
        has(changed(f"attribute_{name}", lambda file: file.attrs.__setitem__(name, value)),
            f"its attribute {name} is {value}, which no run has; it is left out")
    for column, value, kind in (("epoch", -5, None), ("epoch", 2**62, None), ("epoch", 2**64 - 1, "u8"), ("epoch", "nan", "f8"),
                                ("samples", "inf", "f8"), ("global_batch", 0, None), ("test_accuracy", "inf", None)):
        has(changed("rows", put("epochs", column, value, kind), 3), f"is damaged: its table /epochs has the {column} {value}")
    for table, column, value, kind in (("ranks", "rank", -1, None), ("ranks", "epoch", "nan", "f8"),
                                       ("sessions", "first_epoch", 2**62, None), ("buckets", "bucket", -1, None)):
        has(changed("rows", put(table, column, value, kind)),
            f"its table /{table} has the {column} {value}, which no run has; the table is left out")
    for column, value in (("train_loss", 1e308), ("test_loss", 1e308), ("epoch_s", float("inf")), ("epoch_s", 1e308),
                          ("sent_bytes", 2**63 - 1)):
        for in_all in (False, True):
            changed("huge", put("epochs", column, value, None, in_all))
            quick(folder, "huge.h5", "--html", "page.html")  # throws what is not caught
            parse_page(folder / "page.html")
    has(changed("version", lambda file: file.attrs.__setitem__("format_version", "1"), 3), "has format_version '1'; this")
