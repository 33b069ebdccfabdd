"""Tables of logs with known numbers."""
from __future__ import annotations

import pathlib
import shutil
import time

import numpy as np
import study
from report_support import EPOCH, has, parse_page, quick, read_csv, report, words_of
from run_log_fixture import write_log


def known_numbers(folder: pathlib.Path) -> None:
    """The tables of study.py, where they are computed by hand, character by character."""
    logs = study.make(folder)
    output = report(folder, *(log.name for log in logs)).stdout
    expected = (pathlib.Path(__file__).resolve().parent / "expected.txt").read_text(encoding="utf-8")
    if output != expected:
        for line, wanted in zip(output.splitlines() + [""], expected.splitlines() + [""]):
            assert line == wanted, f"this line:\n{line}\nshould be:\n{wanted}"
        raise AssertionError("there are more lines, or fewer")


def csv_and_markdown(folder: pathlib.Path) -> None:
    logs = study.make(folder)
    output = report(folder, *(log.name for log in logs), "--markdown", "--csv", "tables").stdout
    has(output, "### Scaling\n", "| four_none | 4 | 100 | 400 | 16.0 | 32.0 | 2.00 | 50.0 | 40.0 | 2.50 | 62.5 |")
    for line in output.splitlines():
        assert not line.startswith("|") or line.endswith("|"), line
    rows = {row["run"]: row for row in read_csv(folder / "tables/bandwidth.csv")}
    # Numbers in full: 15 MB * 8 / 14 s.
    assert abs(float(rows["four_q8"]["wire_rate"]) - 120 / 14) < 1e-9, rows
    assert {path.name
            for path in (folder / "tables").iterdir()} >= {"runs.csv", "epochs.csv", "ranks.csv", "buckets.csv"}


def without_baseline(folder: pathlib.Path) -> None:
    """No speedup from a run that is something else, and the reason."""
    study.make(folder)
    write_log(folder / "eight.h5", ranks=1, epochs=[EPOCH] * 3, codec_names=[], cores_per_rank=8.0)
    has(
        words_of(report(folder, "eight.h5", "four_none.h5")),
        "There is no strong or weak scaling for four_none, because the runs without an exchange (eight) have the "
        "cores_per_rank 8, and not 1.")
    has(
        words_of(report(folder, "one_400.h5", "four_none.h5")),
        "There is no weak scaling for four_none, because no comparable run without an exchange computes batches of their "
        "batch per rank.")
    # Where both are there, the table of batch sizes has the run that can be compared, and the other one is named.
    answer = report(folder, "eight.h5", "one.h5", "four_none.h5")
    has(answer.stdout, "\n    100       40.0               100        16.0              2.50\n")
    has(words_of(answer), "eight is not taken as T_1 of four_none, because it has cores_per_rank 8 instead of 1.")
    answer = report(folder, "four_none.h5", "four_q8.h5")
    has(
        words_of(answer), "There is no strong or weak scaling for four_none and four_q8, because there is no run on one rank "
        "or with --exchange off.")
    assert "speedup  " not in answer.stdout and "T_N - T_1/N  " not in answer.stdout, answer.stdout


def without_exchange(folder: pathlib.Path) -> None:
    """Four ranks that exchange nothing: 9 s for a quarter of the images each, so T_1 is 36 s on their share of cores. With
    an exchange 10 s: the classical estimate of communication is 10 - 36 / 4 = 1 s. Strong scaling asks for one rank that
    computes batches of 400: with such ones 8 s, so 32."""
    share = {"cores_per_rank": 0.5}
    write_log(folder / "one.h5", ranks=1, epochs=[EPOCH] * 3, codec_names=[], cores_per_rank=2.0)
    write_log(folder / "alone.h5", ranks=4, epochs=[EPOCH | {"epoch_s": 9, "comm_s": 0, "sent_bytes": 0}] * 3,
              codec_names=[], config={"exchange": "off"}, **share)
    write_log(folder / "alone_400.h5", ranks=4, batch=400, codec_names=[], config={"exchange": "off"},
              epochs=[EPOCH | {"epoch_s": 8, "comm_s": 0, "sent_bytes": 0}] * 3, **share)
    write_log(folder / "four.h5", ranks=4, epochs=[EPOCH] * 3, config={"exchange": "on"}, **share)
    output = report(folder, "one.h5", "alone.h5", "alone_400.h5", "four.h5").stdout
    has(output, "no exchange")
    for table, row in (("Scaling", "four 4 100 400 10.0 32.0 3.20 80.0 36.0 3.60 90.0"),
                       ("Computation and communication", "four 4 100 10.0 8.00 4.00 2.00 36.0 9.00 1.00")):
        lines = output[output.index(f"\n{table}"):].splitlines()
        assert row in [" ".join(line.split()) for line in lines], f"'{row}' is missing in {table}:\n{output}"
    learnt = output[output.index("\nLoss and accuracy,") + 1:].split("\n\n")[0]
    assert "alone" not in learnt, "without an exchange there is no model that all have"


def one_log(folder: pathlib.Path) -> None:
    """A run on one rank has nothing to be compared with."""
    write_log(folder / "alone.h5", ranks=1, epochs=[EPOCH | {"exposed_comm_s": 0, "comm_s": 0}], codec_names=[])
    output = report(folder, "alone.h5", "--html", "page.html").stdout
    parse_page(folder / "page.html")
    for title in ("Scaling", "Bandwidth", "What the runs differ in", "Ranks,", "Buckets,", "Problems"):
        assert f"\n{title}" not in output, f"{title} in:\n{output}"
    has(output, "alone  resnet20  synthetic   4,000      1    100")


def names(folder: pathlib.Path) -> None:
    """Folders below folders, files named twice, names that are alike."""
    for name in ("a/x.h5", "b/x.h5", "b/n10.h5", "b/n2.part.h5", "b/1gbit.h5", "b/50mbit.h5", "b/100mbit.h5"):
        (folder / name).parent.mkdir(exist_ok=True)
        write_log(folder / name, ranks=1, epochs=[EPOCH], codec_names=[])
    (folder / "b/notes.txt").write_text("no log")
    output = report(folder, ".", "b/x.h5", "./b").stdout
    found = [line.split()[0] for line in output[:output.index("Batch:")].splitlines() if line.strip()]
    assert found[-7:] == ["a/x", "50mbit", "100mbit", "1gbit", "n2", "n10", "b/x"], found


def many(folder: pathlib.Path) -> None:
    log = study.make(folder)[3]
    (folder / "all").mkdir()
    for number in range(200):
        shutil.copy(log, folder / f"all/{number}.h5")
    begin = time.monotonic()
    output = report(folder, "all").stdout
    print(f"200 logs in {time.monotonic() - begin:.1f} s")
    for number in (0, 99, 199):
        has(output, f"\n  {number:<3}  ")


def typical_epoch(folder: pathlib.Path) -> None:
    """Of the epochs after the first: the middle one of three, the mean of two, and the first where it is the only one."""
    def run(name: str, *times: float) -> None:
        write_log(folder / f"{name}.h5", ranks=1, codec_names=[],
                  epochs=[EPOCH | {"epoch_s": time_s, "compute_s": time_s - 1, "data_s": 1} for time_s in times])

    run("three", 9, 6, 2, 4)
    run("two", 9, 2.39, 3.03)
    run("one", 9)
    quick(folder, "three.h5", "two.h5", "one.h5", "--csv", "tables")
    rows = {row["run"]: row for row in read_csv(folder / "tables/time.csv")}
    for name, epoch_s in (("three", 4.0), ("two", 2.71), ("one", 9.0)):
        assert abs(float(rows[name]["epoch_s"]) - epoch_s) < 1e-9, rows[name]
        assert abs(float(rows[name]["compute_s"]) - epoch_s + 1) < 1e-9, f"the parts add up: {rows[name]}"
    assert [row["timed"] for row in read_csv(folder / "tables/runs.csv")] == ["3", "2", "1"]


def above_one_hundred(folder: pathlib.Path) -> None:
    """An efficiency of 125 % is explained where it stands; one of 100 % is not."""
    for name, ranks, epoch_s in (("one", 1, 10), ("fast", 2, 4), ("ideal", 2, 5)):
        write_log(folder / f"{name}.h5", ranks=ranks, epochs=[EPOCH | {"epoch_s": epoch_s}] * 3,
                  codec_names=[] if ranks == 1 else ["none"])
    answer = quick(folder, "one.h5", "fast.h5")
    has(answer.stdout, " 125.0\n")
    has(words_of(answer), "An efficiency above 100 % (fast) does not mean", "An estimate below 0 is an efficiency above")
    assert "above 100 %" not in quick(folder, "one.h5", "ideal.h5").stdout


def hops_and_links(folder: pathlib.Path) -> None:
    """The log's number of messages in a row counts, for older logs the formula, else it is unknown. What a lab was asked
    for is shown, and on a shared medium all ranks' bytes count. An epoch: 8 s of computation, 40 steps / 4 = 10 steps."""
    lab = {"nominal_bit_per_s": 1e8, "nominal_delay_s": 0.1, "nominal_loss": 0.001, "nominal_is_shared": 0.0}
    common = {"ranks": 4, "epochs": [EPOCH] * 2, "link_bytes_per_s": 1e6, "link_latency_s": 0.5}
    write_log(folder / "said.h5", **common, **lab, topology_hops=np.array([3.0]), config={"topology": "star"})
    write_log(folder / "older.h5", **common, **lab)
    write_log(folder / "unknown.h5", **common, **lab, config={"topology": "star"})
    write_log(folder / "shared.h5", **common, **(lab | {"nominal_is_shared": 1.0, "nominal_bit_per_s": 4e6}))
    write_log(folder / "measured.h5", **common)
    answer = quick(folder, "said.h5", "older.h5", "unknown.h5", "shared.h5", "measured.h5", "--csv", "tables")
    rows = {row["run"]: row for row in read_csv(folder / "tables/network.csv")}
    # A rank sends 2 MB, all 8 MB: 0.16 s at 100 Mbit/s, 2 s at the measured 8; 16 s for all over 4 Mbit/s.
    for name, hops, least_s, link in (("said", "3.0", 8 + 10 * 3 * 0.1, "100 Mbit/s, 100 ms, 0.1 % loss"),
                                      ("older", "6", 8 + 10 * 6 * 0.1, "100 Mbit/s, 100 ms, 0.1 % loss"),
                                      ("unknown", "", 8.0, "100 Mbit/s, 100 ms, 0.1 % loss"),
                                      ("shared", "6", 16 + 6.0, "4 Mbit/s, 100 ms, 0.1 % loss, shared"),
                                      ("measured", "6", 8 + 10 * 6 * 0.5, "about 10 Mbit/s")):
        assert (rows[name]["hops"], rows[name]["link"]) == (hops, link), rows[name]
        assert abs(float(rows[name]["least_s"]) - least_s) < 1e-9, rows[name]
    has(answer.stdout, "  unknown  ")
    has(words_of(answer), "How many messages of unknown follow one another is unknown")
    links = answer.stdout[answer.stdout.index("\nLinks\n"):].split("\n\n")[0]
    lines = [" ".join(line.split()) for line in links.splitlines()]
    assert "shared 4.00 100 0.100 yes 8.00 500" in lines and "measured - - - - 8.00 500" in lines, links


def bytes_sent(folder: pathlib.Path) -> None:
    """Gradients, the error sample and everything else, as shares of all; logs without a count of the rest."""
    epochs = [EPOCH | {"sent_bytes": 8e6, "sample_bytes": 1e6, "control_bytes": 1e6}] * 2
    write_log(folder / "new.h5", ranks=2, epochs=epochs)
    without = [{key: value for key, value in epoch.items() if key != "control_bytes"} for epoch in epochs]
    write_log(folder / "old.h5", ranks=2, epochs=without, lacking=["control_bytes"])
    answer = quick(folder, "new.h5", "old.h5")
    sent = answer.stdout[answer.stdout.index("\nWhat was sent\n"):].split("\n\n")[0]
    lines = [" ".join(line.split()) for line in sent.splitlines()]
    assert "new 20.0 16.0 80.0 2.00 10.0 2.00 10.0" in lines and "old 18.0 16.0 88.9 2.00 11.1 - -" in lines, sent
    has(words_of(answer), "A dash: the log is of a dptrain that did not count these bytes")


def codecs_compared(folder: pathlib.Path) -> None:
    """q8 against q4 without a baseline: which is faster, at which loss, and whether 1,000 test images can tell. Runs with
    another learning rate are not compared."""
    for name, codec, epoch_s, accuracy, more in (("a", "q8", 10, 0.5, {}), ("b", "q4", 8, 0.48, {}),
                                                 ("c", "q2", 5, 0.3, {"lr": "9"})):
        write_log(folder / f"{name}.h5", ranks=4, codec_names=[codec], config={"compress": codec, "lr": "1", **more}, epochs=[
            EPOCH | {"epoch_s": epoch_s, "sent_bytes": 1e6 * epoch_s, "train_loss": epoch_s / 10, "test_accuracy": accuracy}
        ] * 3)
    answer = quick(folder, "a.h5", "b.h5", "c.h5")
    table = answer.stdout[answer.stdout.index("\nCodecs side by side\n"):].split("\n\n")[0]
    lines = [" ".join(line.split()) for line in table.splitlines()]
    # sqrt(0.48 * 0.52 / 1000) = 0.0158; twice the hypotenuse with 0.0158 is 4.5 points.
    assert "q4 8.00 1.25 8.00 80.0 0.800 -0.200 48.0 -2.0 1.6" in lines and not any(line[:2] == "q2" for line in lines), table
    has(
        words_of(answer), "q4 is the fastest with 8.00 s an epoch; q8 takes 10.0 s, 1.25 times as long. The last training "
        "loss is 0.800 with q4 and 1.000 with q8. The test accuracy is 48.0 % with q4 and 50.0 % with q8; this difference is "
        "not larger than 4.5 points, two standard errors.")
    assert "the machine was busier" not in answer.stdout
    write_log(folder / "b2.h5", ranks=4, codec_names=["q4"], config={"compress": "q4", "lr": "1"},
              epochs=[EPOCH | {"compute_s": 20, "epoch_s": 25, "sent_bytes": 4e6}] * 3)
    has(words_of(quick(folder, "a.h5", "b2.h5")), "But computation alone took 8.00 and 20.0 s")


def columns_and_epochs(folder: pathlib.Path) -> None:
    """No table has two columns of one name. Epochs count from 1 everywhere, and the report says so."""
    logs = study.make(folder)
    output = quick(folder, *(log.name for log in logs), "--markdown", "--csv", "tables").stdout
    heads = [line for line, below in zip(output.splitlines(), output.splitlines()[1:]) if below.startswith("|---")]
    assert len(heads) > 10, output
    for head in heads:
        titles = [title.strip() for title in head.strip("|").split("|")]
        assert len(titles) == len(set(titles)), f"a title is there twice: {head}"
    assert [row["epoch"] for row in read_csv(folder / "tables/epochs.csv")][:3] == ["1", "2", "3"]
    assert {row["best_epoch"] for row in read_csv(folder / "tables/learning.csv")} == {"3"}
    has(output, "Epochs count from 1, as on dptrain's console")
