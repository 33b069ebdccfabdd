#!/usr/bin/env python3
"""State dicts of other programs: foreign_weights_test.py WEIGHTS_PY CASE. Needs torch, numpy and h5py, else it skips."""
from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import resource
import runpy
import struct
import sys
import tempfile
import zipfile

try:
    import h5py
    import numpy as np
    import torch
    from torch import nn
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

WEIGHTS, CASE = sys.argv[1:3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(WEIGHTS).parent))
from convert.model_tensors import tensors_of, usual_image  # noqa: E402


def weights_py(*words: str) -> tuple[int, str]:
    """Exit code and standard error of weights.py, which runs here since importing torch takes seconds."""
    printed = io.StringIO()
    before, sys.argv = sys.argv, [WEIGHTS, *words]
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(WEIGHTS, run_name="__main__")
        return 0, printed.getvalue()
    except SystemExit as ended:
        return int(ended.code or 0), printed.getvalue()
    finally:
        sys.argv = before


def converted(source: str, model: str = "resnet20", *more: str) -> str:
    """The message; empty if the file was converted. Nothing is left of a refused one."""
    before = set(os.listdir()) - {"to.h5"}
    pathlib.Path("to.h5").unlink(missing_ok=True)
    code, message = weights_py("from-torch", source, "to.h5", "--model", model, *more)
    assert code in (0, 3) and (code == 0) == (message == ""), (code, message)
    assert set(os.listdir()) - before == ({"to.h5"} if code == 0 else set()), os.listdir()
    assert message.count("\n") == (code == 3) and message.isascii() and "\x1b" not in message, message
    return message


def of(saved: object, model: str = "resnet20", *more: str) -> str:
    torch.save(saved, "from.pt")
    return converted("from.pt", model, *more)


def state(model: str = "resnet20", image: tuple[int, int, int] | None = None) -> dict[str, torch.Tensor]:
    tensors = {name: torch.full(shape, 0.5) for name, shape in tensors_of(model, 10, image or usual_image(model)).items()}
    counts = {name.replace("running_mean", "num_batches_tracked"): torch.tensor(5) for name in tensors}
    return tensors | {name: count for name, count in counts.items() if name.endswith("tracked")}


def network() -> nn.Module:
    """One with the state dict of resnet20, of which no step can be made."""
    whole = nn.Module()
    for name, values in state().items():
        *path, leaf = name.split(".")
        module = whole
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        if "running" in leaf or "tracked" in leaf:
            module.register_buffer(leaf, values)
        else:
            module.register_parameter(leaf, nn.Parameter(values))
    return whole


def inside(module: nn.Module, name: str = "module") -> nn.Module:
    outer = nn.Module()
    outer.add_module(name, module)
    return outer


def names() -> None:
    good = state()

    def without(*gone: str) -> dict[str, torch.Tensor]:
        return {name: values for name, values in good.items() if name not in gone}

    assert of(good) == ""
    assert of(without("linear.bias")) == "weights.py: from.pt: lacks 1 tensor of resnet20 (linear.bias)\n"
    # As many tensors and values, under other names.
    assert of(without("linear.bias", "linear.weight") | {"fc.bias": good["linear.bias"], "fc.weight": good["linear.weight"]}) \
        == ("weights.py: from.pt: lacks 2 tensors of resnet20 (linear.weight, linear.bias), and has 2 tensors that resnet20 "
            "does not have (fc.bias, fc.weight)\n")
    extra = {f"head.{number}": torch.ones(1) for number in range(5)}
    assert "has 5 tensors that resnet20 does not have (head.0, head.1, head.2 and 2 more)\n" in of(good | extra)
    assert "lacks 60 tensors of resnet32 (" in of(good, "resnet32")
    assert "and 57 more); its names are those of resnet20\n" in of(good, "resnet32")
    assert "its names are those of vgg16\n" in of(state("vgg16"), "vgg16-imagenet")
    assert "names and order of airbench94 are dptrain's own" in of(good, "airbench94")
    for model in ("airbench94", "resnet9", "inception-v4", "preact-resnet18", "vgg16-bn", "resnet18-imagenet"):
        assert of(state(model), model) == "", model
    # Names of a file do not control the terminal, and no message is as long as they are.
    message = of(good | {"a\x1b[2J\nb": torch.ones(1), "c" * 10_000: torch.ones(1)})
    assert "(a?[2J?b, ccc" in message and len(message) < 300, message


def shapes() -> None:
    good = state()
    for name, values, sentence in (
            ("conv1.weight", torch.ones(16, 3, 7, 7), "conv1.weight has the shape 16x3x7x7, and 16x3x3x3 is needed\n"),
            ("conv1.weight", torch.ones(16, 1, 3, 3), "conv1.weight has the shape 16x1x3x3, and 16x3x3x3 is needed for images "
             "of 3x32x32 (--image)\n"),
            ("bn1.weight", torch.ones(16, 1), "bn1.weight has the shape 16x1, and 16 is needed\n"),
            ("bn1.weight", torch.tensor(1.0), "bn1.weight has the shape of a single value, and 16 is needed\n"),
            ("linear.bias", torch.ones(11), "linear.bias has the shape 11, and 10 is needed\n"),
            ("linear.weight", torch.ones(64), "linear.weight has the shape 64, and a matrix with a row for each class is needed"),
            ("linear.weight", torch.ones(0, 64), "linear.weight has the shape 0x64, and a matrix with a row for each class is"),
            # A view of one value takes no memory, until it is copied.
            ("conv1.weight", torch.ones(1).expand(1 << 20, 1 << 20), "conv1.weight has the shape 1048576x1048576, and 16x3x3x3"),
            ("conv1.weight", torch.ones(16, 3, 3, 3, dtype=torch.int32), "conv1.weight has values of the type int32; allowed: "
             "floats"),
            ("conv1.weight", torch.ones(16, 3, 3, 3, dtype=torch.complex64), "conv1.weight is no dense tensor of a type that is"),
            ("linear.weight", torch.ones(10, 64).to_sparse(), "linear.weight is no dense tensor of a type that is known here"),
            ("conv1.weight", torch.full((16, 3, 3, 3), 1e300, dtype=torch.float64), "conv1.weight has a value that is not")):
        message = of(good | {name: values})
        assert f"weights.py: from.pt: {sentence}" in message, message
    grey = good | {"conv1.weight": torch.ones(16, 1, 3, 3)}
    assert of(grey, "resnet20", "--image", "1x28x28") == ""
    head = state("vgg16-imagenet", (3, 64, 64))
    assert "classifier.0.weight has the shape 4096x2048, and 4096x25088 is needed for images of 3x224x224 (--image)" in of(
        head, "vgg16-imagenet")
    assert of(head, "vgg16-imagenet", "--image", "3x64x64") == ""
    for text in ("0x32x32", "3x32", "3x32x99999999999999999999"):
        assert weights_py("from-torch", "from.pt", "no.h5", "--model", "resnet20", "--image", text)[0] == 2


def wrappers() -> None:
    net = network()
    assert of(net.state_dict()) == ""
    assert of(inside(inside(net)).state_dict()) == ""
    assert of(torch.optim.swa_utils.AveragedModel(net).state_dict()) == ""  # "n_averaged" beside "module.*"
    assert of(dict(net.state_dict(), epoch=3, options={"lr": 0.1})) == ""
    tagged = dict(net.named_parameters())
    tagged["conv1.weight"].tag = 1
    assert of({**net.state_dict(), **tagged}) == ""
    assert of({"state_dict": inside(net, "model").state_dict(), "optimizer_states": [{"state": {0: {"m": torch.ones(3)}}}]}) == ""
    compiled = network()
    # torch.compile of a part leaves this name in the middle, FSDP and checkpointing others.
    for wrapper in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
        compiled.layer1 = inside(compiled.layer1, wrapper)
    assert "layer1._checkpoint_wrapped_module._fsdp_wrapped_module._orig_mod.0.conv1.weight" in compiled.state_dict()
    assert of(compiled.state_dict()) == ""
    assert "have the same name without wrappers" in of(dict(net.state_dict(), **{"_orig_mod.linear.bias": torch.ones(10)}))
    if hasattr(torch, "compile"):
        assert of(torch.compile(net).state_dict()) == ""
        assert of(inside(torch.compile(net), "model").state_dict()) == ""
    assert "holds no dicts of tensors, and one is needed; its keys: model, epoch\n" in of({"model": nn.Linear(2, 2), "epoch": 1})
    many = {f"k{number}": number for number in range(30)}
    assert "its keys: k0, k1, k2, k3, k4, k5, k6, k7, k8, k9 and 20 more\n" in of(many)
    for odd, sentence in (({1: torch.ones(1)}, "its keys: 1\n"), ({}, "its keys: none\n"), ([], "but list\n"), (3, "but int\n")):
        assert sentence in of(odd), odd


def safetensors(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, object], bytes]:
    """Header and values."""
    types = {torch.float32: "F32", torch.float16: "F16", torch.int64: "I64", torch.bfloat16: "BF16"}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    values = b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy()) if tensor.ndim else struct.pack("<q", int(tensor))
        header[name] = {"dtype": types[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(values), len(values) + len(raw)]}
        values += raw
    return header, values


def other_formats() -> None:
    good = state()

    def of_parts(header: object, values: bytes = b"", length: int | None = None) -> str:
        text = json.dumps(header).encode()
        pathlib.Path("from.safetensors").write_bytes(
            struct.pack("<Q", len(text) if length is None else length) + text + values)
        return converted("from.safetensors")

    some = {name: torch.arange(values.numel(), dtype=torch.float32).reshape(values.shape) if values.ndim else values
            for name, values in good.items()}
    header, values = safetensors(some)
    assert of_parts(header, values) == ""
    with h5py.File("to.h5", "r") as file:
        for name, tensor in some.items():
            assert "tracked" in name or np.array_equal(file["best"][name][()], tensor.numpy()), name
    assert of_parts(*safetensors({name: one.bfloat16() if one.ndim else one for name, one in good.items()})) == ""
    assert "num_batches_tracked lies at bytes " in of_parts(header, values[:-8])
    for text, sentence in (
            ({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}, "a lies at bytes 0 to 4 of 8"),
            ({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, "a lies at bytes 0 to 4 of 8"),
            ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, "a lies at bytes -4 to 0 of 8"),
            ({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, "a has the type F8_E4M3"),
            ({"a": {"dtype": "F32"}}, "is no state dict, or it is damaged"), ({"a": 3}, "is no state dict, or it is damaged"),
            ({"a": {"dtype": [1], "shape": [1], "data_offsets": [0, 4]}}, "is no state dict, or it is damaged")):
        assert sentence in of_parts(text, bytes(8)), text
    torch.save(good, "from.pt", _use_new_zipfile_serialization=False)
    assert converted("from.pt") == ""
    pathlib.Path("from.pt").write_bytes(pathlib.Path("from.pt").read_bytes()[:5000])
    assert converted("from.pt") != ""
    assert "holds no dicts of tensors" in of({name: values.numpy() for name, values in good.items()})
    os.mkfifo("pipe.pt")
    assert "is not a regular file" in converted("pipe.pt")


def claims() -> None:
    """Small files that ask for much. Reading them takes less than a file of their size can justify."""
    torch.save(state(), "good.pt")
    with zipfile.ZipFile("good.pt") as archive:
        parts = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}

    def of_parts(more: dict[str, bytes], form: int = zipfile.ZIP_STORED) -> str:
        with zipfile.ZipFile("from.pt", "w", form) as archive:
            for name, data in (parts | more).items():
                archive.writestr(f"a/{name}", data)
        return converted("from.pt")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    much = "takes more memory" if sys.version_info >= (3, 14) else "take more memory than a file of its size can justify"
    if sys.version_info < (3, 14):  # pickle's index of what it has seen, which the file sizes
        assert much in of_parts({"data.pkl": b"\x80\x02}r" + struct.pack("<I", 0x20000000) + b"."})
    assert much in of_parts({"data/0": bytes(1 << 30)}, zipfile.ZIP_DEFLATED)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1200 << 10)
    assert "was saved by a big-endian machine" in of_parts({"byteorder": b"big"})
    for damaged in (b"", b"garbage", b"\x80\x02]" + b"(" * 1000 + b".", b"\x80\x02I" + b"9" * 100_000 + b"\n."):
        assert "is no state dict, or it is damaged" in of_parts({"data.pkl": damaged}), damaged[:20]
    parts = {name: data for name, data in parts.items() if not name.startswith("data/")}
    assert "is no state dict, or it is damaged" in of_parts({})


def exported(path: str, change=lambda file: None) -> None:
    """A file as --export writes it."""
    with h5py.File(path, "w") as file:
        file.attrs.update({"format": "dptrain weights 1", "model": "resnet20", "classes": 10})
        group = file.create_group("last")
        group.attrs.update({"epoch": 1, "test_accuracy": 0.5, "test_loss": 1.0})
        for name, values in state().items():
            if "tracked" not in name:
                group[name] = values.numpy()
        file["best"] = group
        change(file)


def to_torch() -> None:
    def refused(sentence: str, change) -> None:
        exported("w.h5", change)
        code, message = weights_py("to-torch", "w.h5", "w.pt")
        assert code == 3 and message.startswith("weights.py: w.h5: ") and message.count("\n") == 1, message
        assert sentence in message and not os.path.lexists("w.pt"), message

    def put(name: str, value: float):
        def change(file: h5py.File) -> None:
            file["best"][name][0] = value
        return change

    def instead(name: str, make):
        def change(file: h5py.File) -> None:
            del file["best"][name]
            make(file["best"])
        return change

    refused("conv1.weight has a value that is not finite", put("conv1.weight", np.nan))
    refused("bn1.running_var has the value -1.0; a variance is at least 0", put("bn1.running_var", -1))
    refused("linear.bias is no tensor of floats", instead("linear.bias", lambda group: group.create_group("linear.bias")))
    refused("linear.bias is no tensor of floats", instead("linear.bias", lambda group: group.create_dataset(
        "linear.bias", data="text")))
    refused("claims 4,294,967,296 bytes", instead("linear.bias", lambda group: group.create_dataset(
        "linear.bias", (1 << 30,), "f4")))
    exported("other.h5")
    refused("linear.bias is no tensor of floats", instead("linear.bias", lambda group: group.__setitem__(
        "linear.bias", h5py.ExternalLink("other.h5", "/best/linear.bias"))))
    refused("it has no group /best", lambda file: file.__delitem__("best"))
    refused("is not a file of exported weights", lambda file: file.attrs.__delitem__("format"))
    exported("w.h5")
    assert weights_py("to-torch", "w.h5", "w.pt") == (0, "")
    assert set(torch.load("w.pt")) == set(state())


def disk_full() -> None:
    """Nothing is left of a file that could not be written whole."""
    torch.save(state(), "from.pt")
    exported("w.h5")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    there = set(os.listdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        for words in (("from-torch", "from.pt", "to.h5", "--model", "resnet20"), ("to-torch", "w.h5", "to.pt")):
            code, message = weights_py(*words)
            assert code == 3 and f"weights.py: {words[2]}: cannot be written: " in message, message
            assert message.count("\n") == 1 and set(os.listdir()) == there, (message, os.listdir())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


with tempfile.TemporaryDirectory(prefix="dptrain-foreign-") as folder:
    os.chdir(folder)
    {case.__name__: case for case in (names, shapes, wrappers, other_formats, claims, to_torch, disk_full)}[CASE]()
    os.chdir("/")
