#!/usr/bin/env python3
"""Two builds train to the same bits:  same_bits.py BEFORE AFTER [--only NAME ...]

BEFORE and AFTER are build folders. Each of the runs below is made by both, with the same seed, and the hash of the
replicas, the losses and the bytes sent must be equal after every epoch. For changes that move code and must not change
results; build both on one machine by one compiler. Ends with exit code 1 if anything differs.

A run that BEFORE has begun is also resumed by AFTER: checkpoints keep their format, or are refused by a sentence.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import h5py

COMMON = ("--limit-train 224 --limit-test 64 --lr-schedule constant --batch-size 8 --threads 1 --autotune off --log-steps 1 "
          "--check-replicas epoch --bucket-mb 0.4").split()
COLUMNS = ("replica_hash", "train_loss", "test_loss", "sent_bytes", "skipped_steps", "exchanges")

# name: ranks, options
RUNS: dict[str, tuple[int, str]] = {
    "none_1": (1, "--compress none"),
    "none_ring_2": (2, "--compress none --topology ring"),
    "none_ring_3": (3, "--compress none --topology ring --overlap off"),
    "q8_ring_4": (4, "--compress q8 --topology ring"),
    "q8_direct_3": (3, "--compress q8 --topology direct"),
    "q8_tree_3": (3, "--compress q8 --topology tree"),
    "q8_ps_4": (4, "--compress q8 --topology ps"),
    "q8_hierarchical_2": (2, "--compress q8 --topology hierarchical"),
    "q4_overlap_off": (2, "--compress q4 --topology ring --overlap off"),
    "fp16_3": (3, "--compress fp16"),
    "topk_2": (2, "--compress topk:ratio=0.01 --compress-warmup 1"),
    "dgc_2": (2, "--compress dgc"),
    "powersgd_4": (4, "--compress powersgd:rank=2"),
    "sign_3": (3, "--compress sign --topology direct"),
    "ecq_bits_4": (4, "--compress ecq:bits=0.35 --topology direct"),
    "ecq_ring_3": (3, "--compress ecq:bits=0.6 --topology ring"),
    "ecq_error_2": (2, "--compress ecq:error=0.3"),
    "ecq_velocity_2": (2, "--compress ecq:bits=0.2,velocity=masked"),
    "rounds_4": (4, "--sync-every 4 --compress ecq:bits=1"),
    "diloco_2": (2, "--sync-every 4:outer-lr=0.7,outer-momentum=0.5"),
    "delayed_3": (3, "--sync-every 4:delay=1 --compress q8"),
    "alone_2": (2, "--exchange off"),
    "sync_bn_adam_3": (3, "--compress q8 --sync-bn on --optimizer adam --lr 0.001 --accumulate 2"),
    "gpu_q8_2": (2, "--compress q8 --device cuda"),
}

# The same in the words of builds that had no keys.
EARLIER = {"--sync-every 4:outer-lr=0.7,outer-momentum=0.5": "--sync-every 4 --outer-lr 0.7 --outer-momentum 0.5"}


def train(build: pathlib.Path, ranks: int, options: str, log: pathlib.Path, *more: str, epochs: int = 3) -> None:
    program = "dptrain_on_cpu" if "cuda" in options else "dptrain"
    command = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", str(build / "bin" / program), *COMMON,
               *options.split(), "--epochs", str(epochs), "--log", str(log), "--quiet", *more]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if result.returncode == 2 and options in EARLIER:
        train(build, ranks, EARLIER[options], log, *more, epochs=epochs)
    elif result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {result.returncode}\n{result.stderr}")


def figures(log: pathlib.Path) -> list[tuple]:
    with h5py.File(log) as file:
        epochs = file["epochs"][:]
        losses = tuple(file["steps"]["train_loss"][:].tolist())
    return [*(tuple(row[column].item() for column in COLUMNS) for row in epochs), losses]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    arguments = parser.parse_args()
    different = 0
    with tempfile.TemporaryDirectory() as folder_name:
        folder = pathlib.Path(folder_name)
        for name in arguments.only:
            ranks, options = RUNS[name]
            logs = [folder / f"{name}-{build}.h5" for build in ("before", "after")]
            for build, log in zip((arguments.before, arguments.after), logs):
                train(build, ranks, options, log)
            before, after = map(figures, logs)
            first = next((epoch for epoch, (a, b) in enumerate(zip(before, after), 1) if a != b), None)
            is_same = before == after
            different += not is_same
            what = f"hash {before[-2][0]:016x}" if is_same else f"DIFFERENT from epoch {first} on"
            print(f"{name:18} {ranks} rank{'s' if ranks > 1 else ' '}  {what}", flush=True)
        options = "--compress ecq:bits=0.35 --topology direct"
        train(arguments.before, 2, options, folder / "begun.h5", "--checkpoint", str(folder / "begun"), epochs=2)
        results = []
        try:
            for build in (arguments.before, arguments.after):
                state, log = folder / f"state-{len(results)}", folder / f"resumed-{len(results)}.h5"
                shutil.copytree(folder / "begun", state)
                train(build, 2, options, log, "--checkpoint", str(state), "--resume", "--accept-build")
                results.append(figures(log))
            is_same = results[0] == results[1]
            print("resumed            2 ranks ", "the same bits" if is_same else "DIFFERENT")
        except RuntimeError as error:
            is_same = False
            print("resumed            2 ranks ", error)
        different += not is_same
    print(f"{different} of {len(arguments.only) + 1} runs differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
