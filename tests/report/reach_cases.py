"""Rounds, and time and bytes to an accuracy over links, in logs with known numbers."""
from __future__ import annotations

import math
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import h5py
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from report_support import DPREPORT, EPOCH, has, parse_page, quick, read_csv, words_of
from run_log_fixture import Rows, write_log

sys.path.insert(0, str(pathlib.Path(DPREPORT).parent))

from report import command, plots_reach, svg  # noqa: E402

LAB = {"nominal_bit_per_s": 10e6, "nominal_delay_s": 0.0}
ROUNDS = {"compress": "ecq:bits=1", "sync_every": "4", "sync_delay": "0", "outer_lr": "0.7", "outer_momentum": "0.5"}


def _options(config: dict[str, Any]) -> dict[str, str]:
    return {key.replace("_", "-"): value for key, value in config.items()}


def _trained(path: pathlib.Path, last: float, before: tuple[float, ...] = (0.3, 0.5, 0.6), sent_bytes: float = 40e6,
             exchanges: int = 10, **config: str) -> None:
    """A training of four epochs with 10 steps each, by four ranks."""
    epochs = [EPOCH | {"test_accuracy": accuracy, "sent_bytes": sent_bytes, "exchanges": exchanges, "learning_rate": 0.1}
              for accuracy in (*before, last)]
    write_log(path, ranks=4, epochs=epochs, config=_options(config))


def _timed(path: pathlib.Path, epochs: Rows, attributes: dict[str, Any] | None = None, **config: str) -> None:
    """A run over a link, with its columns where they are not as usual."""
    write_log(path, ranks=4, epochs=[EPOCH | {"exchanges": 10} | row for row in epochs],
              config={"limit-train": "4000"} | _options(config),
              **(attributes or {}))


def _study(folder: pathlib.Path) -> None:
    for seed, last in (("1", 0.70), ("2", 0.72), ("3", 0.74)):
        _trained(folder / f"fp32-{seed}.h5", last, seed=seed)
    for seed, last in (("1", 0.68), ("2", 0.70)):
        _trained(folder / f"rounds-{seed}.h5", last, sent_bytes=0.4e6, exchanges=3, seed=seed, **ROUNDS)
    # By a build that has an option more, which was not used.
    _trained(folder / "q4.h5", 0.66, (0.3, 0.4, 0.5), 5e6, compress="q4", later_option="")
    _timed(folder / "fp32-10.h5", [{"epoch_s": 50.0}] * 2, throttle="10mbit")
    _timed(folder / "fp32-100.h5", [{"epoch_s": 10.0}] * 2, throttle="100mbit")
    # A round of four steps takes 4 s, and its exchange 4 s more. Its epoch has two rounds, and an epoch of the training three.
    _timed(folder / "rounds-10.h5", [{"epoch_s": 16.0, "exposed_comm_s": 8.0, "samples": 3200, "exchanges": 2}] * 2,
           throttle="10mbit", **(ROUNDS | {"outer_lr": "1", "outer_momentum": "0"}))


def _times(folder: pathlib.Path, number: int = 1) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["exchange"], row["link"]): row for row in read_csv(folder / f"tables/reach_times_{number}.csv")}


def _are(row: dict[str, str], **wanted: float) -> None:
    for key, value in wanted.items():
        assert row[key] and abs(float(row[key]) - value) < 1e-6 * value, (row["exchange"], key, row[key], value)


def time_and_bytes_to_an_accuracy(folder: pathlib.Path) -> None:
    """fp32 has 72 % with a standard deviation of 2 points, so that 68 % count as equal. It comes to 64 % a third of the way
    from epoch 3 to 4, after 33.3 steps of 5 s or 1 s. Nobody has timed the rounds over 100 Mbit/s, and q4 over neither."""
    _study(folder)
    answer = quick(folder, ".", "--csv", "tables", "--html", "page.html")
    rows = {row["exchange"]: row for row in read_csv(folder / "tables/reach_1.csv")}
    outer = "ecq:bits=1, H = 4, outer 0.7/0.5"
    assert list(rows) == ["none", "q4", outer], rows
    _are(rows["none"], spread=0.02, mb_1=100 / 3, mb_2=10 * (3 + 8 / 12))
    _are(rows[outer], mb_1=0.1 * (3 + 4 / 9), test_accuracy=0.69, of_bytes=100.0)
    _are(rows["q4"], mb_1=1.25 * (3 + 14 / 16))
    assert [row["is_equal"] for row in rows.values()] == ["yes", "no", "yes"], rows
    assert rows["q4"]["mb_2"] == "", rows
    times = _times(folder)
    assert list(times) == [("none", "10 Mbit/s, throttled"), (outer, "10 Mbit/s, throttled"),
                           ("none", "100 Mbit/s, throttled")], times
    slow, rounds, fast = times.values()
    # The seeds come to 64 % after 3.4, 3.333 and 3.286 epochs.
    _are(slow, step_s=5, seconds_1=500 / 3, least_1=50 * (3 + 4 / 14), most_1=50 * 3.4, seconds_2=50 * (3 + 8 / 12),
         link_runs=1, link_steps=20, mb_a_step=1)
    _are(fast, step_s=1, seconds_1=100 / 3)
    # 10 steps of 1 s and three exchanges of 4 s: 22 s an epoch. After the whole 88 s fp32 is in its second epoch.
    _are(rounds, step_s=2.2, seconds_1=22 * (3 + 4 / 9), least_1=22 * 3.4, most_1=22 * 3.5, link_steps=16,
         fp32_then=0.3 + 0.2 * 38 / 50)
    assert (slow["at_equal_time"], rounds["at_equal_time"]) == ("", "above"), times
    has(words_of(answer), "What an exchange does to learning does not depend on the link", "at least 68.0 %",
        "rests on the deviation of 3 seeds", "without an outer optimiser, also where the training had one",
        "--throttle lets a rank send no faster")
    page = parse_page(folder / "page.html")
    names = {element.get("id") for element in page.iter()}
    assert {"reach", "rounds"} <= names, names


def equal_at_equal_time(folder: pathlib.Path) -> None:
    """After 40, 140 and 175 s fp32 is at the end of epoch 1 (or before), in the middle of epoch 3, and in the middle of epoch
    4, where its seeds have a standard deviation of 0, 0 and 1 point, and 1,000 test images one of 1.4, 1.6 and 1.5."""
    _study(folder)
    for name, last, epoch_s in (("q2", 0.26, 10.0), ("q8", 0.541, 35.0), ("q4n", 0.551, 35.0), ("fp16", 0.645, 43.75)):
        _trained(folder / f"{name}.h5", last, (0.1, 0.1, 0.1), 5e6, compress=name)
        _timed(folder / f"{name}-10.h5", [{"epoch_s": epoch_s}] * 4, throttle="10mbit", compress=name)
    quick(folder, ".", "--csv", "tables")
    times = {exchange: row for (exchange, link), row in _times(folder).items() if link.startswith("10 M")}
    for exchange, then, verdict in (("q2", 0.3, "below"), ("q8", 0.5 + 0.1 * 0.8, "below"), ("q4n", 0.5 + 0.1 * 0.8, "equal"), ("fp16", 0.6 + 0.12 * 0.5, "equal")):
        _are(times[exchange], fp32_then=then)
        assert times[exchange]["at_equal_time"] == verdict, times[exchange]


def warm_up_is_priced(folder: pathlib.Path) -> None:
    """topk sends more in two of four epochs: their steps take 4 s and 2 s, the others 1 s. A run over the link without this
    warm-up does not count, and one with half as many epochs and half the warm-up does."""
    _trained(folder / "fp32.h5", 0.7)
    warm = {"compress": "topk:ratio=0.01", "compress_warmup": "2"}
    _trained(folder / "topk.h5", 0.7, **warm)
    _timed(folder / "cold.h5", [{"epoch_s": 10.0}] * 4, throttle="10mbit", compress="topk:ratio=0.01")
    quick(folder, ".", "--csv", "tables", "--reach", "0.5")
    assert not (folder / "tables/reach_times_1.csv").exists()
    # What the first epoch computes besides, 3 s that are done once, does not count.
    _timed(folder / "warm.h5", [{"epoch_s": value, "exposed_comm_s": exposed} for value, exposed in (
        (43.0, 32.0), (20.0, 12.0), (10.0, 2.0), (10.0, 2.0))], throttle="10mbit", **warm)
    quick(folder, ".", "--csv", "tables", "--reach", "0.55")
    (row,) = _times(folder).values()
    _are(row, step_s=1.5, seconds_1=40 + 20 + 5)
    (folder / "warm.h5").unlink()
    _timed(folder / "half.h5", [{"epoch_s": 40.0, "exposed_comm_s": 32.0}, {"epoch_s": 10.0}], throttle="10mbit",
           **(warm | {"compress_warmup": "1"}))
    quick(folder, ".", "--csv", "tables", "--reach", "0.55")
    (row,) = _times(folder).values()
    _are(row, seconds_1=40 + 40 + 5, link_steps=20)


def one_training_a_table(folder: pathlib.Path) -> None:
    """Another learning rate is another training, another program or link is not. One seed of fp32 has times, and nothing is
    called equal. Of two runs with the same seed one counts, and this is said."""
    _trained(folder / "fp32.h5", 0.7, lr="0.2")
    _trained(folder / "topk.h5", 0.6, lr="0.2", compress="topk", throttle="10mbit")
    shutil.copy(folder / "topk.h5", folder / "topk-again.h5")
    _trained(folder / "topk-100.h5", 0.6, lr="0.2", compress="topk", throttle="100mbit")
    _trained(folder / "slow-fp32.h5", 0.5, lr="0.05")
    _trained(folder / "slow-topk.h5", 0.4, lr="0.05", compress="topk")
    for compress in ("none", "topk"):  # shorter trainings that only measure
        rows = [{"epoch_s": 10.0, "samples": 2000, "exchanges": 5}] * 4
        _timed(folder / f"{compress}-lab.h5", rows, LAB, compress=compress, lr="0.1")
    write_log(folder / "alone.h5", ranks=4, epochs=[EPOCH | {"epoch_s": 8.0}] * 2, config={"exchange": "off"})
    answer = quick(folder, ".", "--csv", "tables", "--html", "page.html")
    has(answer.stderr, "topk.h5: is the same training as topk-again.h5, with the same seed; the accuracies of 'topk' leave it out")
    assert answer.stderr.count("\n") == 1, answer.stderr
    assert "Equal, after" not in answer.stdout
    has(words_of(answer), "because fp32 has one seed", "a step takes 0.800 s; fp32 would come to 63.0 % after 26.4 s")
    tables = {number: {row["exchange"]: row for row in read_csv(folder / f"tables/reach_{number}.csv")} for number in (1, 2)}
    assert not (folder / "tables/reach_3.csv").exists(), "runs over a link that only measure are shown as trainings"
    assert "is_equal" not in tables[1]["none"] and "mb_2" not in tables[1]["none"], tables
    accuracies = {float(rows[exchange]["test_accuracy"]) for rows in tables.values() for exchange in ("none", "topk")}
    assert accuracies == {0.7, 0.6, 0.5, 0.4} and all(row["runs"] == "1" for rows in tables.values() for row in rows.values())
    titles = [line for line in answer.stdout.splitlines() if line.startswith("Bytes to an accuracy: ")]
    assert [title.rpartition(", ")[2] for title in titles] == ["lr 0.2", "lr 0.05"], titles
    page = (folder / "page.html").read_text(encoding="utf-8")
    has(page, "plots of loss and accuracy leave out 3 short runs", "lr 0.05: Test accuracy over bytes sent")
    for number in (1, 2):  # both have the steps of all runs over links
        times = _times(folder, number)
        assert list(times) == [("none", "10 Mbit/s, lab"), ("topk", "10 Mbit/s, lab"), ("topk", "10 Mbit/s, throttled"),
                               ("topk", "100 Mbit/s, throttled")], times
        _are(times["topk", "10 Mbit/s, lab"], step_s=2.0, times_alone=2.5, link_runs=1)
        _are(times["topk", "10 Mbit/s, throttled"], step_s=1.0, times_alone=1.25, link_runs=2)


def other_programs_beside(folder: pathlib.Path) -> None:
    """A program that computes fp32 has fp32's accuracies: 64 % after 33.3 steps of 6 s. Those of another one are not known."""
    _study(folder)
    head = "program,model,ranks,batch,link,step_s,compute_s,sent_mb,curve,machine\n"
    rows = ('Other DDP,resnet20,4,100,"10 Mbit/s, throttled",6.0,2.0,1.5,fp32,a machine\n'
            '"Other DDP, hook",resnet20,4,100,"10 Mbit/s, throttled",3.0,,0.1,,a machine\n'
            'Other DDP,resnet20,4,100,"1 Gbit/s, lab",1.0,1.0,1.5,fp32,a machine\n'
            'Other DDP,resnet18,4,100,"10 Mbit/s, throttled",9.0,2.0,1.5,fp32,a machine\n')
    (folder / "peers.csv").write_text(head + rows)
    answer = quick(folder, ".", "--csv", "tables", "--peers", "peers.csv")
    times = _times(folder)
    names = [exchange for exchange, link in times if link.startswith("10 M")]
    assert names[2:] == ["Other DDP (fp32's curve, Other's step time)", "Other DDP, hook (its curve was not run)"], names
    ddp, hook = (times[name, "10 Mbit/s, throttled"] for name in names[2:])
    _are(ddp, step_s=6, times_alone=3, mb_a_step=1.5, seconds_1=200, least_1=60 * (3 + 4 / 14), most_1=60 * 3.4)
    _are(hook, step_s=3, mb_a_step=0.1)
    assert hook["seconds_1"] == hook["times_alone"] == ddp["at_equal_time"] == "", (ddp, hook)
    has(words_of(answer), "a machine; --peers", "Not shown: steps over 1 Gbit/s, lab, because")
    for text, said in (("", "must begin with the line program,"), (head + "a,b\n", "line 2: has 2 values; it must have 10"),
                       (head + rows.replace("6.0", "-6"), "line 2: step_s -6: must be a number above 0"),
                       (head + rows.replace("fp32", "q8"), "line 2: curve q8: must be fp32 or nothing"),
                       (head + rows.replace(",4,100,", ",4.5,100,"), "line 2: ranks 4.5: must be a whole number above 0"),
                       (head + '"' + "a" * 200_000 + '"' + rows, "line 2: is not CSV (field larger than field limit")):
        (folder / "peers.csv").write_text(text)
        has(quick(folder, ".", "--peers", "peers.csv", code=2).stderr, f"peers.csv: {said}")
    has(quick(folder, ".", "--peers", "no.csv", code=2).stderr, "cannot be read")
    has(quick(folder, ".", "--reach", "94", code=2).stderr, "must be an accuracy between 0 and 1")
    (folder / "peers.csv").write_text("\ufeff" + head + rows.replace("resnet", "net"))  # as spreadsheets write it
    has(quick(folder, ".", "--peers", "peers.csv").stderr,
        "--peers: no row is shown, because no training that is compared is one of net20, 4 ranks x 100 and net18, 4 ranks x 100")
    # The committed rows can be read.
    quick(folder, ".", "--peers", str(pathlib.Path(DPREPORT).parent / "peers.csv"))


def measured_links_count(folder: pathlib.Path) -> None:
    """Runs between hosts time the steps over their link as they measured it, and runs within one host time none."""
    _study(folder)
    _timed(folder / "hosts.h5", [{"epoch_s": 20.0}] * 3, {"link_bytes_per_s": 12.4e6}, compress="none")
    _timed(folder / "hosts-q4.h5", [{"epoch_s": 15.0}] * 3, {"link_bytes_per_s": 12.6e6}, compress="q4")
    _timed(folder / "memory.h5", [{"epoch_s": 5.0}] * 2, {"link_bytes_per_s": 5e9, "hosts": ["one"] * 4}, compress="q4")
    answer = quick(folder, ".", "--csv", "tables")
    times = {exchange: row for (exchange, link), row in _times(folder).items() if link == "about 100 Mbit/s"}
    assert set(times) == {"none", "q4"} and not (folder / "tables/reach_2.csv").exists(), times
    _are(times["none"], step_s=2.0)
    _are(times["q4"], step_s=1.5, link_runs=1)
    # Trainings that were over links themselves are no mere measurements of others.
    for exchange in ("none", "q4"):
        _trained(folder / f"long-{exchange}.h5", 0.5, (0.1, 0.2, 0.3, 0.4, 0.45), compress=exchange, lr="0.4")
        _trained(folder / f"other-{exchange}.h5", 0.4, (0.1, 0.2, 0.3), compress=exchange, lr="0.3")
        for name in ("long", "other"):
            with h5py.File(folder / f"{name}-{exchange}.h5", "a") as file:
                file.attrs["link_bytes_per_s"] = 12.4e6
    quick(folder, "long-none.h5", "long-q4.h5", "other-none.h5", "other-q4.h5", "--csv", "two")
    assert (folder / "two/reach_2.csv").exists()
    assert not any("memory" in link for _, link in _times(folder)), _times(folder)
    has(words_of(answer), "about: as runs between hosts measured it")


def curves_without_logs(folder: pathlib.Path) -> None:
    """Trainings that are kept as curves give the same tables and plots as their logs, beside the logs of runs over links. A
    log stands for a curve of the same training, and nothing is overwritten."""
    _study(folder)
    _trained(folder / "auto.h5", 0.7, compress="auto", throttle="10mbit")
    for name, link in (("auto-lab", LAB), ("auto-hosts", {"link_bytes_per_s": 12.4e6})):
        _trained(folder / f"{name}.h5", 0.7, (0.3, 0.4, 0.6), compress="auto")
        with h5py.File(folder / f"{name}.h5", "a") as file:
            file.attrs.update(link)
    quick(folder, ".", "--csv", "tables", "--svg", "plots", "--save-curves", "kept.json")
    wanted = {name: (folder / "tables" / name).read_text() for name in ("reach_1.csv", "reach_times_1.csv")}
    plots = {path.name: path.read_text() for path in (folder / "plots").glob("reach-*")}
    assert plots and "auto at 10 Mbit/s, throttled" in wanted["reach_1.csv"], wanted
    for name in ("fp32-1", "fp32-2", "fp32-3", "rounds-1", "rounds-2", "q4"):
        (folder / f"{name}.h5").unlink()
    quick(folder, ".", "--csv", "again", "--svg", "drawn", "--html", "page.html", "--curves", "kept.json",
          "--save-curves", "again.json")
    assert {name: (folder / "again" / name).read_text() for name in wanted} == wanted
    assert {path.name: path.read_text() for path in (folder / "drawn").glob("reach-*")} == plots
    has((folder / "page.html").read_text(), "Test accuracy over bytes sent")
    # What auto does follows from its link, which a curve knows; how long its steps take over it, only a log does.
    for name in ("auto", "auto-lab", "auto-hosts"):
        (folder / f"{name}.h5").unlink()
    quick(folder, ".", "--csv", "alone", "--curves", "kept.json")
    assert (folder / "alone/reach_1.csv").read_text() == wanted["reach_1.csv"]
    exchanges = [row["exchange"] for row in read_csv(folder / "alone/reach_1.csv")]
    assert {"auto at 10 Mbit/s, throttled", "auto at 10 Mbit/s, lab", "auto at about 100 Mbit/s"} <= set(exchanges), exchanges
    assert not any(row["exchange"].startswith("auto") for row in read_csv(folder / "alone/reach_times_1.csv"))
    assert {line.rstrip(",") for line in (folder / "again.json").read_text().splitlines()} == {
        line.rstrip(",") for line in (folder / "kept.json").read_text().splitlines()}

    _trained(folder / "newer.h5", 0.6, (0.3, 0.4, 0.5), 5e6, compress="q4")
    quick(folder, ".", "--csv", "newer", "--curves", "kept.json")
    (row,) = (row for row in read_csv(folder / "newer/reach_1.csv") if row["exchange"] == "q4")
    _are(row, test_accuracy=0.6, runs=1)

    has(quick(folder, ".", "--save-curves", "kept.json", code=2).stderr, "--save-curves: kept.json exists already")
    good = (folder / "kept.json").read_text()
    for text, said in (("", "is not JSON"), ("[]", "is not a file of dpreport --save-curves"),
                       (good.replace('"version": 1', '"version": 2'), "has version 2; this dpreport reads 1"),
                       (good.replace('"ranks": 4', '"ranks": 0'), "training 1: its ranks is 0; it must be a number from 1 to 100000"),
                       (good.replace('"ranks": 4', f'"ranks": {10**400}'), "its ranks is 1000"),
                       (good.replace('"ranks": 4', '"rank": 4'), "training 1 has no ranks; it must be a number from 1 to 100000"),
                       (good.replace('"test_accuracy": [0.3, ', '"test_accuracy": ['),
                        "training 1, run 1: its test_accuracy has 3 values, its samples 4; both must have as many"),
                       (good.replace('"test_accuracy": [0.3, ', '"test_accuracy": [30, '),
                        "its test_accuracy of epoch 1 is 30; it must be a number from 0 to 1"),
                       (good.replace('"sent_bytes": [40000000', '"sent_bytes": [NaN'), "run 1: its sent_bytes of epoch 1 is NaN;"),
                       (good.replace('"sent_bytes": [40000000', f'"sent_bytes": [{10**400}'), "of epoch 1 is 1000"),
                       (good.replace('"samples": [4000', '"samples": [0'), "of epoch 1 is 0; it must be a number from 1 to 1e+18"),
                       (good.replace('"hosts": ', '"hosts": "one", "of": '), 'run 1, link: its hosts is "one"; it must be a number'),
                       (good.replace('"link": {', '"link": {"nominal_bit_per_s": -1, '),
                        "run 1, link: its nominal_bit_per_s is -1; it must be a number from 0 to 1e+18"),
                       (good.replace('"compress": "q4"', '"compress": 4'), "options: its compress is 4; it must be a text")):
        assert text != good, said
        (folder / "bad.json").write_text(text)
        has(quick(folder, ".", "--curves", "bad.json", code=2).stderr, "bad.json: ", said)
    has(quick(folder, ".", "--curves", "no.json", code=2).stderr, "cannot be read")
    (folder / "bad.json").write_text(good.replace('"seed": "', '"lr": "7", "seed": "', 1))
    has(quick(folder, ".", "--curves", "bad.json").stderr, "bad.json: ", "in no table of time and bytes, because no training")
    # In its first epoch a run sends nothing.
    (folder / "bad.json").write_text(good.replace('"sent_bytes": [40000000', '"sent_bytes": [0'))
    quick(folder, ".", "--curves", "bad.json", "--svg", "nothing")
    has(quick(folder, "fp32-10.h5", "--save-curves", "none.json", code=2).stderr, "--save-curves: no log is a training")
    assert not (folder / "none.json").exists()
    quick(folder, ".", "--curves", str(pathlib.Path(DPREPORT).parent / "bytes.json"))  # the committed one can be read


def bands_over_seeds(folder: pathlib.Path) -> None:
    """Each exchange has its small plot, beside fp32: one of its own family, over each link and over bytes. A band is the
    standard deviation of its own seeds, and one seed has none."""
    _study(folder)
    runs, _ = command.read_all([folder])
    figures: dict[str, Figure] = {}
    original = svg.to_svg
    try:
        svg.to_svg = lambda figure, name, alt: figures.setdefault(alt, figure) and original(figure, name, alt)
        plots_reach.reach_plots(runs)
    finally:
        svg.to_svg = original
    at_10, outer = "Test accuracy over time at 10 Mbit/s, throttled", "exchanges in rounds with an outer optimiser"
    assert set(figures) == {f"Test accuracy over bytes sent, {outer}", "Test accuracy over bytes sent, exchanges at every step",
                            f"{at_10}, {outer}"}, set(figures)
    fp32, rounds, none = [0.0, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 2**0.5], []
    for name, panel, wanted in ((f"{at_10}, {outer}", "ecq:bits=1, H = 4", ((range(50, 201, 50), fp32), (range(22, 89, 22), rounds))),
                                ("Test accuracy over bytes sent, exchanges at every step", "q4",
                                 ((range(10, 41, 10), fp32), ((1.25, 2.5, 3.75, 5), none)))):
        (ax,) = (ax for ax in figures[name].axes if ax.get_visible())
        assert ax.get_title(loc="left") == panel, ax.get_title(loc="left")
        drawn = [line.get_xdata() for line in ax.lines]
        for xs, band in wanted:
            assert any(len(line) == 4 and all(abs(a - b) < 1e-6 for a, b in zip(line, xs)) for line in drawn), (name, drawn)
            if band:
                heights = [_heights(area) for area in ax.collections]
                assert any(all(abs(found.get(round(x, 6), -1) - 2 * half) < 1e-6 for x, half in zip(xs, band))
                           for found in heights), (name, heights)
        assert len(ax.collections) == sum(bool(band) for _, band in wanted), name


def _heights(area: PolyCollection) -> dict[float, float]:
    """The height of a band by x."""
    points: dict[float, list[float]] = {}
    for x, y in area.get_paths()[0].vertices:
        points.setdefault(round(x, 6), []).append(y)
    return {x: max(ys) - min(ys) for x, ys in points.items()}


def results_packed(folder: pathlib.Path) -> None:
    """What was packed comes out as it was, without what is not finished; the same files make the same archive."""
    script = pathlib.Path(DPREPORT).parent / "pack_results.sh"

    def pack(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([script, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=60)

    (folder / "results/a study").mkdir(parents=True)
    for name in ("results/a study/none.h5", "results/a study/none.txt", "results/a study/q4.part.h5", "results/.lock",
                 "results/MANIFEST.sha256", "results/a study/q8.h5.damaged-2", "b.ini"):
        (folder / name).write_text(name)
    assert pack("results", "two/one.tar.xz").stderr == "pack_results.sh: two/one.tar.xz: there is no folder two\n"
    for out in ("one.tar.xz", "two/one.tar.xz"):
        (folder / out).parent.mkdir(exist_ok=True)
        answer = pack("results", out, "b.ini")
        assert answer.returncode == 0, answer
        (folder / "results/a study/none.txt").touch()
    assert (folder / "one.tar.xz").read_bytes() == (folder / "two/one.tar.xz").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["b.ini", "one.tar.xz", "one.tar.xz.sha256", "results", "two"]
    subprocess.run(["tar", "xf", "one.tar.xz"], cwd=folder, check=True)
    there = {str(path.relative_to(folder / "one")) for path in (folder / "one").rglob("*") if path.is_file()}
    assert there == {"MANIFEST.sha256", "b.ini", "a study/none.h5", "a study/none.txt"}, there
    for place, manifest in (("one", "MANIFEST.sha256"), (".", "one.tar.xz.sha256")):
        subprocess.run(["sha256sum", "--quiet", "--strict", "-c", manifest], cwd=folder / place, check=True)
    for words, said in ((["results", "one.tar.xz"], "one.tar.xz: exists already"), (["no", "o.tar.xz"], "no: there is no such"),
                        (["results", "o.zip"], "must end in .tar.xz"), (["results"], "needs FOLDER and OUT.tar.xz"),
                        (["results", "o.tar.xz", "no.ini"], "no.ini: there is no such file"),
                        (["results", "o.tar.xz", "two"], "two: is a folder"), (["two", "o.tar.xz", "no/"], "no/")):
        answer = pack(*words)
        assert answer.returncode == 2 and said in answer.stderr and answer.stderr.count("\n") == 1, answer
        assert not (folder / "o.tar.xz").exists() and not list(folder.glob(".pack-*"))
    assert pack("results", "a & b|c.tar.xz").returncode == 0
    subprocess.run(["tar", "xf", "a & b|c.tar.xz"], cwd=folder, check=True)
    subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "a & b|c.tar.xz.sha256"], cwd=folder, check=True)
    (folder / "d.tar.xz").symlink_to("nowhere")
    assert pack("results", "d.tar.xz").stderr == "pack_results.sh: d.tar.xz: exists already; it is not overwritten\n"
    (folder / "results/a study/link.h5").symlink_to("none.h5")
    has(pack("results", "o.tar.xz").stderr, "results/a study/link.h5: is a symbolic link")


def shares_shown(folder: pathlib.Path) -> None:
    """Two ranks, of which the second computes at a third of the first one's speed, share 40 images."""
    first = [{"step": 1, "rank": rank, "images": 20, "compute_s": math.nan, "step_s": math.nan, "fixed_s": math.nan,
              "image_s": math.nan} for rank in (0, 1)]
    then = [{"step": 9, "rank": rank, "images": images, "compute_s": 0.2 * slow, "step_s": 0.7, "fixed_s": 0.0,
             "image_s": 0.01 * slow} for rank, (images, slow) in enumerate(((30, 1), (10, 3)))]
    write_log(folder / "uneven.h5", ranks=2, epochs=[EPOCH] * 3, config={"shares": "auto"}, shares=first + then)
    write_log(folder / "even.h5", ranks=2, epochs=[EPOCH] * 3, config={"shares": "auto"}, shares=first)
    answer = quick(folder, "uneven.h5", "even.h5", "--csv", "tables", "--svg", "plots")
    rows = read_csv(folder / "tables/shares.csv")
    assert [row["images"] for row in rows] == ["20 20", "30 10"], rows
    for key, wanted in (("step", 9), ("fastest_ms", 200), ("slowest_ms", 600), ("expected_ms", 300), ("least_ms", 300),
                        ("step_ms", 700)):
        assert abs(float(rows[1][key]) - wanted) < 1e-6, (key, rows[1])
    assert (folder / "plots/shares.svg").exists()
    has(answer.stdout, "\nShares of the batch\n")
    assert "\nShares of the batch\n" not in quick(folder, "even.h5").stdout


def rounds_shown(folder: pathlib.Path) -> None:
    """Rounds that become longer: 10 steps an epoch in 5, 2 and 1 rounds. Their volume is counted by exchanges."""
    epochs = [EPOCH | {"exchanges": count, "epoch_s": 10, "exposed_comm_s": 2, "sent_bytes": 8e6} for count in (5, 2, 1)]
    write_log(folder / "longer.h5", ranks=4, epochs=epochs, config={"sync-every": "auto", "outer-lr": "0.7",
                                                                    "outer-momentum": "0.9"})
    write_log(folder / "plain.h5", ranks=4, epochs=[EPOCH] * 3, config={"sync-every": "off"})
    answer = quick(folder, "longer.h5", "plain.h5", "--csv", "tables", "--svg", "plots")
    (row,) = read_csv(folder / "tables/rounds.csv")
    # The second and third epoch count: 1.5 exchanges of 10 steps in the mean.
    for key, wanted in (("exchanges", 1.5), ("steps", 10 / 1.5), ("last_steps", 10.0), ("exposed_ms", 2000 / 1.5),
                        ("exposed_share", 0.2), ("sent_mb", 2 / 1.5)):
        assert abs(float(row[key]) - wanted) < 1e-6, (key, row)
    assert (folder / "plots/rounds.svg").exists()
    has(answer.stdout, "\nRounds\n")
    assert "\nRounds\n" not in quick(folder, "plain.h5").stdout
