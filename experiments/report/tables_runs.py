"""Tables of whole runs: what they were, where an epoch's time went, what was learnt, how they differ."""
from __future__ import annotations

import pandas as pd

from . import chance, compare, units
from .run import Run
from .table import Column, Row, Table, count, epoch, name, size

TYPICAL = (
    "Times are those of a typical epoch, the median one: of an odd number of epochs the middle one by time, of an even "
    "number the mean of the two middle ones. The first epoch after every start, and those before a codec's warm-up ended, "
    "do not count where the run has others; timed: the number of epochs that count.")


AUGMENTED = [Column("augmented_accuracy", "over views, %", units.percent), name("views", "views", True)]
VIEWS = (" Over views: the test accuracy with test-time augmentation, at the end of the run, of the mean over each image and "
         "its mirror image (views: mirror), and over both moved by a pixel (shift); all else is about the plain test accuracy.")


def runs_table(runs: list[Run]) -> Table:
    rows: list[Row] = []
    for run in runs:
        weak = compare.baseline(run, runs, "batch") if run.exchanges else None
        sent = run.sent_an_epoch
        rows.append({
            "run": run.label, "model": run.model_name, "dataset": run.config.get("dataset"), "samples": run.samples,
            "ranks": run.world_size, "batch": run.batch, "codec": run.exchange, "topology": run.topology,
            "link": run.link_name, "epochs": len(run.epochs), "timed": len(run.counted),
            "train_loss": run.last("train_loss") if run.has_one_model else None,
            "test_accuracy": run.last("test_accuracy") if run.has_one_model else None,
            "augmented_accuracy": run.augmented_accuracy, "views": run.views, "epoch_s": run.epoch_s,
            "exposed_share": _ratio(run.time("exposed_comm_s"), run.epoch_s),
            "sent_mb": None if sent is None or not run.exchanges else sent / 1e6, "images_per_s": run.images_per_s,
            "speedup": _ratio(weak.epoch_s, run.epoch_s) if weak else None
        })
    columns = [
        name("run", "run"),
        name("model", "model", True),
        name("dataset", "data", True),
        count("samples", "images", True),
        count("ranks", "ranks", True),
        size("batch", "batch", True),
        name("codec", "codec", True),
        Column("epoch_s", "epoch, s"),
        Column("speedup", "speedup", units.fixed(2)),
        Column("exposed_share", "exposed comm, %", units.percent),
        Column("train_loss", "loss", units.fixed(3)),
        Column("test_accuracy", "test acc., %", units.percent),
        *(AUGMENTED if (has_views := any(run.views for run in runs)) else []),
        Column("sent_mb", "sent, MB"),
        Column("images_per_s", "images/s"),
        count("epochs", "epochs", True),
        count("timed", "timed", True),
        name("topology", "topology", True),
        name("link", "link", True)
    ]
    has_speedups = any(row["speedup"] is not None for row in rows)
    if not has_speedups:
        columns = [column for column in columns if column.key != "speedup"]
    return Table("runs", "Runs", columns, rows, [
        "Batch: images per step and rank. Loss: training loss of the last epoch in the log; test acc.: test accuracy after "
        "it. Exposed comm: exposed communication, the share of the epoch in which training stands still for the exchange. "
        "Sent: by all ranks in an epoch, the mean over all epochs." +
        (VIEWS if has_views else "") +
        (" Speedup: T_1 / T_N at the same batch per rank; see Scaling." if has_speedups else ""),
        TYPICAL
    ])


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def differences_table(runs: list[Run]) -> Table | None:
    names, settings = compare.differences(runs)
    if len(runs) < 2 or not names:
        return None
    rows: list[Row] = [{"run": run.label, **said} for run, said in zip(runs, settings)]
    columns = [name("run", "run")] + [name(option, option) for option in names]
    return Table("differences", "What the runs differ in", columns, rows)


def time_row(run: Run, epoch: dict[str, float]) -> Row:
    """How an epoch's time divides; keys as in time_table."""
    comm, exposed = epoch.get("comm_s"), epoch.get("exposed_comm_s")
    hidden = None if comm is None or exposed is None else max(0.0, comm - exposed)
    return {
        "run": run.label, "epoch": int(epoch["epoch"]), "epoch_s": epoch["epoch_s"], "compute_s": epoch.get("compute_s"),
        "exposed_comm_s": exposed, "data_s": epoch.get("data_s"), "other_s": epoch.get("other_s"), "comm_s": comm,
        "hidden_s": hidden, "encode_s": epoch.get("encode_s"), "wire_s": epoch.get("wire_s"),
        "decode_s": epoch.get("decode_s"), "peer_wait_s": epoch.get("peer_wait_s"), "eval_s": epoch.get("eval_s"),
        "checkpoint_s": epoch.get("checkpoint_s"),
        "sent_mb": None if "sent_bytes" not in epoch else epoch["sent_bytes"] / 1e6
    }


TIMES = [
    Column("epoch_s", "epoch"),
    Column("compute_s", "= compute"),
    Column("exposed_comm_s", "+ exposed comm"),
    Column("data_s", "+ data"),
    Column("other_s", "+ other"),
    Column("comm_s", "comm"),
    Column("hidden_s", "hidden"),
    Column("encode_s", "encode"),
    Column("wire_s", "wire"),
    Column("decode_s", "decode"),
    Column("peer_wait_s", "peer wait")
]


def time_table(runs: list[Run]) -> Table | None:
    rows = [time_row(run, run.typical) for run in runs if run.typical is not None]
    if not rows:
        return None
    besides = [what for what, column in (("evaluation", "eval_s"), ("checkpoints", "checkpoint_s"))
               if any(column in run.epochs and run.epochs[column].any() for run in runs)]
    held_up = [Column("checkpoint_s", "checkpoints")] if "checkpoints" in besides else []
    return Table("time", "Where a typical epoch's time goes, s (mean over ranks)", [name("run", "run"), *TIMES, *held_up], rows, [
        "Epoch = compute (forward, backward, optimizer) + exposed communication + data + other. Comm: the time in which at "
        "least one bucket is in flight; hidden: the part of it behind computation, comm - exposed. Comm = encode + wire + "
        "decode + peer wait (another rank has not begun)."
        + (f" {' and '.join(besides).capitalize()} {'are' if len(besides) > 1 else 'is'} in none of them." if besides else "")
    ])


LEARNT = ("global_batch", "learning_rate", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "codec_relative_error",
          "delivered_relative_error", "residual_norm")


def sessions_table(runs: list[Run]) -> Table | None:
    """The starts of runs that went on from a checkpoint."""
    rows: list[Row] = []
    for run in runs:
        if run.sessions is None or len(run.sessions) < 2:
            continue
        for number, (_, session) in enumerate(run.sessions.iterrows(), 1):
            rows.append({
                "run": run.label, "session": number, "first_epoch": int(session["first_epoch"]),
                "first_step": int(session["first_step"]) if "first_step" in session else None,
                "ranks": int(session["world_size"])
            })
    if not rows:
        return None
    columns = [name("run", "run"), count("session", "start"), epoch("first_epoch", "first epoch"),
               count("first_step", "steps before"), count("ranks", "ranks")]
    return Table("sessions", "Starts of runs that went on from a checkpoint", columns, rows, [
        "Steps before: those of the checkpoint from which this start went on. Starts of which no checkpoint became complete "
        "are not in the log."
    ])


def epochs_table(runs: list[Run]) -> Table | None:
    rows: list[Row] = []
    for run in runs:
        trained_s = sent = 0.0
        for _, series in run.epochs.iterrows():
            values = {str(key): value for key, value in series.items()}
            trained_s += values["epoch_s"]
            sent += values.get("sent_bytes", 0.0)
            rows.append({
                **time_row(run, values), **{
                    key: values.get(key) for key in LEARNT
                }, "trained_s": trained_s, "sent_total_mb": sent / 1e6
            })
    if not rows:
        return None
    columns = [
        name("run", "run", True),
        epoch("epoch", "epoch no."), *TIMES[:5],
        Column("hidden_s", "hidden"),
        count("global_batch", "images a step"),
        Column("learning_rate", "lr"),
        Column("train_loss", "loss", units.fixed(3)),
        Column("test_loss", "test loss", units.fixed(3)),
        Column("test_accuracy", "test acc., %", units.percent),
        Column("trained_s", "trained, s"),
        Column("sent_total_mb", "sent so far, MB"),
        Column("codec_relative_error", "encoder error, %", units.percent),
        Column("delivered_relative_error", "error of the sum, %", units.percent),
        Column("residual_norm", "residual")
    ]
    return Table("epochs", "Epochs, s", columns, rows, [
        "Epochs count from 1, as on dptrain's console; files (the log and --csv) count them from 0. Images a "
        "step: of all ranks; a batch schedule changes it. Lr: learning rate of the epoch's last step. Trained: the sum of the epochs' times, without evaluation. Encoder error: what encoders "
        "dropped, relative to what they were given. Error of the sum: the delivered sum of one step against the exact one. "
        "Residual: norm of what waits to be sent."
    ])


def learning_table(runs: list[Run]) -> Table | None:
    rows: list[Row] = []
    errors = chance.standard_errors(runs)
    for run in runs:
        if not len(run.epochs) or not run.has_one_model:
            continue
        accuracy = run.epochs["test_accuracy"].dropna() if "test_accuracy" in run.epochs else pd.Series(dtype=float)
        rows.append({
            "run": run.label, "codec": run.exchange, "epochs": len(run.epochs), "train_loss": run.last("train_loss"),
            "test_loss": run.last("test_loss"), "test_accuracy": run.last("test_accuracy"),
            "augmented_accuracy": run.augmented_accuracy, "views": run.views,
            "accuracy_error": errors.get(run.label),
            "best": float(accuracy.max()) if len(accuracy) else None,
            "best_epoch": int(run.epochs["epoch"][accuracy.idxmax()]) if len(accuracy) else None,
            "trained_s": float(run.epochs["epoch_s"].sum()), "sent_mb": float(run.epochs["sent_bytes"].sum()) / 1e6 /
            run.world_size if "sent_bytes" in run.epochs and run.exchanges else None,
            "delivered": run.last("delivered_relative_error") if run.exchanges else None, "of": run
        })
    if not rows:
        return None
    sent = [row for row in rows if units.is_number(row["test_accuracy"]) and row["sent_mb"]]
    best = chance.fronts(sent, lambda row: row["of"], lambda row: row["sent_mb"], lambda row: row["test_accuracy"],
                         lambda row: row["accuracy_error"])
    for row in rows:
        row["front"] = "*" if any(row is one for one in best) else ""
    columns = [
        name("run", "run"),
        name("codec", "codec", True),
        count("epochs", "epochs", True),
        Column("train_loss", "loss", units.fixed(3)),
        Column("test_loss", "test loss", units.fixed(3)),
        Column("test_accuracy", "test acc., %", units.percent),
        *(AUGMENTED if (has_views := any(row["views"] for row in rows)) else []),
        Column("accuracy_error", "std. error", units.percent),
        Column("best", "best acc., %", units.percent),
        epoch("best_epoch", "in epoch"),
        Column("trained_s", "trained, s"),
        Column("sent_mb", "sent a rank, MB"),
        Column("delivered", "error of the sum, %", units.percent),
        Column("front", "front", str, True)
    ]
    return Table("learning", f"{chance.PLACE}, and what they took", columns, rows, [
        f"{chance.RULE} Std. error: e, in points." + (VIEWS if has_views else ""),
        "Trained: the sum of all epochs' times, without evaluation. Sent a rank: in all epochs. Front: * for the run that "
        "sent the least of those with the same network, images and epochs and, from there on, for each run whose accuracy in the last epoch is larger than, and different "
        "from, that of the one before it (the Pareto front)."
    ])
