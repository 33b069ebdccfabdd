"""Options of earlier versions of dptrain that are keys of another option today, as app/options/options_removed.cpp has
them. Logs and curves that have the earlier ones are read as if today's dptrain had written them."""
from __future__ import annotations

from typing import NamedTuple


class _Earlier(NamedTuple):
    name: str
    option: str  # that has its value today
    names: tuple[str, ...]  # values of that option with the key; none: all
    keys: tuple[str, ...]
    presets: tuple[str, ...]  # are not written


_EARLIER = (
    _Earlier("beta1", "optimizer", ("adam", "adamw"), ("beta1",), ("0.9",)),
    _Earlier("beta2", "optimizer", ("adam", "adamw"), ("beta2",), ("0.999",)),
    _Earlier("epsilon", "optimizer", ("adam", "adamw"), ("epsilon",), ("1e-08",)),
    _Earlier("lars-trust", "optimizer", ("lars",), ("trust",), ("0.001",)),
    _Earlier("muon-lr", "optimizer", ("muon",), ("lr",), ("0.24",)),
    _Earlier("muon-momentum", "optimizer", ("muon",), ("momentum",), ("0.6",)),
    _Earlier("muon-linear", "optimizer", ("muon",), ("linear",), ("off",)),
    _Earlier("lr-milestones", "lr-schedule", ("step",), ("milestones",), ("",)),
    _Earlier("lr-gamma", "lr-schedule", ("step",), ("gamma",), ("0.1",)),
    _Earlier("lr-triangle", "lr-schedule", ("triangular",), ("start", "peak", "end"), ("0.2", "0.23", "0.07")),
    _Earlier("lr-power", "lr-schedule", ("poly",), ("power",), ("2",)),
    _Earlier("lr-interval", "lr-schedule", (), ("by",), ("step",)),
    _Earlier("crop-padding", "augment", ("on",), ("padding",), ("4",)),
    _Earlier("crop-fill", "augment", ("on",), ("fill",), ("black",)),
    _Earlier("flip", "augment", ("on",), ("flip",), ("random",)),
    _Earlier("outer-lr", "sync-every", (), ("outer-lr",), ("1",)),
    _Earlier("outer-momentum", "sync-every", (), ("outer-momentum",), ("0",)),
    _Earlier("sync-delay", "sync-every", (), ("delay",), ("0",)),
    _Earlier("cutout", "augment", ("on",), ("cutout",), ("0",)),
)


def with_keys(config: dict[str, str]) -> dict[str, str]:
    """The options of a run under today's names."""
    today = dict(config)
    for earlier in _EARLIER:
        said = today.pop(earlier.name, "")
        base = today.get(earlier.option, "")
        if not said or not base or (earlier.names and base.partition(":")[0] not in earlier.names):
            continue
        parts = said.split(",") if len(earlier.keys) > 1 else [said.replace(",", "/")]
        for key, value, preset in zip(earlier.keys, parts, earlier.presets):
            if value != preset:
                today[earlier.option] += (",", ":")[":" not in today[earlier.option]] + f"{key}={value}"
    return today
