#!/usr/bin/env python3
"""Whole runs of dptrain, seen through their logs: run_test.py DPTRAIN MPIRUN CASE."""
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib

try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}; apt-get install python3-h5py")
    sys.exit(77)

DPTRAIN, MPIRUN, CASE = sys.argv[1:4]
SMALL = {"--model": "resnet20", "--limit-train": "200", "--limit-test": "50", "--batch-size": "16",
         "--epochs": "2", "--lr": "0.05", "--lr-schedule": "constant", "--threads": "1", "--autotune": "off",
         "--log-steps": "1"}


def command(ranks: int, log: str, *options: str) -> list[str]:
    """The small run with some options replaced or added: "--name", "value", ..."""
    chosen = SMALL | dict(zip(options[::2], options[1::2])) | {"--log": log}
    return [MPIRUN, "-np", str(ranks), DPTRAIN, *(word for pair in chosen.items() for word in pair)]


def run(ranks: int, log: str, *options: str) -> h5py.File:
    """Runs to the end in the current folder and opens the log."""
    done = subprocess.run(command(ranks, log, *options), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return h5py.File(log, "r")


def assert_same_training(a: h5py.File, b: h5py.File) -> None:
    for field in ("replica_hash", "train_loss", "test_loss", "test_accuracy", "sent_bytes"):
        assert np.array_equal(a["epochs"][field], b["epochs"][field]), field
    assert np.array_equal(a["steps"]["train_loss"], b["steps"]["train_loss"])


def same_seed_same_bits() -> None:
    first = run(3, "a.h5", "--compress", "q4")
    assert_same_training(first, run(3, "b.h5", "--compress", "q4"))
    other = run(3, "c.h5", "--compress", "q4", "--seed", "2")
    assert first["epochs"]["replica_hash"][0] != other["epochs"]["replica_hash"][0]


def choices_of_an_earlier_run() -> None:
    # Without a bucket size the two runs would choose it by their own measurements of the network.
    options = ("--compress", "q8", "--limit-train", "32", "--limit-test", "8", "--epochs", "1")
    first = run(2, "a.h5", *options, "--autotune", "on")
    again = run(2, "b.h5", *options, "--autotune", "a.h5")
    assert_same_training(first, again)
    # Other choices are taken, too, whatever would be measured here.
    algorithms = first["model"].attrs["algorithms"]
    first.close()
    swapped = algorithms.translate(str.maketrans({"\0": ""})).replace("= winograd", "= x").replace(
        "= direct", "= winograd").replace("= x", "= direct")
    with h5py.File("a.h5", "r+") as log:
        log["model"].attrs["algorithms"] = swapped
        log.attrs["bucket_bytes"] = 50000.0
    other = run(2, "c.h5", *options, "--autotune", "a.h5")
    assert other["model"].attrs["algorithms"] == swapped != algorithms
    assert other["model"].attrs["buckets"] > again["model"].attrs["buckets"]
    for refused, reason in ((("--batch-size", "8"), "that run had the batch size per rank 16, and this one has 8"),
                            (("--threads", "2"), "that run had the device ")):
        done = subprocess.run(command(2, "d.h5", *options, "--autotune", "a.h5", *refused), capture_output=True,
                              text=True, timeout=200)
        assert done.returncode == 2 and f"dptrain: --autotune a.h5: {reason}" in done.stderr, done
    with h5py.File("a.h5", "r+") as log:
        log["model"].attrs["algorithms"] = "".join(swapped.splitlines(keepends=True)[1:])
    done = subprocess.run(command(2, "d.h5", *options, "--autotune", "a.h5"), capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and "has no choice for 'conv " in done.stderr, done


def auto_is_repeated() -> None:
    # The rate follows measured times, so that two runs differ; the rates of an earlier one give its bits.
    options = ("--compress", "auto", "--limit-train", "320", "--limit-test", "8", "--epochs", "2")
    first = run(2, "a.h5", *options, "--autotune", "on")
    assert len(first["steps"]) == 2 * int(first["epochs"][0]["samples"] / first["epochs"][0]["global_batch"])
    planned, wished = first["steps"]["planned_bits"], first["steps"]["wished_bits"]
    assert len(set(planned)) > 1, planned
    # Each plan is the wish of the step before within the limits, or a dense form that the links carry. The most is what a run
    # with 0.4 bits in the mean would plan there, 6^(1 - 2 progress) times its least, but not below 0.4.
    progress = np.arange(len(planned) - 1) / len(planned)
    most = np.maximum(0.4, 0.4 * 2 / (5 / np.log(6) + 1) * 6 ** np.maximum(0, 1 - 2 * progress))
    dense = np.isin(planned, (4.015625, 8.015625, 16, 32))
    follows = np.where(dense[1:], wished[:-1] >= planned[1:], np.abs(planned[1:] / np.clip(wished[:-1], 0.1, most) - 1) < 1e-9)
    assert follows[1:].all() and planned[0] == planned[1] == 0.35, (planned, wished)
    # Dense forms have exactly these bits; else the common step comes nearer by 42 % at most (segments have their own).
    sent = (first["steps"]["partial_bits"] + first["steps"]["total_bits"]) / 2
    assert np.abs(sent - planned)[dense].max(initial=0.0) < 0.05, (planned, sent)
    assert ((0.02 < sent) & (sent < 1.5))[~dense].all(), (planned, sent)
    are_coded = ~dense[1:] & ~dense[:-1]
    for site in ("partial_step", "total_step"):
        change = np.abs(np.diff(np.log(first["steps"][site])))[are_coded]
        assert (change < 0.3505).all(), (site, change)
    assert all(growth >= 0 for growth in first["steps"]["residual_growth"])
    assert all(factor == 1 for factor in first["steps"]["guard_factor"])
    assert all(rate > 0 for rate in first["steps"]["link_bytes_per_s"][5:])
    buckets = len(set(first["buckets"]["bucket"]))
    binding = first["steps"]["binding_bucket"][5:]
    assert all(0 <= bucket < buckets for bucket in binding if not np.isnan(bucket)) and not np.isnan(binding).all()
    again = run(2, "b.h5", *options, "--autotune", "a.h5")
    assert list(again["steps"]["planned_bits"]) == list(planned)
    assert_same_training(first, again)
    run(2, "q8.h5", "--compress", "q8", "--limit-train", "32", "--limit-test", "8", "--epochs", "1", "--autotune", "on")
    done = subprocess.run(command(2, "d.h5", *options, "--autotune", "q8.h5"), capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and "the log lacks the rate of every step" in done.stderr, done


def auto_follows_the_link() -> None:
    # On every topology with which auto may go: a link that carries hardly anything leaves the least bits, and a fast one
    # far more, before limits; how many follows from the times of steps.
    for topology in ("ring", "direct", "tree", "ps"):
        wished = {}
        for rate in ("200kbit", "1gbit"):
            log = run(3, f"{topology}-{rate}.h5", "--compress", "auto", "--topology", topology, "--throttle", rate,
                      "--limit-train", "480", "--limit-test", "8", "--epochs", "1", "--check-replicas", "step")
            wished[rate] = np.median(log["steps"]["wished_bits"][4:])
            if rate == "200kbit":
                assert log["steps"]["planned_bits"][-1] == 0.1, (topology, list(log["steps"]["planned_bits"]))
        assert wished["1gbit"] > 10 * wished["200kbit"], (topology, wished)


def shares() -> None:
    # Weights are deterministic, and every image is seen: 200 images in steps of 48, the last one of 8.
    options = ("--shares", "3:2:1", "--compress", "q4")
    first = run(3, "a.h5", *options)
    assert_same_training(first, run(3, "b.h5", *options))
    assert list(first["epochs"]["samples"]) == [200, 200]
    assert [tuple(row)[:3] for row in first["shares"]] == [(1, 0, 24), (1, 1, 16), (1, 2, 8)], list(first["shares"])
    # The gradient is that of the same images: fp32, whose sums differ by rounding, and batch normalisation over all ranks.
    same = ("--compress", "none", "--sync-bn", "on", "--epochs", "1", "--limit-train", "96")
    even, uneven = run(3, "c.h5", *same), run(3, "d.h5", *same, "--shares", "5:1:2")
    assert len(even["shares"]) == 0
    losses = [np.array(log["steps"]["train_loss"]) for log in (even, uneven)]
    assert losses[0].shape == (2,) and np.all(np.abs(losses[0] / losses[1] - 1) < 1e-3), losses
    assert abs(even["epochs"]["test_loss"][0] / uneven["epochs"]["test_loss"][0] - 1) < 1e-3
    # In parts, too.
    run(3, "e.h5", *options, "--accumulate", "2")
    # Equal weights are even shares, bit for bit. One host is one machine, whose ranks share alike.
    even = run(3, "f.h5", "--epochs", "1")
    assert_same_training(even, run(3, "g.h5", "--epochs", "1", "--shares", "7:7:7"))
    alike = run(3, "h.h5", "--epochs", "1", "--shares", "auto", "--limit-train", "1000")
    assert [tuple(row)[:3] for row in alike["shares"]] == [(1, 0, 16), (1, 1, 16), (1, 2, 16)], list(alike["shares"])
    # What a log says is repeated, from the step that it names.
    for log in ("i.h5", "j.h5"):
        shutil.copy("h.h5", "edited.h5")
        with h5py.File("edited.h5", "r+") as file:
            rows = np.concatenate([file["shares"][:]] * 3)
            rows["step"][3:6], rows["images"][3:6] = 5, (30, 10, 8)
            rows["step"][6:9], rows["images"][6:9] = 12, (8, 20, 20)
            file["shares"].resize((9,))
            file["shares"][:] = rows
        run(3, log, "--epochs", "1", "--shares", "auto", "--limit-train", "1000", "--autotune", "edited.h5").close()
    with h5py.File("i.h5") as first, h5py.File("j.h5") as again:
        assert_same_training(first, again)
        assert first["epochs"]["replica_hash"][0] != alike["epochs"]["replica_hash"][0]
        same = first["steps"]["train_loss"][:] == alike["steps"]["train_loss"][:]
        assert all(same[:4]) and not any(same[5:]), same
        columns = ["step", "rank", "images"]
        assert len(first["shares"]) == 9 and (first["shares"][:][columns] == rows[columns]).all(), first["shares"][:]
    # Also from the first step on; and the log of a repeated run says as much as the one that it repeats.
    with h5py.File("i.h5", "r+") as file:
        rows = file["shares"][:]
        rows["images"][:3] = 28, 12, 8
        file["shares"][:] = rows
    for before, log in (("i.h5", "k.h5"), ("k.h5", "l.h5")):
        run(3, log, "--epochs", "1", "--shares", "auto", "--limit-train", "1000", "--autotune", before).close()
    with h5py.File("k.h5") as first, h5py.File("l.h5") as again:
        assert_same_training(first, again)
        assert not any(first["steps"]["train_loss"][:] == alike["steps"]["train_loss"][:])


def overlap_changes_nothing() -> None:
    options = ("--compress", "q8", "--bucket-mb", "0.1")
    assert_same_training(run(2, "on.h5", "--overlap", "on", *options),
                         run(2, "off.h5", "--overlap", "off", *options))


def batches_in_parts_and_by_schedule() -> None:
    # 200 images: 16 x 2 ranks x 3 parts are steps of 96, 96 and 8; BatchNorm and bits as with 6 ranks.
    parts = run(2, "parts.h5", "--accumulate", "3", "--ema", "0.9", "--lookahead", "5:0.5", "--optimizer", "adam",
                "--lr", "0.001")
    assert parts["epochs"]["global_batch"].tolist() == [96, 96] and parts["epochs"]["samples"].tolist() == [200, 200]
    assert len(parts["steps"]) == 6 and np.isfinite(parts["steps"]["train_loss"]).all()
    # One exchange a step: the bytes are those of a run that computes its batch at once.
    whole = run(2, "whole.h5", "--batch-size", "48", "--epochs", "1")
    assert abs(int(whole["epochs"]["sent_bytes"][0]) / int(parts["epochs"]["sent_bytes"][0]) - 1) < 0.01

    done = subprocess.run(command(2, "list.h5", "--batch-schedule", "2:64,3:96", "--epochs", "3", "--lr-scaling", "linear"),
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done
    listed = h5py.File("list.h5", "r")["epochs"][:]
    assert listed["global_batch"].tolist() == [32, 64, 96] and listed["samples"].tolist() == [200] * 3
    assert np.allclose(listed["learning_rate"], [0.1, 0.2, 0.3]), listed["learning_rate"]
    assert "epoch 2: 64 images per step instead of 32 (2 ranks, 1 part each), learning rate x 2" in done.stdout, done
    # With --accumulate a part keeps its size, so that a larger batch has more of them.
    done = subprocess.run(command(1, "more.h5", "--batch-schedule", "2:64", "--accumulate", "2", "--limit-train", "64"),
                          capture_output=True, text=True, timeout=200)
    assert "epoch 2: 64 images per step instead of 32 (1 ranks, 4 parts each)" in done.stdout, done

    # The loss falls below a half of the first epoch's (to 0.04 to 0.29 with three seeds).
    grown = run(1, "grown.h5", "--batch-schedule", "dynamic:max=48", "--augment", "off", "--limit-train", "48",
                "--limit-test", "4", "--batch-size", "8", "--epochs", "25", "--lr", "0.01")["epochs"][:]
    losses, batches = grown["train_loss"], grown["global_batch"]
    for epoch in range(1, len(grown)):
        factor = max(1, 2.0 ** (losses[0] // losses[epoch - 1] - 1))
        assert batches[epoch] == min(48, 8 * factor), (epoch, losses, batches)
    assert batches[-1] > 8, (losses, batches)


def batch_beyond_the_memory_comes_in_parts() -> None:
    if os.environ.get("DP_SANITIZE"):
        print("skipped: a sanitizer maps more than ulimit -v")
        sys.exit(77)
    options = {"--model": "resnet20", "--dataset": "synthetic", "--limit-train": "512", "--limit-test": "8",
               "--batch-size": "32", "--lr": "0.01", "--threads": "1", "--autotune": "off", "--log": "none"}

    def limited(kilobytes: int, *more: str) -> subprocess.CompletedProcess:
        chosen = options | dict(zip(more[::2], more[1::2]))
        words = shlex.join([DPTRAIN, *(word for pair in chosen.items() for word in pair)])
        return subprocess.run(["bash", "-c", f"ulimit -v {kilobytes}; exec {words}"], capture_output=True, text=True,
                              timeout=200)

    # A batch that does not fit tells at once how much a limit leaves. 512 images take 0.74 GiB, half of them 0.37.
    for tight in range(500_000, 3_000_000, 50_000):
        left = re.search(r"ulimit -v leaves ([0-9.]+) GiB", limited(tight, "--batch-size", "512").stderr)
        if left and float(left[1]) >= 0.5:
            break
    assert left and float(left[1]) < 0.7, left
    done = limited(tight, "--batch-schedule", "2:512", "--epochs", "2")
    assert done.returncode == 0, done
    assert "epoch 2: 512 images per step instead of 32 (1 ranks, 2 parts each)" in done.stdout, done.stdout
    done = limited(6_000_000, "--batch-schedule", "2:512", "--epochs", "2")
    assert done.returncode == 0, done
    assert "epoch 2: 512 images per step instead of 32 (1 ranks, 1 part each)" in done.stdout, done.stdout


def sync_bn() -> None:
    # Two steps of 3 x 16 and one of 2, which leaves a rank without images: twice the same bits.
    options = ("--limit-train", "98", "--sync-bn", "on", "--compress", "q8")
    first = run(3, "a.h5", *options)
    again = run(3, "b.h5", *options)
    for field in ("replica_hash", "train_loss", "test_loss", "statistics_bytes"):
        assert np.array_equal(first["epochs"][field], again["epochs"][field]), field
    epochs = first["epochs"][:]
    # 19 layers with 688 channels, twice: 2 x 688 + 19 floats and 19 headers and seals to each of two others, on 3 ranks.
    bytes_per_step = 2 * (4 * (2 * 688 + 19) + 20 * 19) * 2 * 3
    assert (epochs["statistics_bytes"] == 3 * bytes_per_step).all(), epochs["statistics_bytes"]
    assert (epochs["statistics_s"] > 0).all() and (epochs["statistics_s"] <= epochs["exposed_comm_s"]).all()
    # One rank on the same batches, whose statistics are those of all images anyway.
    whole = run(1, "c.h5", "--limit-train", "98", "--batch-size", "48", "--sync-bn", "on")["epochs"][:]
    same = run(1, "d.h5", "--limit-train", "98", "--batch-size", "48")["epochs"][:]
    for field in ("replica_hash", "train_loss", "test_loss"):
        assert np.array_equal(whole[field], same[field]), field
    assert not whole["statistics_bytes"].any() and not whole["statistics_s"].any()
    exact = run(3, "e.h5", "--limit-train", "98", "--sync-bn", "on")["epochs"][:]
    # Until the two have drifted apart, as any two roundings do.
    assert np.allclose(exact["train_loss"][0], whole["train_loss"][0], rtol=1e-4), (exact["train_loss"], whole["train_loss"])
    off = run(3, "f.h5", "--limit-train", "98")["epochs"][:]
    assert not off["statistics_bytes"].any() and off["replica_hash"][-1] != exact["replica_hash"][-1]


def gpu_sync_bn() -> None:
    # As on a CPU, with the gradients on both paths: the same bits on both, and what the CPU learns.
    # 13 images in steps of 3 x 2: the last one has one, so that two ranks have none.
    gpu = (*GPU, "--limit-train", "13", "--limit-test", "4", "--batch-size", "2", "--epochs", "1", "--sync-bn", "on",
           "--bucket-mb", "0.1")
    logs = [run(3, f"{path}.h5", *gpu, "--gpu-exchange", path)["epochs"][:] for path in ("host", "device")]
    for field in ("replica_hash", "train_loss", "test_loss"):
        assert np.array_equal(logs[0][field], logs[1][field]), field
    assert logs[0]["statistics_s"][0] > 0, logs[0]
    cpu = run(3, "cpu.h5", *gpu, "--device", "cpu")["epochs"][:]
    assert np.array_equal(cpu["statistics_bytes"], logs[0]["statistics_bytes"])
    assert np.allclose(cpu["train_loss"], logs[0]["train_loss"], rtol=2e-3), (cpu["train_loss"], logs[0]["train_loss"])


def gpu_rounds() -> None:
    # Both paths of a GPU have the same bits, whatever is overlapped, and learn what the CPU learns: with this learning rate
    # roundings of other convolutions change the loss by 4e-5, and q4 in place of fp32 by 2e-3.
    gpu = (*GPU, "--sync-every", "2:outer-lr=0.7,outer-momentum=0.5", "--compress", "q8", "--epochs", "1",
           "--limit-train", "12", "--limit-test", "2", "--batch-size", "2", "--check-replicas", "step", "--bucket-mb",
           "0.1", "--lr", "0.01")
    logs = [run(2, f"{path}.h5", *gpu, "--gpu-exchange", path)["epochs"][:] for path in ("host", "device")]
    for field in ("replica_hash", "train_loss", "test_loss"):
        assert np.array_equal(logs[0][field], logs[1][field]), field
    # 3 steps an epoch: a round of two and one of one.
    assert logs[0]["exchanges"].tolist() == [2], logs[0]["exchanges"]
    cpu = run(2, "cpu.h5", *gpu, "--device", "cpu")["epochs"][:]
    assert np.array_equal(cpu["sent_bytes"], logs[0]["sent_bytes"])
    assert np.allclose(cpu["train_loss"], logs[0]["train_loss"], rtol=5e-4), (cpu["train_loss"], logs[0]["train_loss"])
    # A late sum, and a rate that looks at values, give the same bits, too.
    for number, more in enumerate((("--sync-every", "3:delay=1", "--compress", "q4"),
                                   ("--sync-every", "2", "--compress", "ecq:bits=1"))):
        logs = [run(2, f"{path}{number}.h5", *gpu, *more, "--limit-train", "20", "--gpu-exchange", path)["epochs"][:]
                for path in ("host", "device")]
        for field in ("replica_hash", "train_loss", "test_loss"):
            assert np.array_equal(logs[0][field], logs[1][field]), (more, field)
        cpu = run(2, f"cpu{number}.h5", *gpu, *more, "--limit-train", "20", "--device", "cpu")["epochs"][:]
        assert np.allclose(cpu["train_loss"], logs[0]["train_loss"], rtol=5e-4), (more, cpu["train_loss"], logs[0]["train_loss"])


def rounds() -> None:
    # Five steps an epoch in rounds of two, of which the last one has one step.
    log = run(3, "a.h5", "--compress", "q8", "--sync-every", "2", "--check-replicas", "step")
    assert log["steps"]["exchanged"].tolist() == [0, 1, 0, 1, 1] * 2, log["steps"]["exchanged"]
    assert log["epochs"]["exchanges"].tolist() == [3, 3]
    assert ((log["steps"]["sent_bytes"] > 0) == (log["steps"]["exchanged"] == 1)).all(), log["steps"]["sent_bytes"]
    assert np.isfinite(log["epochs"]["delivered_relative_error"]).all()
    every = run(3, "b.h5", "--compress", "q8")
    assert every["epochs"]["exchanges"].tolist() == [5, 5] and every["steps"]["exchanged"].all()
    assert (5 * log["epochs"]["sent_bytes"] == 3 * every["epochs"]["sent_bytes"]).all()
    for field in ("step_s", "comm_s", "exposed_comm_s", "optimizer_s"):
        assert (log["steps"][field] >= 0).all(), field
    # Rounds from the second epoch on: the first one is that of every-step exchange. A sum comes a step after it was
    # sent; the last one of an epoch is waited for.
    later = run(3, "c.h5", "--compress", "ecq:bits=1", "--sync-every", "3:from=2,outer-lr=0.7,outer-momentum=0.9,delay=1")
    same = run(3, "d.h5", "--compress", "ecq:bits=1")
    assert later["epochs"]["replica_hash"][0] == same["epochs"]["replica_hash"][0]
    assert later["steps"]["exchanged"].tolist() == [1] * 5 + [0, 0, 0, 1, 1], later["steps"]["exchanged"]
    assert later["epochs"]["exchanges"].tolist() == [5, 2] and later["steps"]["step"].tolist() == list(range(1, 11))
    assert np.isfinite(later["steps"]["train_loss"]).all() and np.isfinite(later["epochs"]["train_loss"]).all()
    # Whether rows of steps are logged or not, and however late a sum is, the bits are the same.
    rare = run(3, "e.h5", "--compress", "ecq:bits=1", "--sync-every", "3:from=2,outer-lr=0.7,outer-momentum=0.9,delay=1", "--log-steps", "0", "--throttle", "20mbit")
    assert np.array_equal(rare["epochs"]["replica_hash"], later["epochs"]["replica_hash"])
    # Rows of steps while an exchange is under way come later, but they come.
    log = run(3, "f.h5", "--sync-every", "4:delay=3", "--log-steps", "3")
    assert log["steps"]["step"].tolist() == [3, 6, 9] and np.isfinite(log["steps"]["train_loss"]).all(), log["steps"]["step"]


def rounds_are_chosen() -> None:
    # Over 20 Mbit/s an exchange in fp32 takes half a second, a step far less: the first epoch has rounds of two, since a
    # prediction says so, and then rounds are as long as they may be. Another run chooses the same from the log, and it
    # goes on after a checkpoint.
    options = ("--sync-every", "auto:max=3", "--limit-train", "112", "--limit-test", "8")
    slow = (*options, "--autotune", "on", "--throttle", "20mbit", "--checkpoint", "ck", "--checkpoint-every", "5steps")
    first = run(2, "a.h5", *slow)
    assert first.attrs["round_steps"] == "2,3", first.attrs["round_steps"]
    assert first["steps"]["exchanged"].tolist() == [0, 0, 1, 1] * 2, first["steps"]["exchanged"]
    done = subprocess.run(command(2, "b.h5", *options, "--autotune", "a.h5"), capture_output=True, text=True, timeout=200)
    told = "epoch 2: ranks exchange every 3 steps, and each exchange runs during the next 2, as in the earlier run"
    assert told in done.stdout, done
    again = h5py.File("b.h5", "r")
    assert again.attrs["round_steps"] == "2,3"
    assert_same_training(first, again)
    for name in os.listdir("ck"):
        if not name.startswith("step000000005."):
            os.unlink(f"ck/{name}")
    done = subprocess.run([*command(2, "c.h5", *slow), "--resume"], capture_output=True, text=True, timeout=200)
    assert "resumed from step 5 (epoch 2)" in done.stdout, done
    assert_same_training(first, h5py.File("c.h5", "r"))
    # Epochs of a codec's warm-up, in which fp32 is sent, are no reason for rounds. (q4 takes eight times less.)
    warm = run(2, "d.h5", *options, "--autotune", "on", "--throttle", "20mbit", "--compress", "q4", "--compress-warmup", "2",
               "--epochs", "3")
    assert warm.attrs["round_steps"] == "1,1,1", warm.attrs["round_steps"]


def auto_in_rounds() -> None:
    # The rate follows from what the link carries in a round, and a run repeats it; with a delay, too. Replicas are the
    # same after every exchange.
    options = ("--compress", "auto:max=6", "--sync-every", "3:delay=1", "--limit-train", "384",
               "--limit-test", "8", "--check-replicas", "step")
    first = run(2, "a.h5", *options, "--autotune", "on", "--throttle", "20mbit")
    exchanged = first["steps"]["exchanged"] == 1
    planned = first["steps"]["planned_bits"]
    assert np.isnan(planned[~exchanged]).all() and (planned[exchanged] >= 0.1).all(), planned
    assert first["epochs"]["exchanges"].tolist() == [4, 4]
    again = run(2, "b.h5", *options, "--autotune", "a.h5", "--throttle", "20mbit")
    assert (first["epochs"]["replica_hash"] != 0).all()
    assert_same_training(first, again)


def lost_rounds() -> None:
    # The first update makes a bias infinite: no round can be averaged, and all ranks go back. After five the run ends.
    small = ("--limit-train", "32", "--limit-test", "8", "--batch-size", "4", "--epochs", "1")
    run(2, "start.h5", *small, "--export", "start.weights.h5").close()
    with h5py.File("start.weights.h5", "r+") as weights:
        weights["last"]["linear.bias"][...] = 3e37
    lost = (*small, "--sync-every", "1", "--init", "start.weights.h5", "--lr", "100", "--weight-decay", "1")
    done = subprocess.run(command(2, "four.h5", *lost, "--export", "four.weights.h5"), capture_output=True, text=True,
                          timeout=200)
    assert done.returncode == 0 and done.stderr.count("all ranks go back to the start of the round") == 4, done
    with h5py.File("four.h5", "r") as log, h5py.File("start.weights.h5", "r") as start, \
            h5py.File("four.weights.h5", "r") as end:
        # Each rank has skipped the one step of each round.
        assert log["epochs"]["skipped_steps"].tolist() == [8], log["epochs"]["skipped_steps"]
        assert log["epochs"]["exchanges"].tolist() == [4], log["epochs"]["exchanges"]
        assert np.isfinite(log["epochs"]["train_loss"]).all()
        for name in ("linear.bias", "linear.weight"):
            assert np.array_equal(start["last"][name], end["last"][name]), name
    # A rank that has skipped steps of a lost round itself counts them once, and is told apart from the loss of the round.
    done = subprocess.run(command(2, "three.h5", *lost, "--sync-every", "3"), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "epoch 1: rank 1 skipped 2 steps, because the gradient was not finite" in done.stderr, done
    with h5py.File("three.h5", "r") as log:
        assert log["epochs"]["skipped_steps"].tolist() == [8], log["epochs"]["skipped_steps"]
    done = subprocess.run(command(2, "five.h5", *lost, "--limit-train", "64"), capture_output=True, text=True, timeout=200)
    assert done.returncode == 3 and done.stderr.count("all ranks go back to the start of the round") == 5, done
    assert done.stderr.count("the change of the parameters was not finite in 5 rounds in a row, up to step 4") == 1, done


def without_exchange() -> None:
    log = run(2, "off.h5", "--exchange", "off", "--compress", "q8", "--epochs", "20", "--augment", "off",
              "--limit-train", "96", "--batch-size", "8")
    epochs, ranks = log["epochs"][:], log["ranks"][:]
    assert len(log["buckets"]) == 0 and log["config"].attrs["exchange"] == "off"
    for field in ("sent_bytes", "received_bytes", "encode_s", "wire_s"):
        assert not ranks[field].any(), ranks[field]
    assert (ranks["compute_s"] > 0).all()
    losses = epochs["train_loss"]  # each rank learns its own part
    assert losses[-5:].mean() < losses[:5].mean() - 0.3, losses
    alone, usual = run(1, "alone.h5", "--exchange", "off"), run(1, "usual.h5")
    assert np.array_equal(alone["epochs"]["test_loss"], usual["epochs"]["test_loss"])


def compressed_run_learns() -> None:
    # The same data every epoch without augmentation: the loss must fall far below ln 10 = 2.30.
    options = ("--epochs", "40", "--augment", "off", "--limit-train", "96", "--limit-test", "4", "--batch-size", "8",
               "--nesterov", "on")
    for spec in ("none", "q8"):
        losses = run(2, f"{spec}.h5", "--compress", spec, *options)["epochs"]["train_loss"]
        assert losses[-1] < 1.2, f"{spec}: {losses}"


def velocity() -> None:
    # While a warm-up sends fp32, velocities add up to that of SGD. Only the order of additions differs. In so small a run
    # that grows twentyfold with every step, to 7e-5 of the fourth loss; a momentum that is wrong changes it by per cents.
    options = ("--topology", "direct", "--nesterov", "on", "--weight-decay", "0.1", "--no-decay", "bn",
               "--decay-factors", "linear.*=3")
    plain = run(2, "none.h5", "--compress", "none", *options)["steps"]["train_loss"][:]
    warm = run(2, "warm.h5", "--compress", "ecq:bits=0.5,velocity=on", "--compress-warmup", "1", *options)
    assert np.allclose(warm["steps"]["train_loss"][:4], plain[:4], rtol=3e-4), (warm["steps"]["train_loss"][:], plain)
    # One rank's step of Adam before the exchange is Adam's step. Weight decay is in the gradient of adam alone. Roundings
    # grow here, too: with AVX-512 to 5e-4 of the sixth loss.
    options = ("--lr", "0.001", "--weight-decay", "0.1", "--no-decay", "bn")
    for optimizer in ("adam", "adamw"):
        plain, given = (run(1, f"{optimizer}{k}.h5", "--optimizer", optimizer, "--compress", spec, *options)["steps"]
                        for k, spec in enumerate(("none", "ecq:bits=0.5,velocity=on")))
        assert np.allclose(given["train_loss"][:4], plain["train_loss"][:4], rtol=3e-4), (optimizer, given[:], plain[:])
    # With a codec it learns, too: the loss falls far below ln 10 = 2.30.
    options = ("--epochs", "20", "--augment", "off", "--limit-train", "96", "--limit-test", "4", "--batch-size", "8",
               "--topology", "direct")
    losses = run(2, "velocity.h5", "--compress", "ecq:bits=0.5,velocity=masked", *options)["epochs"]["train_loss"]
    assert losses[-1] < 1.6, losses
    losses = run(2, "adam.h5", "--compress", "ecq:bits=0.5,velocity=on", "--optimizer", "adamw", "--lr", "0.003",
                 *options)["epochs"]["train_loss"]
    assert losses[-1] < 1.6, losses


def accounting() -> None:
    log = run(2, "a.h5", "--compress", "q8")
    epochs, ranks, buckets, steps = (log[name][:] for name in ("epochs", "ranks", "buckets", "steps"))
    assert log.attrs["finished"] == 1 and log.attrs["format_version"] == 1
    assert len(epochs) == 2 and len(ranks) == 4 and len(steps) == 2 * 7
    parts = ("data_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s", "other_s")
    for row in [*ranks, *epochs]:
        assert abs(sum(row[p] for p in parts) - row["epoch_s"]) < 1e-9, row
        assert min(row[p] for p in parts) > -1e-9 and row["exposed_comm_s"] <= row["comm_s"] + 1e-12, row
    # What no part has measured is small where nothing else takes the processors: the loop's marks follow each other
    # without gaps.
    for rows in (epochs, ranks[ranks["rank"] == 0], ranks[ranks["rank"] == 1]):
        assert min(row["other_s"] - 0.1 * row["epoch_s"] for row in rows) < 0.05, rows
    for row in ranks:
        inner = row["encode_s"] + row["decode_s"] + row["peer_wait_s"] + row["wire_s"]
        assert abs(inner - row["comm_s"]) < 1e-6, row
    for row in steps:
        assert abs(sum(row[p] for p in parts) - row["step_s"]) < 1e-9
        assert row["exposed_comm_s"] <= row["comm_s"] + 1e-12, row
    for epoch in epochs:
        mine = ranks[ranks["epoch"] == epoch["epoch"]]
        assert mine["sent_bytes"].sum() == epoch["sent_bytes"] == epoch["received_bytes"]
        assert abs(mine["comm_s"].mean() - epoch["comm_s"]) < 1e-9
        # Statistics, hashes, losses and the log's own rows: counted, and far less than the gradients.
        assert 0 < mine["control_bytes"].min() and mine["control_bytes"].sum() == epoch["control_bytes"]
        assert epoch["control_bytes"] < 0.05 * epoch["sent_bytes"] and epoch["sample_bytes"] > 0
        # Ranks of one host share memory: 66 bytes of headers for each frame of 1,448 bytes, and something for each message.
        payload = epoch["sent_bytes"] + epoch["control_bytes"] + epoch["sample_bytes"]
        assert log.attrs["wire_bytes_are"] == "modelled" and abs(mine["wire_bytes"].sum() - epoch["wire_bytes"]) < 1e-3
        assert 1514 / 1448 * payload + 131 * 4 < epoch["wire_bytes"] < 1.5 * payload, (payload, epoch["wire_bytes"])
        of_buckets = buckets[buckets["epoch"] == epoch["epoch"]]
        assert of_buckets["sent_bytes"].sum() == epoch["sent_bytes"]
        assert of_buckets["elements"].sum() == log["model"].attrs["parameters"] == 269722
        assert epoch["samples"] == 200 and 0 < epoch["codec_relative_error"] < 0.1


def warm_up_is_logged() -> None:
    def names(log: h5py.File, epoch: int) -> set[str]:
        rows = log["buckets"][:]
        return {log.attrs["codec_names"][row["codec"]].split(":ef")[0] for row in rows[rows["epoch"] == epoch]}

    log = run(2, "a.h5", "--compress", "q2", "--compress-warmup", "1")
    assert names(log, 0) == {"none"} and names(log, 1) == {"none", "q2:block=2048,ef=on"}, (names(log, 0), names(log, 1))
    assert log["epochs"]["sent_bytes"][1] < 0.2 * log["epochs"]["sent_bytes"][0]
    # Only a scale that leaves values beyond it saturates.
    assert log["epochs"]["saturation"][0] == 0 < log["epochs"]["saturation"][1] < 0.3
    ladder = run(2, "b.h5", "--compress", "topk:ratio=0.01", "--compress-warmup", "2", "--epochs", "3")
    of_epoch = [names(ladder, epoch) for epoch in (0, 1)]
    assert any("ratio=0.25" in name for name in of_epoch[0]) and any("ratio=0.0625" in name for name in of_epoch[1]), of_epoch


def one_host_compresses_nothing() -> None:
    # Ranks of a host add up in fp32: the table says so, and dgc leaves the optimiser its momentum.
    options = ("--topology", "hierarchical", "--momentum", "0.9")
    plain = run(2, "a.h5", "--compress", "none", *options)
    for spec in ("q8", "dgc:momentum=0.9"):
        done = subprocess.run(command(2, f"{spec}.h5", "--compress", spec, *options), capture_output=True, text=True,
                              timeout=200)
        assert done.returncode == 0 and "one host: fp32" in done.stdout, done
        assert_same_training(plain, h5py.File(f"{spec}.h5", "r"))


def killed_run_leaves_a_log() -> None:
    process = subprocess.Popen(command(2, "a.h5", "--epochs", "1000"), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline, rows = time.time() + 120, 0
        while rows < 2 and time.time() < deadline and process.poll() is None:
            time.sleep(0.3)
            try:
                with h5py.File("a.h5", "r") as log:  # while it is written
                    rows = len(log["epochs"])
            except (OSError, KeyError):
                continue
        assert rows >= 2, f"no two epochs in 120 s; exit code {process.poll()}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with h5py.File("a.h5", "r") as log:
        assert log.attrs["finished"] == 0 and len(log["epochs"]) >= rows
        assert np.isfinite(log["epochs"]["train_loss"]).all()


def stop_in_an_epoch(words: list[str], send, wait_for: str = "epoch ") -> tuple[int, list[str], str]:
    """Starts the command, calls send(process) when it has printed a line that begins so, and returns the exit code,
    dptrain's lines on standard error and what was printed."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        line = next(line for line in process.stdout if line.startswith(wait_for))
        send(process)
        printed, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, [e for e in errors.splitlines() if e.startswith("dptrain: ")], line + printed


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The processes of the ranks, children of mpirun."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == process.pid:
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def stopped_run_says_where_it_is() -> None:
    # Ctrl-C goes to mpirun, which passes it on as SIGTERM a second before it kills; without mpirun the program gets it
    # itself. A step takes far less than a second here, so that every run ends by itself; on busy processors that may take
    # longer, so mpirun waits for three seconds here.
    os.environ["OMPI_MCA_odls_base_sigkill_timeout"] = "3"
    alone = command(1, "alone.h5", "--epochs", "1000")[3:]
    later = "a second signal stops it at once"
    under_mpirun = "mpirun may kill it a second after SIGTERM, but gives it time after SIGUSR1"
    for words, stop, code, name, hint in (
            (command(2, "int.h5", "--epochs", "1000"), signal.SIGINT, None, "SIGTERM", under_mpirun),
            (command(2, "term.h5", "--epochs", "1000"), signal.SIGTERM, None, "SIGTERM", under_mpirun),
            (command(3, "usr1.h5", "--epochs", "1000"), signal.SIGUSR1, 75, "SIGUSR1", later),
            (alone, signal.SIGINT, 75, "Ctrl-C (SIGINT)", later)):
        path = words[words.index("--log") + 1]
        exit_code, said, printed = stop_in_an_epoch(words, lambda process: process.send_signal(stop))
        assert len(said) == 2 and re.fullmatch(
            rf"dptrain: {re.escape(name)} in epoch \d+ of 1000, step \d+ of \d+: the run stops after this step; "
            rf"{re.escape(hint)}; the log {path} is readable and holds the earlier epochs", said[0]), (said, printed)
        assert re.fullmatch(r"dptrain: stopped on request after (step \d+ of \d+ in )?epoch \d+ of 1000; there are no "
                            r"checkpoints \(--checkpoint DIR\), so the same command starts anew", said[1]), said
        assert f"The log is {path}" in printed, printed
        # mpirun ends with 1 whenever it has got one of these two signals itself.
        assert exit_code == (1 if code is None else code), exit_code
        with h5py.File(path, "r") as log:
            assert log.attrs["finished"] == 0 and len(log["epochs"]) >= 1


def stop_is_agreed() -> None:
    # One rank is asked to stop. All end after the same step, in every kind of run, and weights are exported.
    for name, options in (("ring", ("--compress", "q8")), ("powersgd", ("--compress", "powersgd:rank=2")),
                          ("off", ("--exchange", "off")), ("rounds", ("--sync-every", "3")),
                          # Nearly all of the time is evaluation.
                          ("evaluation", ("--limit-train", "16", "--limit-test", "1000"))):
        words = command(3, f"{name}.h5", "--epochs", "1000", "--export", f"{name}.weights.h5", *options)
        exit_code, said, printed = stop_in_an_epoch(
            words, lambda process: os.kill(max(ranks_of(process)), signal.SIGUSR1))
        assert exit_code == 75 and "stopped on request after" in said[-1], (exit_code, said, printed)
        with h5py.File(f"{name}.h5", "r") as log, h5py.File(f"{name}.weights.h5", "r") as weights:
            assert log.attrs["finished"] == 0, name
            steps = log["steps"]["step"]
            assert np.array_equal(steps, np.arange(1, len(steps) + 1)), (name, steps[-5:])
            place = re.search(r"after (?:step (\d+) of (\d+) in )?epoch (\d+)", said[-1]).groups()
            per_epoch = int(place[1] or log["steps"]["step"][log["steps"]["epoch"] == 0].max())
            want = (int(place[2]) - 1) * per_epoch + int(place[0] or per_epoch)
            assert steps[-1] == want, (name, said[-1], steps[-1])
            assert "linear.weight" in str(list_of_tensors(weights)), name
            assert log["steps"]["exchanged"][-1] == (name != "off"), name


def list_of_tensors(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visit(names.append)
    return names


def second_signal_stops_at_once() -> None:
    # A step of a second and more: the first signal waits for its end, the second does not.
    words = command(1, "alone.h5", "--epochs", "1000", "--batch-size", "200", "--limit-train", "400", "--model",
                    "resnet18")[3:]

    def twice(process: subprocess.Popen) -> None:
        process.send_signal(signal.SIGTERM)
        process.stderr.readline()
        process.send_signal(signal.SIGINT)

    exit_code, said, _ = stop_in_an_epoch(words, twice)
    assert exit_code == 130, (exit_code, said)
    # Before the first step there is nothing to keep: the first signal ends the run at once, as one that was stopped.
    process = subprocess.Popen(words[:-4] + ["--log", "none"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    caught = 0
    while not caught >> (signal.SIGTERM - 1) & 1:
        caught = int(re.search(r"SigCgt:\t(\w+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())[1], 16)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75, process.returncode


def diverging_run_stops() -> None:
    # A rate of 100, with weight decay, soon gives a loss that is not finite: steps are skipped, then the run ends, once.
    done = subprocess.run(command(2, "a.h5", "--lr", "100", "--epochs", "20", "--compress", "q8"), capture_output=True,
                          text=True, timeout=200)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert done.stderr.count("all ranks skip this step") == 5, done.stderr
    assert re.search(r"dptrain: step \d+: the gradient is not finite on rank \d on host \S+, first in \S+( \(and on 1 more\))"
                     "?; all ranks skip this step; if it happens again, try a smaller --lr, ", done.stderr), done.stderr
    assert done.stderr.count("was not finite in 5 steps in a row") == 1, done.stderr
    with h5py.File("a.h5", "r") as log:
        assert log.attrs["finished"] == 0
    done = subprocess.run(command(2, "off.h5", "--lr", "100", "--epochs", "20", "--exchange", "off"), capture_output=True,
                          text=True, timeout=200)
    assert done.returncode == 3 and "was not finite in 5 steps in a row" in done.stderr, (done.returncode, done.stderr)
    # Here the gradient is no longer finite while the loss still is. With and without an exchange the same steps are
    # skipped, so that the losses are the same.
    losses = {}
    for exchange in ("on", "off"):
        done = subprocess.run(command(1, f"1{exchange}.h5", "--limit-train", "60", "--batch-size", "1", "--lr", "100",
                                      "--weight-decay", "1", "--exchange", exchange), capture_output=True, text=True,
                              timeout=200)
        assert done.returncode == 3 and done.stderr.count("the gradient is not finite on ") == 5, (exchange, done.stderr)
        losses[exchange] = h5py.File(f"1{exchange}.h5", "r")["steps"]["train_loss"][:]
    assert np.isfinite(losses["off"]).all() and np.array_equal(losses["on"], losses["off"]), losses


def skipped_step_leaves_the_means_alone() -> None:
    # Every update is far too large, so that the gradients of the last steps are not finite.
    done = subprocess.run(command(2, "a.h5", "--lr", "100", "--weight-decay", "1", "--epochs", "1",
                                  "--limit-train", "320"), capture_output=True, text=True, timeout=200)
    with h5py.File("a.h5", "r") as log:
        epochs = log["epochs"][:]
    assert done.returncode == 0 and len(epochs) == 1, (done.returncode, done.stderr)
    assert 0 < epochs["skipped_steps"][0] < 5, epochs
    assert np.isfinite(epochs["train_loss"]).all() and 0 <= epochs["train_accuracy"][0] <= 1, epochs


def different_data_are_refused() -> None:
    # A folder a rank, as on hosts with disks of their own: the same files, one other label, fewer records.
    def write(folder: str, records: int, first_label: int) -> None:
        os.makedirs(folder)
        for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
            images = np.full((records, 3073), 7, np.uint8)
            images[:, 0] = np.arange(records) % 10
            images[0, 0] = first_label
            images.tofile(f"{folder}/{name}.bin")

    def train(folders: list[str]) -> subprocess.CompletedProcess:
        # A wrapper that runs each rank where "data" is its own folder.
        script = ('cd "$OMPI_COMM_WORLD_RANK" && exec "$@"')
        for rank, folder in enumerate(folders):
            os.makedirs(f"{rank}", exist_ok=True)
            pathlib.Path(f"{rank}/data").unlink(missing_ok=True)
            os.symlink(os.path.abspath(folder), f"{rank}/data")
        options = ["--model", "resnet20", "--data-dir", "data", "--epochs", "1", "--batch-size", "4", "--threads", "1",
                   "--autotune", "off", "--log", "none", "--lr", "0.01"]
        return subprocess.run([MPIRUN, "-np", str(len(folders)), "bash", "-c", script, "-", DPTRAIN, *options],
                              capture_output=True, text=True, timeout=200)

    write("same", 4, 0)
    write("label", 4, 1)
    write("short", 3, 0)
    assert train(["same", "same", "same"]).returncode == 0
    for odd in ("label", "short"):
        done = train(["same", odd, "same"])
        assert done.returncode == 3, (odd, done.returncode, done.stderr)
        assert done.stderr.count("the data of rank 1 on ") == 1 and "differ from the other ranks' data" in done.stderr, done.stderr
    assert "it has 15 training and 3 test images" in done.stderr and "the others have 20 training" in done.stderr, done.stderr


def unwritable_trace_ends_nothing() -> None:
    # The folder is there at the start and gone when the trace is written.
    os.makedirs("traces")
    process = subprocess.Popen(command(2, "a.h5", "--trace", "traces/t.json", "--trace-steps", "20:2", "--epochs", "4",
                                       "--throttle", "100mbit"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    while not os.path.exists("a.h5") and time.time() < deadline and process.poll() is None:
        time.sleep(0.01)
    os.rmdir("traces")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 3, (process.returncode, err)
    assert "traces/t.json" in err and "training goes on without it" in err, err
    assert err.count("the training is complete, but some files are not: the trace is missing (--trace ") == 1, err
    with h5py.File("a.h5", "r") as log:
        assert log.attrs["finished"] == 1 and len(log["epochs"]) == 4


def unwritable_trace_is_tried_again() -> None:
    # The folder is gone when the trace is to be written, and there again at the end.
    os.makedirs("traces")
    process = subprocess.Popen(command(2, "a.h5", "--trace", "traces/t.json", "--trace-steps", "20:2", "--epochs", "30",
                                       "--limit-train", "64", "--limit-test", "8", "--throttle", "100mbit"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any("  steps  " in line for line in process.stdout)
    os.rmdir("traces")
    warning = next(line for line in process.stderr if "training goes on without it" in line)
    assert process.poll() is None, "the run is over already"
    os.makedirs("traces")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0 and "missing" not in err, (process.returncode, err)
    assert "traces/t.json" in warning and "The trace is traces/t.json: " in out, (warning, out)
    with open("traces/t.json", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    steps = {event["args"]["step"] for event in events}
    assert steps == {21, 22}, steps


def log_folder_that_vanishes_ends_nothing() -> None:
    # It goes during the run, perhaps while the log is written, which may then fail for another reason at first. Training goes
    # to its end, which says what is missing.
    os.makedirs("logs")
    process = subprocess.Popen(command(2, "logs/a.h5", "--epochs", "4", "--throttle", "100mbit"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    line = next(line for line in process.stdout if line.startswith("epoch 1/4 "))
    os.rename("logs", "gone")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 3, (process.returncode, err)
    told = re.findall(r"^dptrain: --log logs/a\.h5: .*; training goes on, and the next epoch tries again$", err, re.MULTILINE)
    assert len(told) == 1, err
    reason = "--log logs/a.h5: cannot be written: No such file or directory"
    assert err.count("dptrain: the training is complete, but some files are not: the log is missing "
                     f"({reason})\n") == 1, err
    assert "epoch 4/4 " in out and "The log is" not in out, (line, out)


def link_of_the_lab_is_logged() -> None:
    os.environ |= {"DPTRAIN_LINK_BIT_PER_S": "1e8", "DPTRAIN_LINK_DELAY_S": "0.005", "DPTRAIN_LINK_LOSS": "0.001",
                   "DPTRAIN_LINK_SHARED": "0"}
    attributes = run(2, "a.h5", "--epochs", "1").attrs
    nominal = [attributes[f"nominal_{name}"] for name in ("bit_per_s", "delay_s", "loss", "is_shared")]
    assert nominal == [1e8, 0.005, 0.001, 0], nominal
    assert list(attributes["topology_names"]) == ["ring"] and attributes["topology_hops"].tolist() == [2]
    assert run(2, "b.h5", "--epochs", "1", "--throttle", "2gbit").attrs["nominal_bit_per_s"] == 1e8
    del os.environ["DPTRAIN_LINK_BIT_PER_S"]
    assert run(2, "c.h5", "--epochs", "1", "--throttle", "2gbit").attrs["nominal_bit_per_s"] == 2e9


def uneven_last_step() -> None:
    # 50 samples in steps of 3 x 16: the last step has 2, so one of three ranks has none.
    log = run(3, "a.h5", "--limit-train", "50", "--limit-test", "49")
    assert log["epochs"]["samples"].tolist() == [50, 50]
    assert len(log["steps"]) == 4 and np.isfinite(log["steps"]["train_loss"]).all()


def bf16_run() -> None:
    done = subprocess.run(command(1, "a.h5", "--precision", "bf16"), capture_output=True, text=True, timeout=200)
    if done.returncode == 5 and "AVX512-BF16" in done.stderr:
        print("skipped: this processor has no AVX512-BF16")
        sys.exit(77)
    assert done.returncode == 0, done.stderr
    bf16, fp32 = h5py.File("a.h5", "r")["steps"], run(1, "b.h5")["steps"]
    # The first steps are before the two can drift apart.
    assert np.allclose(bf16["train_loss"][:3], fp32["train_loss"][:3], rtol=0.05)


def bf16_without_its_instructions() -> None:
    """oneDNN's limit takes bf16 away: refused before anything is written, also by a run that goes on."""
    limit = {"ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2"}
    words = ("--precision", "bf16", "--epochs", "1", "--checkpoint", "ck")

    def refused(ranks: int, *more: str) -> None:
        done = subprocess.run([*command(ranks, "b.h5", *words), *more], capture_output=True, text=True, timeout=200,
                              env=os.environ | limit)
        said = re.findall(r"^dptrain: (?!stopped by SIGTERM)(.*)", done.stderr, re.MULTILINE)
        assert done.returncode == 5 and len(said) == 1, (done.returncode, done.stderr)
        assert re.fullmatch(r"--precision bf16: .* has no AVX512-BF16; allowed here: fp32", said[0]), said
        assert re.search(r"\bAVX", said[0].replace("AVX512-BF16", "")) or "SSE" in said[0], said
        assert not os.path.exists("b.h5")

    refused(1)
    refused(2)
    refused(1, "--check")
    assert not os.path.exists("ck") or not os.listdir("ck")
    done = subprocess.run(command(1, "a.h5", *words), capture_output=True, text=True, timeout=200)
    if done.returncode == 5 and "AVX512-BF16" in done.stderr:
        print("passed without the part that goes on: this processor has no AVX512-BF16")
        return
    assert done.returncode == 0, done.stderr
    files = sorted(os.listdir("ck"))
    refused(1, "--resume")
    assert sorted(os.listdir("ck")) == files


# ---- on a GPU, real or cuda_on_cpu, which takes a quarter of a second an image ----

GPU = ("--device", "cuda", "--limit-train", "22", "--limit-test", "10", "--batch-size", "4")


def has_gpu() -> bool:
    probe = subprocess.run([DPTRAIN, "--device", "cuda", "--limit-train", "1", "--limit-test", "1", "--epochs", "1",
                            "--log", "none", "--autotune", "off"], capture_output=True, text=True, timeout=200)
    if probe.returncode == 5:
        print(f"skipped: {probe.stderr.strip()}")
    return probe.returncode != 5


def gpu_paths_same_bits() -> None:
    # Encoded on the GPU or by the host, sent while backward runs or after it: the same training.
    options = (*GPU, "--compress", "q8", "--bucket-mb", "0.1", "--clip-norm", "1", "--check-replicas", "step")
    host = run(2, "host.h5", *options, "--gpu-exchange", "host")
    device = run(2, "device.h5", *options, "--gpu-exchange", "device")
    assert_same_training(host, device)
    assert_same_training(device, run(2, "off.h5", *options, "--gpu-exchange", "device", "--overlap", "off"))
    # At so few bits one-dimensional tensors wait, values are gathered, and velocities are masked.
    few = (*GPU, "--compress", "ecq:bits=0.05,velocity=masked", "--limit-train", "32", "--limit-test", "2")
    assert_same_training(run(2, "few_host.h5", *few, "--gpu-exchange", "host"),
                         run(2, "few_device.h5", *few, "--gpu-exchange", "device"))
    assert (host.attrs["exchange_path"], device.attrs["exchange_path"]) == ("host", "device")


def gpu_choices_of_an_earlier_run() -> None:
    # The second run takes algorithms and the path of the gradients from the log of the first, whatever it would
    # measure itself.
    options = (*GPU, "--compress", "q8", "--limit-train", "8", "--limit-test", "2", "--epochs", "1")
    first = run(2, "a.h5", *options, "--autotune", "on")
    again = run(2, "b.h5", *options, "--autotune", "a.h5")
    assert_same_training(first, again)
    algorithms, path = first["model"].attrs["algorithms"], first.attrs["exchange_path"]
    assert "conv " in algorithms and again["model"].attrs["algorithms"] == algorithms, algorithms
    assert path in ("host", "device") and again.attrs["exchange_path"] == path
    # The other path is taken, too, if the log says so.
    other = {"host": "device", "device": "host"}[path]
    first.close()
    with h5py.File("a.h5", "r+") as log:
        log.attrs["exchange_path"] = other
    swapped = run(2, "c.h5", *options, "--autotune", "a.h5")
    assert swapped.attrs["exchange_path"] == other
    assert_same_training(again, swapped)


def gpu_learns_what_the_cpu_learns() -> None:
    # The same images, crops and initial values; later the two drift apart as any two roundings do.
    gpu, cpu = run(2, "gpu.h5", *GPU), run(2, "cpu.h5", *GPU, "--device", "cpu")
    assert np.allclose(gpu["steps"]["train_loss"][:2], cpu["steps"]["train_loss"][:2], rtol=1e-3)
    assert gpu["epochs"]["sent_bytes"].tolist() == cpu["epochs"]["sent_bytes"].tolist()


def gpu_accounting() -> None:
    # Without a row a step, so that the times of a step come while the next one runs.
    log = run(2, "a.h5", *GPU, "--compress", "q8", "--log-steps", "0")
    parts = ("data_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s", "other_s")
    for row in log["ranks"]:
        total = sum(row[p] for p in parts)
        # A GPU's clock and the host's may differ by microseconds, which are in other_s.
        assert min(row[p] for p in parts) >= -1e-4, row
        assert abs(total - row["epoch_s"]) < 1e-9 and row["exposed_comm_s"] <= row["comm_s"] + 1e-12, (total, row)
        assert row["forward_s"] > 0 and row["backward_s"] > 0 and row["optimizer_s"] > 0, row
    row = run(2, "b.h5", *GPU)["steps"][:]
    assert np.allclose(sum(row[p] for p in parts), row["step_s"], atol=1e-9)


def gpu_uneven_last_step() -> None:
    # 22 samples in steps of 3 x 3: the last one has 4; 19: the last one has 1.
    for count in ("22", "19"):
        log = run(3, f"{count}.h5", *GPU, "--limit-train", count, "--batch-size", "3")
        assert log["epochs"]["samples"].tolist() == [int(count)] * 2
        assert np.isfinite(log["steps"]["train_loss"]).all()


def gpu_without_exchange() -> None:
    # Nobody waits for gradients here; the loss is the step's all the same: alone, that of a run with exchange.
    few = (*GPU, "--limit-train", "12", "--epochs", "1")
    alone, usual = run(1, "alone.h5", *few, "--exchange", "off"), run(1, "usual.h5", *few)
    for table, field in (("steps", "train_loss"), ("epochs", "train_loss"), ("epochs", "test_loss")):
        assert np.array_equal(alone[table][field], usual[table][field]), (alone[table][field], usual[table][field])
    both = run(2, "off.h5", *few, "--exchange", "off", "--compress", "q8")
    assert len(both["buckets"]) == 0 and not both["ranks"]["sent_bytes"].any()
    assert np.isfinite(both["steps"]["train_loss"]).all(), both["steps"]["train_loss"]


def gpu_diverging_run_stops() -> None:
    # Weights that grow a hundredfold in each step: soon nothing is finite, and the run ends 5 steps later.
    losses = {}
    for exchange in ("on", "off"):
        done = subprocess.run(command(1, f"{exchange}.h5", *GPU, "--limit-train", "60", "--batch-size", "1", "--lr", "100",
                                      "--weight-decay", "1", "--exchange", exchange), capture_output=True, text=True,
                              timeout=200)
        assert done.returncode == 3, (exchange, done.returncode, done.stdout, done.stderr)
        assert done.stderr.count("was not finite in 5 steps in a row") == 1, (exchange, done.stderr)
        losses[exchange] = h5py.File(f"{exchange}.h5", "r")["steps"]["train_loss"][:]
    # Without an exchange loss and gradient are judged, so they must be the step's own in every step.
    assert len(losses["on"]) > 9 and np.array_equal(losses["on"], losses["off"], equal_nan=True), losses


def mixed_devices() -> None:
    # A rank on a processor and one on a GPU, on cuda_on_cpu.
    small = ("--model", "resnet20", "--global-batch", "12", "--limit-train", "40", "--limit-test", "8", "--epochs", "1",
             "--log-steps", "1")

    def mixed(log: str, *options: str) -> subprocess.CompletedProcess[str]:
        ranks = [word for device in ("cpu", "cuda") for word in
                 (":", "-np", "1", DPTRAIN, *small, "--log", log, "--device", device, *options)][1:]
        return subprocess.run([MPIRUN, *ranks], capture_output=True, text=True, timeout=200)

    for i, options in enumerate((("--compress", "none", "--shares", "3:1"), ("--compress", "auto", "--sync-bn", "on"),
                                 ("--compress", "ecq:bits=0.35", "--precision", "fp32", "--optimizer", "lars"))):
        done = mixed(f"{i}.h5", "--autotune", "on", *options)
        assert done.returncode == 0 and "the replicas stay equal" in done.stderr, done.stderr
        log = h5py.File(f"{i}.h5", "r")
        assert list(log["ranks"]["device"]) == [0, 1] and len(set(log["epochs"]["replica_hash"])) == 1
        keys = [line.split()[0] for line in log["model"].attrs["algorithms"].splitlines()]
        assert {"conv", "gpu"} <= set(keys), keys
        again = mixed(f"again{i}.h5", "--autotune", f"{i}.h5", *options)
        assert again.returncode == 0, again.stderr
        assert_same_training(log, h5py.File(f"again{i}.h5", "r"))
    done = mixed("refused.h5", "--optimizer", "muon")
    assert done.returncode == 5 and done.stderr.count("--optimizer muon: rank 1 ") == 1, done.stderr
    done = mixed("refused.h5", "--gpu-exchange", "device")
    assert done.returncode == 2 and done.stderr.count("--gpu-exchange device: ") == 1, done.stderr


def png(path: str, seed: int, rows: int = 20) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (rows, 1 + 3 * 24), np.uint8)
    pixels[:, 0] = 0  # each row begins with its filter
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 24, rows, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(pixels.tobytes())),
              (b"IEND", b"")]
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks))


def images_in_folders() -> None:
    for i in range(60):
        png(f"d/{'train' if i < 48 else 'val'}/class {i % 3}/{i}.png", i, 16 + i % 5)
    options = ("--dataset", "folder", "--image-size", "16", "--limit-train", "0", "--limit-test", "0",
               "--batch-size", "9", "--epochs", "2")
    first = run(2, "a.h5", *options, "--data-dir", "d", "--loader-threads", "1")
    assert_same_training(first, run(2, "b.h5", *options, "--data-dir", "d", "--loader-threads", "4"))
    subprocess.run([f"{os.path.dirname(DPTRAIN)}/dptrain-pack", "d", "d.pack"], check=True, timeout=100)
    assert_same_training(first, run(2, "c.h5", *options, "--data-dir", "d.pack"))
    # A file of another name on the second host.
    shutil.copytree("d", "1/d")
    os.rename("1/d/val/class 2/50.png", "1/d/val/class 2/500.png")
    os.makedirs("0")
    os.symlink("../d", "0/d")
    small = command(2, "none", *options, "--data-dir", "d")[3:]
    done = subprocess.run([MPIRUN, "-np", "2", "bash", "-c", 'cd "$OMPI_COMM_WORLD_RANK" && exec "$@"', "-", *small],
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 3 and "the data of rank 1 on " in done.stderr, (done.returncode, done.stderr)


def bad_images_are_replaced_or_end_it() -> None:
    for i in range(40):
        png(f"d/{'train' if i < 30 else 'val'}/{i % 2}/{i}.png", i)
    whole = pathlib.Path("d/train/1/7.png").read_bytes()
    pathlib.Path("d/train/1/7.png").write_bytes(whole[:-100])
    options = ("--dataset", "folder", "--data-dir", "d", "--limit-train", "0", "--limit-test", "0", "--batch-size", "5",
               "--epochs", "2", "--image-size", "16", "--mean", "0.5,0.5,0.5", "--std", "0.3,0.3,0.3")
    done = subprocess.run(command(2, "a.h5", *options), capture_output=True, text=True, timeout=200)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert "d/train/1/7.png: is a damaged PNG" in done.stderr and "(option --bad-images)" in done.stderr, done.stderr
    done = subprocess.run(command(2, "b.h5", *options, "--bad-images", "skip", "--loader-threads", "3"),
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stderr.count("d/train/1/7.png: is a damaged PNG") == 1, done.stderr
    log = h5py.File("b.h5", "r")
    assert list(log["epochs"]["samples"]) == [30, 30]
    assert_same_training(log, run(2, "c.h5", *options, "--bad-images", "skip"))


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    if CASE.startswith("gpu_") and not has_gpu():
        sys.exit(77)
    globals()[CASE]()
    print(f"{CASE}: passed in {pathlib.Path(folder).name}")
