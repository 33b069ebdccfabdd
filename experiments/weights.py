#!/usr/bin/env python3
"""Turns dptrain's files of weights into PyTorch's state dicts, and state dicts into such files.

  weights.py to-torch   RUN.h5 RUN.pt [--last]         for model.load_state_dict(torch.load("RUN.pt"))
  weights.py from-torch NET.pt NET.h5 --model NAME     for dptrain --model NAME --init NET.h5

RUN.h5 comes from dptrain --export. NET.pt is a state dict, also one of safetensors, or a checkpoint that holds one and no
other dict of tensors. Names and shapes are the same on both sides, and are compared. "module.", "_orig_mod." and "model."
in front of all names are removed. Needs Python with torch, numpy and h5py.

Exit codes: 0, 2 usage, 3 a file cannot be read or written, or does not fit the model, 77 a package is missing.
"""
from __future__ import annotations

import argparse
import io
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

FORMAT = "dptrain weights 1"
PROGRAM = os.path.basename(sys.argv[0])  # weights.py, or dptrain-weights where it is installed


def end(code: int, message: str) -> None:
    print(f"{PROGRAM}: {' '.join(message.splitlines())}", file=sys.stderr)
    sys.exit(code)


try:
    import h5py
    import numpy
    import torch
except ImportError as error:
    end(77, f"{error}; install torch, numpy and h5py, for example with pip in a virtual environment")

from convert import state_dicts  # noqa: E402
from convert.model_tensors import MODELS, Image, Shape, tensors_of, usual_image  # noqa: E402
from convert.state_dicts import shown  # noqa: E402
from lab.new_files import whole_file  # noqa: E402
from report import read_hdf5  # noqa: E402

# Models whose names and branches are dptrain's own.
OWN_NAMES = ("inception-v4", "inception-v4-imagenet", "resnet9", "airbench94")
MOST_NAMED = 3
LONGEST_SIDE = 65_535  # pixels; dptrain takes no larger images


def check_values(source: str, state: dict[str, numpy.ndarray]) -> None:
    for name, tensor in state.items():
        if not numpy.isfinite(tensor).all():
            end(3, f"{source}: {shown(name)} has a value that is not finite")
        if name.endswith(".running_var") and (tensor < 0).any():
            end(3, f"{source}: {shown(name)} has the value {tensor.min()}; a variance is at least 0")


def weights_in(source: str, group: str) -> tuple[str, dict[str, object], dict[str, numpy.ndarray]]:
    """The model, the attributes of the group, and its tensors by name."""
    with h5py.File(source, "r", locking=False) as file:
        attributes = read_hdf5.attributes(file)
        if attributes.get("format") != FORMAT:
            end(3, f"{source}: is not a file of exported weights")
        weights = read_hdf5.child(file, group)
        if not isinstance(weights, h5py.Group):
            end(3, f"{source}: is damaged: it has no group /{group}")
        state = {}
        for name in weights:
            tensor = read_hdf5.child(weights, name)
            if not isinstance(tensor, h5py.Dataset) or tensor.dtype.kind != "f":
                end(3, f"{source}: is damaged: {shown(name)} is no tensor of floats")
            state[name] = read_hdf5.values(tensor)
        return str(attributes.get("model")), read_hdf5.attributes(weights), state


def write_new(target: str, content: io.BytesIO) -> None:
    """HDF5 and PyTorch write into memory, since they may crash if they cannot write a file."""
    try:
        with whole_file(target, replaces=False) as file:
            file.write(content.getbuffer())
    except OSError as error:
        end(3, f"{target}: cannot be written: {error.strerror}")


def to_torch(source: str, target: str, group: str) -> None:
    model, attributes, arrays = weights_in(source, group)
    check_values(source, arrays)
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for name in arrays:
        if name.endswith(".running_mean"):  # PyTorch's count of training batches
            state[name.removesuffix("running_mean") + "num_batches_tracked"] = torch.tensor(0)
    content = io.BytesIO()
    torch.save(state, content)
    write_new(target, content)
    print(f"{target}: {model}, {len(state)} tensors, epoch {int(attributes['epoch']) + 1}, "
          f"test accuracy {100 * float(attributes['test_accuracy']):.2f} %")


def weights_file(model: str, classes: int, image: Image, state: dict[str, numpy.ndarray]) -> io.BytesIO:
    """A file as --export writes it."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
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
    return content


def shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "of a single value"


def some(names: list[str], which: str) -> str:
    """"1 tensor of resnet20 (a)", "12 tensors of resnet20 (a, b, c and 9 more)"."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'} {which} ({', '.join(map(shown, names[:MOST_NAMED]))}{more})"


def check_names(source: str, model: str, names: list[str]) -> None:
    needed = tensors_of(model, 1, usual_image(model))
    missing = [name for name in needed if name not in names]
    unknown = [name for name in names if name not in needed]
    if not missing and not unknown:
        return
    parts = [f"lacks {some(missing, f'of {model}')}"] if missing else []
    parts += [f"has {some(unknown, f'that {model} does not have')}"] if unknown else []
    others = [other for other in MODELS if set(tensors_of(other, 1, usual_image(other))) == set(names)]
    if model in OWN_NAMES:
        hint = (f"; names and order of {model} are dptrain's own, and weights of other programs, such as timm, do not "
                "fit")
    else:
        hint = f"; its names are those of {' and '.join(others)}" if others else ""
    end(3, f"{source}: {', and '.join(parts)}{hint}")


def check_shapes(source: str, model: str, image: Image, state: dict[str, torch.Tensor]) -> int:
    """Returns the number of classes."""
    last = [name for name, shape in tensors_of(model, 1, image).items() if len(shape) == 2][-1]
    classes = state[last].shape[0] if state[last].ndim == 2 else 0
    if classes == 0:
        end(3, f"{source}: {last} has the shape {shape_text(state[last].shape)}, and a matrix with a row for each class is "
            "needed")
    larger = tensors_of(model, classes, (image[0] + 1, 2 * image[1] + 64, 2 * image[2] + 64))
    for name, shape in tensors_of(model, classes, image).items():
        tensor = state[name]
        if tuple(tensor.shape) != shape:
            follows_image = tensor.ndim == len(shape) and all(
                found == needed or needed != other for found, needed, other in zip(tensor.shape, shape, larger[name]))
            why = f" for images of {shape_text(image)} (--image)" if follows_image else ""
            end(3, f"{source}: {name} has the shape {shape_text(tensor.shape)}, and {shape_text(shape)} is needed{why}")
        if not tensor.is_floating_point():
            end(3, f"{source}: {name} has values of the type {str(tensor.dtype).removeprefix('torch.')}; allowed: floats")
    return classes


def from_torch(source: str, target: str, model: str, image: Image) -> None:
    found = {name: tensor for name, tensor in state_dicts.read(source).items() if not name.endswith("num_batches_tracked")}
    check_names(source, model, list(found))
    classes = check_shapes(source, model, image, found)
    state = {name: tensor.detach().float().numpy() for name, tensor in found.items()}
    check_values(source, state)
    write_new(target, weights_file(model, classes, image, state))
    print(f"{target}: {model}, {len(state)} tensors, {classes} classes")


def image_size(text: str) -> Image:
    lengths = text.split("x")
    if len(lengths) != 3 or not all(length.isdecimal() and 0 < int(length) <= LONGEST_SIDE for length in lengths):
        raise argparse.ArgumentTypeError(f"{text!r}: must be CHANNELSxHEIGHTxWIDTH, such as 3x32x32, each from 1 to "
                                         f"{LONGEST_SIDE:,}")
    channels, height, width = map(int, lengths)
    return channels, height, width


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
    back.add_argument("--image", type=image_size, metavar="CxHxW",
                      help="the size of its images [3x32x32; 3x224x224 for NAME-imagenet, 3x299x299 for Inception]")
    arguments = parser.parse_args()
    source = arguments.source
    if os.path.lexists(arguments.target):
        end(3, f"{arguments.target}: exists already and is not overwritten")
    try:
        if not os.path.isfile(source) and os.path.exists(source):
            end(3, f"{source}: is not a regular file")
        if arguments.command == "to-torch":
            with read_hdf5.bounded_memory(pathlib.Path(source), state_dicts.ALWAYS, state_dicts.GROWTH):
                to_torch(source, arguments.target, "last" if arguments.last else "best")
        else:
            from_torch(source, arguments.target, arguments.model, arguments.image or usual_image(arguments.model))
    except state_dicts.Unusable as error:
        end(3, f"{source}: {error}")
    except (read_hdf5.TooLarge, read_hdf5.Elsewhere) as error:
        end(3, f"{source}: is damaged: {error}")
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        end(3, f"{source}: {error}")
    except Exception as error:  # torch raises what unpickling raises
        end(3, f"{source}: cannot be read: {type(error).__name__}: {error}")


main()
