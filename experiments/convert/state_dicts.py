"""Reads state dicts that other programs saved: torch.save's archives, its older files, and safetensors.

Nothing of a file is executed, and memory is limited to what a file of its size can justify.
"""
from __future__ import annotations

import collections
import json
import math
import os
import pathlib
import pickle
import zipfile

import torch

from report.read_hdf5 import bounded_memory

# Wrappers put these before every name (DistributedDataParallel, torch.compile, Lightning) ...
PREFIXES = ("module.", "_orig_mod.", "model.")
# ... and these anywhere in a name, if a part of the network was wrapped.
INFIXES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

# The keys under which programs keep the weights, beside others such as their moving average.
KNOWN_KEYS = ("state_dict", "model_state_dict", "model", "net")

COUNTS = "n_averaged"  # torch.optim.swa_utils.AveragedModel keeps it beside the names

ALWAYS, GROWTH = 512 << 20, 8  # bytes that reading may take, and times the file's size
MOST_KEYS, LONGEST_NAME = 10, 80  # of a message
LONGEST_HEADER = 100 << 20  # the limit of safetensors


class Unusable(Exception):
    """Why a file gives no state dict."""


def shown(name: object) -> str:
    """A name from a file as a message shows it."""
    text = "".join(c if c.isprintable() else "?" for c in str(name)[:LONGEST_NAME + 1])
    return text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "..."


class Unknown:
    """Stands for an object of any class or function that is not a tensor's; nothing of that runs."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def ignore(self, *_: object) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = add = ignore


class UnknownTensor(Unknown):
    """Stands for a tensor that is not dense, or of a type that is not in STORAGES."""


STORAGES = {"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
            "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
            "ByteStorage": "uint8", "BoolStorage": "bool"}


def _tensor(storage: object, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> object:
    return storage.as_strided(size, stride, offset) if isinstance(storage, torch.Tensor) else UnknownTensor()


class Unpickler(pickle.Unpickler):
    """Makes plain values, dicts and tensors alone, so that a file cannot run code."""

    def __init__(self, archive: zipfile.ZipFile, pickled: str) -> None:
        super().__init__(archive.open(pickled), encoding="utf-8")
        self.archive, self.folder = archive, pickled.removesuffix("data.pkl") + "data/"
        self.storages: dict[tuple[str, str], torch.Tensor] = {}

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch._utils" and name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            return lambda tensor, *_: tensor
        if module == "torch._utils" and name.startswith("_rebuild"):
            return UnknownTensor
        return STORAGES.get(name, Unknown) if module == "torch" else Unknown

    def persistent_load(self, storage: tuple) -> object:
        _, kind, key, _, _ = storage
        if not isinstance(kind, str):
            return UnknownTensor()
        if (kind, key) not in self.storages:
            values = bytearray(self.archive.read(self.folder + key))
            dtype = getattr(torch, kind)
            self.storages[kind, key] = torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)
        return self.storages[kind, key]


def _load_archive(source: str) -> object:
    with zipfile.ZipFile(source) as archive:
        names = archive.namelist()
        if any(name.endswith("/constants.pkl") for name in names):
            raise Unusable("is a TorchScript archive: save model.state_dict()")
        pickled = next(name for name in names if name.endswith("/data.pkl"))
        order = pickled.removesuffix("data.pkl") + "byteorder"
        if order in names and archive.read(order).strip() == b"big":
            raise Unusable("was saved by a big-endian machine: load and save it on this one")
        # PyTorch 1.13 refuses numbers with a point, and every version objects of other programs.
        return Unpickler(archive, pickled).load()


DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
          "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}


def _is_safetensors(source: str) -> bool:
    with open(source, "rb") as file:
        head = file.read(9)
    length = int.from_bytes(head[:8], "little")
    return len(head) == 9 and head[8:] == b"{" and length <= min(LONGEST_HEADER, os.path.getsize(source) - 8)


def _load_safetensors(source: str) -> dict[str, torch.Tensor]:
    """https://huggingface.co/docs/safetensors: length of the header, header as JSON, values."""
    with open(source, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        values = bytearray(file.read())
    state = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        if row["dtype"] not in DTYPES:
            raise Unusable(f"{shown(name)} has the type {shown(row['dtype'])}, which is not known here")
        dtype, shape, (begin, end) = getattr(torch, DTYPES[row["dtype"]]), row["shape"], row["data_offsets"]
        count = math.prod(shape)
        is_whole = end - begin == count * torch.empty(0, dtype=dtype).element_size() and min(shape, default=0) >= 0
        if not 0 <= begin <= end <= len(values) or not is_whole:
            raise Unusable(f"is damaged: {shown(name)} lies at bytes {begin} to {end} of {len(values)}")
        one = torch.frombuffer(values, dtype=dtype, count=count, offset=begin) if count else torch.empty(0, dtype=dtype)
        state[name] = one.reshape(shape)
    return state


def _load(source: str) -> object:
    if zipfile.is_zipfile(source):
        return _load_archive(source)
    if _is_safetensors(source):
        return _load_safetensors(source)
    return torch.load(source, map_location="cpu", weights_only=True)


def _tensors_in(value: object) -> dict[str, torch.Tensor]:
    """With those that are not known here."""
    if not isinstance(value, dict):
        return {}
    return {name: one for name, one in value.items()
            if isinstance(name, str) and isinstance(one, (torch.Tensor, UnknownTensor))}


def _is_state_dict(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and len(_tensors_in(value)) == len(value)


def _chosen(loaded: object) -> dict[str, torch.Tensor]:
    if isinstance(loaded, Unknown):
        raise Unusable("is no state dict, but another Python object such as a whole module: save model.state_dict()")
    if not isinstance(loaded, dict):
        raise Unusable(f"holds no state dict, but {type(loaded).__name__}")
    if _is_state_dict(loaded):
        return loaded
    inner = [key for key, value in loaded.items() if _is_state_dict(value)]
    inner = [key for key in KNOWN_KEYS if key in inner][:1] or inner
    if len(inner) == 1:
        return loaded[inner[0]]
    if not inner and _tensors_in(loaded):  # beside a count of epochs, for example
        return _tensors_in(loaded)
    keys = ", ".join(map(shown, list(loaded)[:MOST_KEYS])) or "none"
    more = f" and {len(loaded) - MOST_KEYS} more" if len(loaded) > MOST_KEYS else ""
    raise Unusable(f"holds {len(inner) or 'no'} dicts of tensors, and one is needed; its keys: {keys}{more}")


def _without_wrappers(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for name, tensor in state.items():
        if isinstance(tensor, UnknownTensor):
            raise Unusable(f"{shown(name)} is no dense tensor of a type that is known here: save it as float32")
    plain = {name: tensor for name, tensor in state.items() if name != COUNTS}
    while prefix := next((one for one in PREFIXES if plain and all(name.startswith(one) for name in plain)), None):
        plain = {name.removeprefix(prefix): tensor for name, tensor in plain.items()}
    names: dict[str, str] = {}  # by the name without wrappers
    for name in plain:
        short = name
        for infix in INFIXES:
            short = short.replace(infix, "")
        if short in names:
            raise Unusable(f"{shown(name)} and {shown(names[short])} have the same name without wrappers")
        names[short] = name
    return {short: plain[name] for short, name in names.items()}


def read(source: str) -> dict[str, torch.Tensor]:
    """The tensors by their names without wrappers. Throws Unusable, OSError, RuntimeError."""
    torch.set_num_threads(1)  # the stacks of others would count as memory
    try:
        with bounded_memory(pathlib.Path(source), ALWAYS, GROWTH):
            return _without_wrappers(_chosen(_load(source)))
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, TypeError, ValueError, AttributeError, KeyError,
            IndexError, StopIteration, NotImplementedError, RecursionError) as error:
        raise Unusable("is no state dict, or it is damaged: save model.state_dict()") from error
    except (MemoryError, OverflowError) as error:
        raise Unusable("is damaged: its values take more memory than a file of its size can justify") from error
