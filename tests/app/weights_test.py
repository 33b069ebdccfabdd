#!/usr/bin/env python3
"""Weights out of a run and into others: weights_test.py DPTRAIN MPIRUN WEIGHTS_PY CASE."""
from __future__ import annotations

import argparse
import contextlib
import io
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}; apt-get install python3-h5py")
    sys.exit(77)

DPTRAIN, MPIRUN, WEIGHTS, CASE = sys.argv[1:5]
SMALL = {"--model": "resnet20", "--limit-train": "128", "--limit-test": "60", "--batch-size": "16", "--threads": "1",
         "--autotune": "off"}


def dptrain(ranks: int, *options: str, code: int = 0) -> str:
    """Both outputs of a run that must end with this exit code. An option without a value has an empty one."""
    chosen = SMALL | dict(zip(options[::2], options[1::2]))
    words = [word for pair in chosen.items() for word in pair if word]
    done = subprocess.run([MPIRUN, "-np", str(ranks), DPTRAIN, *words], capture_output=True, text=True, timeout=120)
    output = done.stdout + done.stderr
    assert done.returncode == code, f"exit {done.returncode}, not {code}\n{output}"
    return output


def evaluated(*options: str) -> tuple[float, float]:
    """Loss and accuracy that --epochs 0 prints."""
    output = dptrain(2, "--epochs", "0", *options)
    found = re.search(r"test loss ([\d.]+)  accuracy ([\d.]+) %  \(60 images\)", output)
    assert found, output
    return float(found[1]), float(found[2])


def train() -> h5py.File:
    """Three epochs. Their results, and so what is exported, are those of the averaged weights."""
    dptrain(2, "--epochs", "3", "--lr", "0.4", "--lr-schedule", "constant", "--ema", "0.5", "--export", "w.h5",
            "--log", "log.h5", "--test-augment", "shift")
    return h5py.File("w.h5", "r")


def round_trip() -> None:
    epochs = h5py.File("log.h5", "r")["epochs"][:] if train() else None
    with h5py.File("w.h5", "r") as file:
        best = int(np.argmax(epochs["test_accuracy"]))
        assert file["best"].attrs["epoch"] == best and file["last"].attrs["epoch"] == 2
        assert file["best"].attrs["test_accuracy"] == epochs["test_accuracy"][best]
        assert file["last/conv1.weight"].shape == (16, 3, 3, 3) and file["last/conv1.weight"].dtype == "<f4"
        assert file["last/bn1.running_mean"].shape == (16,)
        assert (file["last"].id == file["best"].id) == (best == 2)
        assert file.attrs["model"] == "resnet20" and file.attrs["classes"] == 10 and file.attrs["height"] == 32
    for which, epoch in (("last", 2), ("best", best)):
        loss, accuracy = evaluated("--init", "w.h5", "--init-from", which)
        assert abs(loss - epochs["test_loss"][epoch]) < 1e-4 * loss + 5e-5, (which, loss, epochs["test_loss"])
        assert abs(accuracy - 100 * epochs["test_accuracy"][epoch]) < 0.01
    # The mean over views stands beside the plain result, in the log, too.
    output = dptrain(2, "--epochs", "0", "--init", "w.h5", "--init-from", "last", "--test-augment", "shift")
    found = re.search(r"with test-time augmentation \(shift\): test loss ([\d.]+)  accuracy ([\d.]+) %", output)
    assert found and re.search(r"test loss [\d.]+  accuracy [\d.]+ %  \(60 images\)", output), output
    with h5py.File("log.h5", "r") as file:
        assert file.attrs["test_augment"] == "shift"
        assert abs(file.attrs["augmented_test_loss"] - float(found[1])) < 1e-4 * float(found[1]) + 5e-5
        assert abs(100 * file.attrs["augmented_test_accuracy"] - float(found[2])) < 0.01
        assert file.attrs["augmented_test_loss"] != epochs["test_loss"][2]
    # With --quiet the results are all that is printed; without, a line says what is evaluated.
    quiet = dptrain(2, "--epochs", "0", "--init", "w.h5", "--init-from", "last", "--test-augment", "shift", "--quiet", "")
    assert quiet.splitlines() == output.splitlines()[-2:], quiet
    assert re.fullmatch(r"dptrain \S+: evaluates resnet20 with the weights of w.h5 on synthetic \(60 test images\), 2 ranks.",
                        output.splitlines()[0]), output
    # Training goes on from there: a step as small as nothing leaves the weights as they were.
    dptrain(2, "--epochs", "1", "--lr", "1e-30", "--init", "w.h5", "--init-from", "last", "--export", "again.h5",
            "--log", "none")
    with h5py.File("w.h5", "r") as a, h5py.File("again.h5", "r") as b:
        for name in a["last"]:
            same = np.array_equal(a["last"][name][()], b["last"][name][()])
            assert same == ("running" not in name), name
    assert not list(pathlib.Path().glob("*.part"))


def frozen_weights() -> None:
    """Whitening weights come from the training images, are the same on all ranks and are not trained."""
    airbench = ["--model", "airbench94", "--limit-test", "16", "--batch-size", "8", "--lr", "0.001", "--log", "none"]
    for name, epochs in (("one.h5", "1"), ("two.h5", "2")):
        output = dptrain(2, *airbench, "--limit-train", "16", "--epochs", epochs, "--export", name, "--check-replicas",
                         "step", "--weight-decay", "0.1")
        assert "1,971,352 (" in output and ", and 288 frozen" in output, output
    with h5py.File("one.h5", "r") as one, h5py.File("two.h5", "r") as two:
        weights = one["last/whiten.weight"][()]
        assert weights.shape == (24, 3, 2, 2) and np.array_equal(weights[:12], -weights[12:])
        rows = weights[:12].reshape(12, 12).astype("f8")
        products = rows @ rows.T
        lengths = np.diag(products)
        assert np.all(np.diff(lengths) >= 0) and np.abs(products - np.diag(lengths)).max() < 1e-5 * lengths.max()
        assert np.array_equal(weights, two["last/whiten.weight"][()])
        assert not np.array_equal(one["last/whiten.bias"][()], two["last/whiten.bias"][()])
        assert "last/block1.norm1.weight" not in one
    # Other images have other whitening weights; those of the file replace them.
    dptrain(2, *airbench, "--limit-train", "20", "--epochs", "1", "--lr", "1e-30", "--init", "one.h5", "--export",
            "three.h5")
    dptrain(2, *airbench, "--limit-train", "20", "--epochs", "1", "--export", "four.h5")
    with h5py.File("three.h5", "r") as three, h5py.File("four.h5", "r") as four:
        assert np.array_equal(weights, three["last/whiten.weight"][()])
        assert not np.array_equal(weights, four["last/whiten.weight"][()])


def refusals() -> None:
    train().close()
    pathlib.Path("text.h5").write_text("no weights\n")
    with h5py.File("other.h5", "w") as file:
        file["x"] = 1
    with h5py.File("w.h5", "r") as good, h5py.File("wide.h5", "w") as file:
        for name in good.attrs:
            file.attrs[name] = good.attrs[name]
        good.copy("last", file)
        del file["last/linear.weight"]
        file["last/linear.weight"] = np.zeros((100, 64), "f4")
        file["best"] = file["last"]
    for name, tensor, value in (("nan.h5", "conv1.weight", np.nan), ("inf.h5", "linear.bias", np.inf),
                                ("negative.h5", "bn1.running_var", -1)):
        with h5py.File("w.h5", "r") as good, h5py.File(name, "w") as file:
            file.attrs.update(good.attrs)
            good.copy("last", file)
            file["last"][tensor][0] = value
            file["best"] = file["last"]
    for options, code, sentence in (
            (["--init", "none-there.h5"], 3, "--init none-there.h5: No such file or directory"),
            (["--init", "text.h5"], 3, "--init text.h5: is not a file of exported weights, or it is damaged"),
            (["--init", "log.h5"], 3, "--init log.h5: is not a file of exported weights"),
            (["--init", "other.h5"], 3, "--init other.h5: is not a file of exported weights"),
            (["--init", "w.h5", "--model", "resnet32"], 3, "has no tensor layer"),
            (["--init", "wide.h5"], 3, "linear.weight has the shape 100x64 instead of 10x64"),
            (["--init", "nan.h5"], 3, "--init nan.h5: conv1.weight has the value nan; allowed: finite values"),
            (["--init", "inf.h5"], 3, "--init inf.h5: linear.bias has the value inf; allowed: finite values"),
            (["--init", "negative.h5"], 3, "--init negative.h5: bn1.running_var has the value -1; allowed: finite "
             "values of at least 0"),
            (["--init", "w.h5", "--init-except", "fc.*"], 2, "--init-except fc.*: matches no tensor of the model; its first tensor is "),
            (["--export", "w.h5"], 3, "--export w.h5: exists already and is not overwritten"),
            (["--export", "x.h5", "--log", "x.h5"], 2, "--export x.h5: is also the name of the log"),
            (["--export", "no-folder/x.h5"], 3, "--export no-folder/x.h5: cannot be created")):
        words = ["--epochs", "1", *(["--log", "none"] if "--log" not in options else []), *options]
        output = dptrain(2, *words, code=code)
        assert sentence in output, f"{options}\n{output}"
    before = evaluated("--init", "w.h5")
    assert evaluated("--init", "wide.h5", "--init-except", "linear.*") != before


def weights_py(*words: str) -> tuple[int, str]:
    """Exit code and standard error of weights.py, which runs here since importing torch takes seconds."""
    said = io.StringIO()
    before, sys.argv = sys.argv, [WEIGHTS, *words]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(WEIGHTS, run_name="__main__")
        return 0, said.getvalue()
    except SystemExit as ended:
        return ended.code, said.getvalue()
    finally:
        sys.argv = before


class Foreign:
    """An object of another program: reading it as pickle does would make a folder."""

    def __reduce__(self):
        return os.mkdir, ("made-by-the-file",)


def foreign_state_dicts(torch, state) -> None:
    """What other programs save: wrapped, with prefixes, damaged values, whole modules."""

    def convert(saved, model: str = "resnet20") -> str:
        torch.save(saved, "s.pt")
        pathlib.Path("s.h5").unlink(missing_ok=True)
        code, said = weights_py("from-torch", "s.pt", "s.h5", "--model", model)
        assert code in (0, 3) and pathlib.Path("s.h5").exists() == (code == 0), said
        if code == 0:
            with h5py.File("s.h5", "r") as file:
                assert "conv1.weight" in file["best"], list(file["best"])
        return said

    def prefixed(prefix: str) -> dict:
        return {prefix + name: tensor for name, tensor in state.items()}

    for saved in (prefixed("_orig_mod."), prefixed("module.module."), prefixed("_orig_mod.module."),
                  {"state_dict": prefixed("model."), "epoch": 1}, {"net": state, "acc": 90.0},
                  {"model_state_dict": state, "average": dict(state)}, {"weights": state},
                  {"net": state, "loss": -1e300, "big": 1 << 80, "bytes": b"x", "names": {"a", 2.5}, "pair": (1j, None),
                   "accuracy": np.float64(0.5), "options": argparse.Namespace(lr=0.1), "path": pathlib.Path("x"),
                   "classes": [Foreign, type(state)], "object": Foreign()}):
        said = convert(saved)
        assert said == "", said
    assert not os.path.exists("made-by-the-file")
    assert "holds 2 dicts of tensors, and one is needed; its keys: a, b" in convert({"a": state, "b": state})
    assert "a whole module" in convert(torch.nn.Linear(2, 2))
    assert "bn1.running_var has the value -1.0" in convert(state | {"bn1.running_var": -torch.ones(16)})
    assert "linear.bias has a value that is not finite" in convert(state | {"linear.bias": torch.full((10,), torch.nan)})
    module = torch.jit.script(torch.nn.Linear(2, 2))
    module.save("script.pt")
    assert "is a TorchScript archive" in weights_py("from-torch", "script.pt", "s.h5", "--model", "resnet20")[1]
    pathlib.Path("short.pt").write_bytes(pathlib.Path("s.pt").read_bytes()[:-1000])
    code, said = weights_py("from-torch", "short.pt", "s.h5", "--model", "resnet20")
    assert code == 3 and said.count("\n") == 1, said
    neighbour = {name: torch.ones(2, 2) for name in (
        "features.0.conv.weight", "features.0.bn.weight", "features.3.conv.weight", "features.4.branch0.0.conv.weight",
        "features.6.branch1.2.conv.weight", "last_linear.weight", "last_linear.bias")}  # as timm's inception_v4
    for model in ("inception-v4", "inception-v4-imagenet"):
        assert f"names and order of {model} are dptrain's own" in convert(neighbour, model)
    for model in ("inception-v4", "inception-v4-imagenet", "resnet9", "airbench94"):
        assert f"names and order of {model} are dptrain's own" in convert(state, model)


def torch() -> None:
    try:
        import torch
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    train().close()
    for words in (["to-torch", "w.h5", "w.pt"], ["from-torch", "w.pt", "back.h5", "--model", "resnet20"]):
        code, said = weights_py(*words)
        assert code == 0, said
    for model, code, sentence in (
            ("resnet32", 3, "weights.py: w.pt: lacks 60 tensors of resnet32 (layer1.3.conv1.weight, layer1.3.bn1.weight, "
             "layer1.3.bn1.bias and 57 more); its names are those of resnet20\n"), ("resnet21", 2, "--model: invalid choice")):
        ended, said = weights_py("from-torch", "w.pt", "no.h5", "--model", model)
        assert ended == code and sentence in said, said
        assert not list(pathlib.Path().glob("no.h5*"))
    state = torch.load("w.pt", weights_only=True)
    with h5py.File("w.h5", "r") as a, h5py.File("back.h5", "r") as b:
        assert set(a["best"]) == set(b["best"]) == {name for name in state if "num_batches" not in name}
        assert all(np.array_equal(a["best"][name][()], b["best"][name][()]) for name in a["best"])
    for target, words in (("linked.h5", ["from-torch", "w.pt", "linked.h5", "--model", "resnet20"]),
                          ("linked.pt", ["to-torch", "w.h5", "linked.pt"])):
        os.symlink("back.h5", target + ".part")
        before = pathlib.Path("back.h5").read_bytes()
        code, said = weights_py(*words)
        assert code == 0 and pathlib.Path("back.h5").read_bytes() == before and not os.path.islink(target), said
    foreign_state_dicts(torch, state)
    assert evaluated("--init", "back.h5") == evaluated("--init", "w.h5")


os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
with tempfile.TemporaryDirectory(prefix="dptrain-weights-") as folder:
    os.chdir(folder)
    {"round_trip": round_trip, "frozen_weights": frozen_weights, "refusals": refusals, "torch": torch}[CASE]()
    os.chdir("/")
