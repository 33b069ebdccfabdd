#!/usr/bin/env python3
"""Turns dptrain's files of weights into PyTorch's state dicts, and state dicts into such files.

  weights.py to-torch   RUN.h5 RUN.pt [--last]         for model.load_state_dict(torch.load("RUN.pt"))
  weights.py from-torch NET.pt NET.h5 --model NAME     for dptrain --model NAME --init NET.h5

RUN.h5 comes from dptrain --export. NET.pt is a state dict, or a checkpoint that holds one and no other dict of tensors.
Names are the same on both sides; "module.", "_orig_mod." and "model." in front of all names are removed. Needs Python
with torch, numpy and h5py.

Exit codes: 0, 2 usage, 3 a file cannot be read or written, 77 a package is missing.
"""
from __future__ import annotations

import argparse
import collections
import os
import pickle
import sys
import zipfile

FORMAT = "dptrain weights 1"
PROGRAM = os.path.basename(sys.argv[0])  # weights.py, or dptrain-weights where it is installed

# By dptrain's name of a model: the number of its tensors, without running statistics, and of the values of its
# convolutions' kernels. Neither depends on the images or the classes. tests/net/model_test.cpp compares them.
MODELS = {
    "resnet18": (62, 11159232), "resnet34": (110, 21259968), "resnet50": (161, 23447232),
    "resnet101": (314, 42387136), "resnet152": (467, 57984704), "resnet20": (59, 267696), "resnet32": (95, 461232),
    "resnet44": (131, 654768), "resnet56": (167, 848304), "resnet110": (329, 1719216), "resnet20b": (65, 270256),
    "resnet32b": (101, 463792), "resnet44b": (137, 657328), "resnet56b": (173, 850864), "resnet110b": (335, 1721776),
    "resnet18-imagenet": (62, 11166912), "resnet34-imagenet": (110, 21267648), "resnet50-imagenet": (161, 23454912),
    "resnet101-imagenet": (314, 42394816), "resnet152-imagenet": (467, 57992384), "preact-resnet18": (54, 11159232),
    "preact-resnet34": (102, 21259968), "preact-resnet50": (151, 23447232), "preact-resnet101": (304, 42387136),
    "preact-resnet152": (457, 57984704), "inception-v4": (449, 41079648), "inception-v4-imagenet": (449, 41079648),
    "vgg16": (28, 14710464), "vgg16-bn": (54, 14710464), "vgg16-imagenet": (32, 14710464),
    "vgg16-bn-imagenet": (58, 14710464), "resnet9": (25, 6563520), "airbench94": (15, 1967904),
}

# Models whose names and branches are dptrain's own, with a name that no other program's state dict has.
OWN_NAMES = {"inception-v4": "features.6.branch0.1.conv.weight", "resnet9": "prep.conv.weight",
             "airbench94": "block1.conv1.weight"}


def end(code: int, message: str) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    sys.exit(code)


try:
    import h5py
    import numpy
    import torch
except ImportError as error:
    end(77, f"{error}; install torch, numpy and h5py, for example with pip in a virtual environment")


def to_torch(source: str, target: str, group: str) -> None:
    with h5py.File(source, "r", locking=False) as file:
        if file.attrs.get("format") != FORMAT:
            end(3, f"{source}: is not a file of exported weights")
        weights = file[group]
        state = {name: torch.from_numpy(weights[name][()]) for name in weights}
        for name in list(state):
            if name.endswith(".running_mean"):  # PyTorch's count of training batches
                state[name.removesuffix("running_mean") + "num_batches_tracked"] = torch.tensor(0)
        try:
            with open(target, "xb") as whole:  # follows no link that was put there since
                torch.save(state, whole)
        except (OSError, RuntimeError) as error:
            end(3, f"{target}: cannot be written: {error}")
        print(f"{target}: {file.attrs['model']}, {len(state)} tensors, epoch {weights.attrs['epoch'] + 1}, "
              f"test accuracy {100 * weights.attrs['test_accuracy']:.2f} %")


# What wrappers put in front of every name: DistributedDataParallel, torch.compile, Lightning.
PREFIXES = ("module.", "_orig_mod.", "model.")

# Under which programs keep the weights, beside others such as their moving average.
KNOWN_KEYS = ("state_dict", "model_state_dict", "model", "net")


def is_state_dict(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(one, torch.Tensor) for one in value.values())


class Unknown:
    """Stands for an object of any class or function that is not a tensor's; nothing of that runs."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def ignore(self, *_: object) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = add = ignore


STORAGES = {"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
            "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
            "ByteStorage": "uint8", "BoolStorage": "bool"}


class Unpickler(pickle.Unpickler):
    """Makes plain values, dicts and tensors alone, so that a file cannot run code."""

    def __init__(self, archive: zipfile.ZipFile, pickled: str) -> None:
        super().__init__(archive.open(pickled), encoding="utf-8")
        self.archive, self.folder = archive, pickled.removesuffix("data.pkl") + "data/"

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return lambda values, offset, size, stride, *_: values.as_strided(size, stride, offset)
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda tensor, *_: tensor
        return STORAGES.get(name, Unknown) if module == "torch" else Unknown

    def persistent_load(self, storage: tuple) -> "torch.Tensor":
        _, kind, key, _, _ = storage
        values = bytearray(self.archive.read(self.folder + key))
        return torch.frombuffer(values, dtype=getattr(torch, kind)) if values else torch.empty(0)


def load(source: str) -> object:
    if not zipfile.is_zipfile(source):
        return torch.load(source, map_location="cpu", weights_only=True)
    with zipfile.ZipFile(source) as archive:
        names = archive.namelist()
        if any(name.endswith("/constants.pkl") for name in names):
            end(3, f"{source}: is a TorchScript archive: save model.state_dict()")
        # PyTorch 1.13 refuses numbers with a point, and every version objects of other programs.
        return Unpickler(archive, next(name for name in names if name.endswith("/data.pkl"))).load()


def state_dict_of(source: str) -> dict[str, "torch.Tensor"]:
    try:
        loaded = load(source)
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, TypeError, AttributeError, StopIteration):
        end(3, f"{source}: is no state dict, or it is damaged: save model.state_dict()")
    if isinstance(loaded, Unknown):
        end(3, f"{source}: is no state dict, but another Python object such as a whole module: save model.state_dict()")
    if isinstance(loaded, dict) and not is_state_dict(loaded):
        inner = [key for key, value in loaded.items() if is_state_dict(value)]
        inner = [key for key in KNOWN_KEYS if key in inner][:1] or inner
        if len(inner) != 1:
            keys = ", ".join(map(str, list(loaded)[:10])) or "none"
            end(3, f"{source}: holds {len(inner) or 'no'} dicts of tensors, and one is needed; its keys: {keys}")
        loaded = loaded[inner[0]]
    if not is_state_dict(loaded):
        end(3, f"{source}: holds no state dict, but {type(loaded).__name__}")
    while prefix := next((one for one in PREFIXES if all(name.startswith(one) for name in loaded)), None):
        loaded = {name.removeprefix(prefix): tensor for name, tensor in loaded.items()}
    return loaded


def check_values(source: str, state: dict[str, "numpy.ndarray"]) -> None:
    for name, tensor in state.items():
        if not numpy.isfinite(tensor).all():
            end(3, f"{source}: {name} has a value that is not finite")
        if name.endswith(".running_var") and (tensor < 0).any():
            end(3, f"{source}: {name} has the value {tensor.min()}; a variance is at least 0")


def write_weights(path: str, model: str, classes: int, image: tuple[int, int, int],
                  state: dict[str, "numpy.ndarray"]) -> None:
    if os.path.lexists(path):
        os.remove(path)
    # HDF5 opens by name and follows links, so it gets a name of the file that is open already.
    with open(path, "xb") as new, h5py.File(f"/proc/self/fd/{new.fileno()}", "w", locking=False) as file:
        file.attrs["format"] = FORMAT
        file.attrs["model"] = model
        file.attrs["classes"] = numpy.int64(classes)
        for name, length in zip(("channels", "height", "width"), image):
            file.attrs[name] = numpy.int64(length)
        group = file.create_group("last")
        group.attrs["epoch"] = numpy.int64(0)
        group.attrs["test_accuracy"] = group.attrs["test_loss"] = numpy.float64("nan")
        for name, tensor in state.items():
            group.create_dataset(name, data=tensor.astype("<f4"))
        file["best"] = group


def check_model(source: str, model: str, state: dict[str, "numpy.ndarray"]) -> None:
    """Refuses weights that are not those of the model, as far as the numbers of tensors and of values tell."""
    own = OWN_NAMES.get(model.removesuffix("-imagenet"))
    if own is not None and own not in state:
        end(3, f"{source}: has no tensor {own}: names and order of {model} are dptrain's own, and weights of other "
            "programs, such as timm, do not fit")
    trained = [tensor for name, tensor in state.items() if not name.endswith((".running_mean", ".running_var"))]
    found = (len(trained), sum(tensor.size for tensor in trained if tensor.ndim == 4))
    if found == MODELS[model]:
        return
    others = [name for name, numbers in MODELS.items() if numbers == found]
    tensors, values = MODELS[model]
    end(3, f"{source}: has {found[0]} tensors and {found[1]:,} values in kernels of convolutions" +
        (f", as {' and '.join(others)}" if others else "") + f"; --model {model} has {tensors} and {values:,}")


def from_torch(source: str, target: str, model: str, image: tuple[int, int, int]) -> None:
    state = {name: tensor.detach().float().numpy() for name, tensor in state_dict_of(source).items()
             if not name.endswith("num_batches_tracked")}
    matrices = [tensor for tensor in state.values() if tensor.ndim == 2]
    if not matrices:
        end(3, f"{source}: has no linear layer, whose rows are the classes")
    check_model(source, model, state)
    check_values(source, state)
    part = target + ".part"
    try:
        write_weights(part, model, matrices[-1].shape[0], image, state)
        os.rename(part, target)
    except OSError as error:
        if os.path.exists(part):
            os.remove(part)
        end(3, f"{target}: cannot be written: {error}")
    print(f"{target}: {model}, {len(state)} tensors, {matrices[-1].shape[0]} classes")


def image_size(text: str) -> tuple[int, int, int]:
    lengths = text.split("x")
    if len(lengths) != 3 or not all(length.isdecimal() and int(length) > 0 for length in lengths):
        raise argparse.ArgumentTypeError(f"{text!r}: must be CHANNELSxHEIGHTxWIDTH, such as 3x32x32")
    return tuple(map(int, lengths))


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    out = commands.add_parser("to-torch", allow_abbrev=False, help="a file of --export to a state dict")
    out.add_argument("source", metavar="RUN.h5")
    out.add_argument("target", metavar="RUN.pt")
    out.add_argument("--last", action="store_true", help="the last epoch's weights, not the best epoch's")
    back = commands.add_parser("from-torch", allow_abbrev=False, help="a state dict to a file for --init")
    back.add_argument("source", metavar="NET.pt")
    back.add_argument("target", metavar="NET.h5")
    back.add_argument("--model", required=True, choices=MODELS, metavar="NAME",
                      help="dptrain's name of the model: " + ", ".join(MODELS))
    back.add_argument("--image", type=image_size, default=(3, 32, 32), metavar="CxHxW",
                      help="the size of its images [3x32x32]")
    arguments = parser.parse_args()
    if os.path.lexists(arguments.target):
        end(3, f"{arguments.target}: exists already and is not overwritten")
    try:
        if arguments.command == "to-torch":
            to_torch(arguments.source, arguments.target, "last" if arguments.last else "best")
        else:
            from_torch(arguments.source, arguments.target, arguments.model, arguments.image)
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        end(3, f"{arguments.source}: {error}")
    except Exception as error:  # torch raises what unpickling raises
        end(3, f"{arguments.source}: cannot be read: {type(error).__name__}: {error}")


main()
