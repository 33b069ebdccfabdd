"""Tables of logs with known numbers."""
from __future__ import annotations

import csv
import pathlib
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import study
from report_support import DPREPORT, EPOCH, has, parse_page, quick, read_csv, report, words_of
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
    # Nothing that a log or its name holds becomes HTML, a link or an image, not in tables, notes or problems either.
    bad = "<img src=x>&lt;![y](z)"
    (folder / f"{bad}.h5").write_bytes((folder / "four_q8.h5").read_bytes())
    (folder / f"broken {bad}.h5").write_bytes(b"no log")
    answer = subprocess.run([sys.executable, DPREPORT, "--markdown", f"{bad}.h5", f"broken {bad}.h5", "four_none.h5"],
                            cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert "<img" not in answer.stdout and not re.search(r"(?<!\\)\[", answer.stdout), answer.stdout
    has(answer.stdout, "&lt;img src=x>&amp;lt;!\\[y](z)")
    rows = {row["run"]: row for row in read_csv(folder / "tables/bandwidth.csv")}
    # Numbers in full: 15 MB * 8 / 14 s.
    assert abs(float(rows["four_q8"]["wire_rate"]) - 120 / 14) < 1e-9, rows
    assert {path.name
            for path in (folder / "tables").iterdir()} >= {"runs.csv", "epochs.csv", "ranks.csv", "buckets.csv", "tensors.csv"}


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
    for name, hops, least_s, link in (("said", "3", 8 + 10 * 3 * 0.1, "100 Mbit/s, 100 ms, 0.1 % loss"),
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


def predictions(folder: pathlib.Path) -> None:
    """Beside the typical epoch's mean over ranks, 10 steps in 10 s, of which 2 s are exposed, whatever rank 0's steps were;
    with bits= beside the mean of all epochs. Logs without a prediction are left out, and those whose rounds begin
    or change after the first epoch."""
    epochs = [EPOCH | {"epoch": 0, "epoch_s": 20.0, "exposed_comm_s": 8.0},
              EPOCH | {"epoch": 1, "epoch_s": 10.0, "exposed_comm_s": 2.0}]
    common = {"ranks": 4, "epochs": epochs, "predicted_step_s": 0.9, "predicted_exposed_comm_s": 0.1}
    steps = [{"step": i, "step_s": 0.1 * i, "exposed_comm_s": 0.05 * i} for i in range(8)]
    write_log(folder / "typical.h5", **common, steps=steps, link_bytes_per_s=1e6, config={"compress": "auto"})
    write_log(folder / "bits.h5", **common, steps=steps, config={"compress": "ecq:bits=0.35"})
    write_log(folder / "older.h5", ranks=4, epochs=epochs)
    write_log(folder / "later.h5", **common, config={"sync-every": "4:from=2"})
    write_log(folder / "chosen.h5", **common, config={"sync-every": "auto"}, round_steps="1,4")
    write_log(folder / "longer.h5", **common, config={"sync-every": "auto"}, round_steps="2,3")
    write_log(folder / "twos.h5", **common, config={"sync-every": "auto"}, round_steps="2,2")
    names = ("typical", "bits", "older", "later", "chosen", "longer", "twos")
    answer = quick(folder, *(f"{name}.h5" for name in names), "--csv", "tables")
    rows = {row["run"]: row for row in read_csv(folder / "tables/prediction.csv")}
    assert set(rows) == {"typical", "bits", "twos"}, rows
    for run, step_ms, error, waits_ms in (("typical", 1000, -0.1, 200), ("bits", 1500, -0.4, 500)):
        found = [float(rows[run][key]) for key in ("step_ms", "error", "waits_ms")]
        assert np.allclose(found, [step_ms, error, waits_ms]), rows[run]
    has(answer.stdout, "\nPrediction\n")
    assert "Prediction" not in quick(folder, "older.h5").stdout


def uncertain_links(folder: pathlib.Path) -> None:
    """A rate that did not become steady is said to be uncertain wherever shares of it stand; a lab's rate is known. The
    bucket size that was chosen is shown, also in advice."""
    common = {"ranks": 4, "epochs": [EPOCH] * 2, "link_bytes_per_s": 1e6, "link_latency_s": 0.5}
    write_log(folder / "steady.h5", **common, link_uncertainty=0.05, bucket_bytes=1e6, config={"bucket-mb": "auto"})
    write_log(folder / "shaky.h5", **common, link_uncertainty=0.5, bucket_bytes=8388608.0, config={"bucket-mb": "auto"})
    write_log(folder / "lab.h5", **common, link_uncertainty=0.5, nominal_bit_per_s=4e6, nominal_delay_s=0.0, nominal_loss=0.0)
    answer = quick(folder, "steady.h5", "shaky.h5", "lab.h5")
    said = words_of(answer)
    has(said, "The rate of the link of shaky was measured and is uncertain by 50 %; so are shares of it.")
    assert "link of steady" not in said and "link of lab" not in said, said
    differ = answer.stdout[answer.stdout.index("\nWhat the runs differ in\n"):].split("\n\n")[0]
    has(differ, "auto (8.39)")
    has(differ, "auto (1.00)")
    quick_epoch = EPOCH | {"exposed_comm_s": 4, "wire_s": 1, "backward_s": 6, "comm_s": 5}
    write_log(folder / "buckets.h5", **(common | {"epochs": [quick_epoch] * 2, "link_latency_s": 1e-6}), bucket_bytes=8388608.0,
              config={"bucket-mb": "auto"})
    has(words_of(quick(folder, "buckets.h5")), "Lower --bucket-mb (now auto (8.39))")


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
    assert "statistics, MB" not in sent, sent
    with_statistics = [epoch | {"statistics_bytes": 10e6} for epoch in epochs]
    write_log(folder / "sync.h5", ranks=2, epochs=with_statistics)
    answer = quick(folder, "sync.h5")
    sent = answer.stdout[answer.stdout.index("\nWhat was sent\n"):].split("\n\n")[0]
    assert "40.0 16.0 40.0 2.00 5.00 2.00 5.00 20.0 50.0" in " ".join(sent.split()), sent
    has(words_of(answer), "Statistics: mean and deviation over all ranks")
    write_log(folder / "wire.h5", ranks=2, epochs=[epoch | {"wire_bytes": 12e6} for epoch in epochs])
    answer = quick(folder, "wire.h5", "new.h5")
    sent = answer.stdout[answer.stdout.index("\nWhat was sent\n"):].split("\n\n")[0]
    lines = [" ".join(line.split()) for line in sent.splitlines()]
    assert "wire 20.0 24.0 16.0 80.0 2.00 10.0 2.00 10.0" in lines and "new 20.0 - 16.0 80.0 2.00 10.0 2.00 10.0" in lines, sent
    has(words_of(answer), "On the wire: with the headers of TCP, IP and Ethernet")


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
        "loss is 0.800 with q4 and 1.000 with q8. The test accuracy is 48.0 % with q4 and 50.0 % with q8; they are not "
        "different (by the rule of Loss and accuracy, 4.5 points).")
    assert "the machine was busier" not in answer.stdout
    write_log(folder / "b2.h5", ranks=4, codec_names=["q4"], config={"compress": "q4", "lr": "1"},
              epochs=[EPOCH | {"compute_s": 20, "epoch_s": 25, "sent_bytes": 4e6}] * 3)
    has(words_of(quick(folder, "a.h5", "b2.h5")), "But computation alone took 8.00 and 20.0 s")
    # Rounds are an exchange of their own, and what an exchange sends less and less of counts in all epochs.
    for name, every in (("h4", "4"), ("h16", "16")):
        write_log(folder / f"{name}.h5", ranks=4, config={"compress": "q8", "lr": "1", "sync-every": every}, epochs=[
            EPOCH | {"epoch_s": epoch_s, "sent_bytes": sent} for epoch_s, sent in ((11, 9e6), (10, 2e6), (9, 1e6))])
    quick(folder, "a.h5", "h4.h5", "h16.h5", "--csv", "tables")
    rows = {row["codec"]: row for row in read_csv(folder / "tables/codecs.csv")}
    assert list(rows) == ["q8", "q8, H = 4", "q8, H = 16"], rows
    assert {float(row["sent_mb"]) for row in rows.values()} == {10.0, 4.0}, rows


def columns_and_epochs(folder: pathlib.Path) -> None:
    """No table has two columns of one name. Epochs count from 1 in the report and from 0 in files, and both say so.
    Whole numbers are whole in files."""
    logs = study.make(folder)
    output = quick(folder, *(log.name for log in logs), "--markdown", "--csv", "tables").stdout
    heads = [line for line, below in zip(output.splitlines(), output.splitlines()[1:]) if below.startswith("|---")]
    assert len(heads) > 10, output
    for head in heads:
        titles = [title.strip() for title in head.strip("|").split("|")]
        assert len(titles) == len(set(titles)), f"a title is there twice: {head}"
    assert [row["epoch"] for row in read_csv(folder / "tables/epochs.csv")][:3] == ["0", "1", "2"]
    assert {row["best_epoch"] for row in read_csv(folder / "tables/learning.csv")} == {"2"}
    has(output, "Epochs count from 1, as on dptrain's console", "| one | 1 | 42.0 |", "files (the log and --csv) count them from 0")
    for table, columns in (("ranks", ["rank"]), ("buckets", ["bucket", "elements"]), ("tensors", ["elements", "longest_wait", "epoch"]), ("network", ["ranks", "batch", "hops"]),
                           ("bandwidth", ["ranks", "reduces"]), ("runs", ["samples", "ranks", "batch", "epochs", "timed"])):
        for row in read_csv(folder / f"tables/{table}.csv"):
            for column in columns:
                assert re.fullmatch("[0-9]*", row[column]), (table, column, row)


def columns_are_documented(folder: pathlib.Path) -> None:
    """Every heading of a CSV file is in the file's row in experiments/README.md."""
    logs = study.make(folder)
    quick(folder, *(log.name for log in logs), "--csv", "tables")
    readme = (pathlib.Path(DPREPORT).parent / "README.md").read_text(encoding="utf-8")
    files = sorted((folder / "tables").glob("*.csv"))
    assert len(files) > 15, files
    for path in files:
        table = re.sub("_[0-9]+$", "_N", path.stem)
        rows = [line for line in readme.splitlines() if line.startswith(f"| `{table}.csv` |")]
        assert len(rows) == 1, f"{table}.csv: {rows}"
        with open(path, encoding="utf-8", newline="") as file:
            heads = next(csv.reader(file))
        for head in heads:
            known = re.sub("(?<=_)[0-9]+$", "N", head) if table.startswith("batch") else re.sub("^link .*", "link RATE", head)
            assert table == "differences" or f"`{known}`" in rows[0], f"{path.name}: '{known}' is missing in: {rows[0]}"


def different_by_one_rule(folder: pathlib.Path) -> None:
    """500 of 1,000 images have a standard error of 1.58 points, so accuracies differ from about 4.5 points on. The front and
    the comparison of codecs judge alike, and the rule stands once on the page."""
    def run(name: str, codec: str, sent_mb: float, accuracy: float, **config: str) -> None:
        write_log(folder / f"{name}.h5", ranks=2, codec_names=[codec], config={"compress": codec} | config, epochs=[
            EPOCH | {"sent_bytes": 1e6 * sent_mb, "test_accuracy": accuracy, "epoch_s": sent_mb}] * 2)

    def front(*names: str) -> list[str]:
        quick(folder, *(f"{name}.h5" for name in names), "--csv", "tables")
        return [row["run"] for row in read_csv(folder / "tables/learning.csv") if row["front"]]

    for name, codec, sent_mb, accuracy in (("a", "q2", 1, 0.46), ("b", "q4", 2, 0.49), ("c", "q8", 4, 0.51),
                                           ("d", "none", 8, 0.515)):
        run(name, codec, sent_mb, accuracy)
    # b is not different from a, c is; d is not different from c.
    assert front("a", "b", "c", "d") == ["a", "c"]
    answer = quick(folder, "a.h5", "b.h5", "--html", "page.html")
    has(words_of(answer), "they are not different (by the rule of Loss and accuracy, 4.5 points)")
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert page.count("Two test accuracies are called different if") == 1 and "hardly different" not in page
    has(words_of(quick(folder, "a.h5", "c.h5")), "; they are different (by")
    # Three seeds of q8 whose accuracies have a standard deviation of 5 points: now c is no better than a.
    run("c2", "q8", 4, 0.46, seed="2")
    run("c3", "q8", 4, 0.56, seed="3")
    assert front("a", "b", "c", "c2", "c3", "d") == ["a", "d"]
    error = {row["run"]: float(row["accuracy_error"]) for row in read_csv(folder / "tables/learning.csv")}
    assert abs(error["c"] - 0.05) < 1e-9 and abs(error["a"] - 0.01576) < 1e-5, error
    # In the plot seeds are one point, which has the exchange's name.
    quick(folder, *(f"{name}.h5" for name in ("a", "b", "c", "c2", "c3", "d")), "--svg", "plots")
    words = [text.text for text in parse_page(folder / "plots/pareto.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"a", "b", "q8", "d"} <= set(words) and "c" not in words and any("mean of the seeds" in str(word) for word in words), words
    # The same seed twice is no second one; all test images of CIFAR-10 are 10,000.
    shutil.copy(folder / "c2.h5", folder / "again.h5")
    run("e", "fp16", 6, 0.5, **{"dataset": "cifar10", "limit-test": "0"})
    quick(folder, "c2.h5", "again.h5", "e.h5", "--csv", "tables")
    error = {row["run"]: float(row["accuracy_error"]) for row in read_csv(folder / "tables/learning.csv")}
    assert abs(error["again"] - 0.01576) < 1e-5 and abs(error["e"] - 0.005) < 1e-9, error


def advice_is_imperative(folder: pathlib.Path) -> None:
    """For each cause the imperative, its reason and the gain; nothing where nothing is to be done. An epoch of 20 s: 10 of
    computation, of which backward takes 6, and 10 of exposed communication. ResNet-20's 1,000,000 values here are 6 MB a rank
    and step of 10, in fp32."""
    usual = {"epoch_s": 20, "compute_s": 10, "backward_s": 6, "exposed_comm_s": 10, "comm_s": 14, "wire_s": 14,
             "sent_bytes": 240e6, "received_bytes": 240e6, "test_accuracy": 0.5}

    def said(name: str, config: dict[str, str] | None = None, ranks: int = 4, rank_rows=(), more: tuple[str, ...] = (),
             attributes: dict | None = None, **epoch: float) -> str:
        write_log(folder / f"{name}.h5", ranks=ranks, epochs=[usual | epoch] * 3, config=config or {}, rank_rows=rank_rows,
                  **(attributes or {}))
        text = " ".join(quick(folder, f"{name}.h5", *more).stdout.partition("\nWhat to do\n")[2].split("\n\n")[0].split())
        return text if text.startswith("Nothing to do") else text.partition(f"{name}: ")[2]

    gain = "an epoch would then take about {} s instead of 20.0 s"
    for name, start, reasons, arguments in (
            ("data", "Raise --loader-threads (now 2)", ["waits for them 60 % of the time, 12.0 s"],
             {"data_s": 12, "exposed_comm_s": 0, "config": {"loader-threads": "2"}}),
            ("codec", "Try --compress fp16:", ["14.0 s an epoch at 32.0 bits", "about 7.00 s", "behind the 8.00 s of backward",
                                               gain.format("13.0")], {"backward_s": 8}),
            ("coarse", "Try --compress q8:", [gain.format("10.0")], {}),
            ("warm", "Try --compress q2 --compress-warmup 1:", ["1.00 s, which fits"], {"backward_s": 1, "wire_s": 16}),
            ("batch", "Raise --batch-size (now 100):", ["would not fit behind", "another learning rate"], {"backward_s": 0.1}),
            ("buckets", "Lower --bucket-mb (now 4):", ["sent earlier", gain.format("10.0")],
             {"wire_s": 5, "config": {"bucket-mb": "4"}}),
            ("cores", "Start fewer ranks per host:", ["share cores"], {"wire_s": 5, "attributes": {"cores_per_rank": 0.5}}),
            ("late", "Give rank 2 (node3) more cores", ["64 % of the communication is waiting", "computes 48 % longer"],
             {"peer_wait_s": 9, "rank_rows": [{"epoch": e, "rank": r, "host": r, "compute_s": 20 if r == 2 else 11 + r // 3}
                                              for e in range(3) for r in range(4)]}),
            ("turns", "Look at some steps with --trace", ["none of them is much slower"], {"peer_wait_s": 9}),
            ("overlap", "Use --overlap on:", [gain.format("14.0")], {"config": {"overlap": "off"}}),
            ("coding", "Try --compress none:", ["64 % of the communication is encoding"],
             {"encode_s": 5, "decode_s": 4, "wire_s": 0.5, "sent_bytes": 60e6, "config": {"compress": "q8"}}),
            ("server", "Use --topology ring:", ["rank 0", gain.format("13.0")], {"config": {"topology": "ps"}}),
            ("latency", "Raise --batch-size", ["12.0 s of the 14.0 s", gain.format("14.0")],
             {"attributes": {"link_latency_s": 0.2}}),
            ("hidden", "Nothing to do for hidden: nearly all of the exchange", [], {"exposed_comm_s": 0.5}),
            ("single", "Nothing to do for single: no rank exchanges", [], {"ranks": 1, "exposed_comm_s": 0, "comm_s": 0})):
        text = said(name, **arguments)
        assert text.startswith(start), (name, text)
        for reason in reasons:
            assert reason in text, (name, reason, text)
    # Another run's log shows the gain; not if its accuracy is different and smaller, or its machine was busier.
    common = {"sent_bytes": 30e6, "received_bytes": 30e6, "exposed_comm_s": 2, "wire_s": 2}
    said("fast", {"compress": "q4"}, epoch_s=12, **common)
    has(said("coarse", more=("fast.h5",)), "Use --compress q4: exposed communication is 50 % of the epoch; fast, which differs "
        "only in the codec, takes 12.0 s an epoch instead of 20.0 s, and reaches a test accuracy of 50.0 % instead of 50.0 %, "
        "which is not different.")
    said("worse", {"compress": "q4"}, epoch_s=12, **common | {"test_accuracy": 0.4})
    said("busy", {"compress": "q4"}, epoch_s=12, **common | {"compute_s": 6})
    for other in ("worse.h5", "busy.h5"):
        has(said("coarse", more=(other,)), "Try --compress q8:")


def only_what_there_is(folder: pathlib.Path) -> None:
    """What is zero in all runs is in no legend."""
    write_log(folder / "a.h5", ranks=2, epochs=[EPOCH] * 2)
    write_log(folder / "b.h5", ranks=2, epochs=[EPOCH | {"eval_s": 1}] * 2)
    write_log(folder / "c.h5", ranks=2, epochs=[EPOCH | {"eval_s": 1, "checkpoint_s": 1}] * 2)
    for name, text in (("a", ""), ("b", "Evaluation is in none of them."), ("c", "Evaluation and checkpoints are in none of")):
        words = words_of(quick(folder, f"{name}.h5"))
        assert text in words and ("checkpoint" in words) == (name == "c") and ("none of them" in words) == bool(text), words
