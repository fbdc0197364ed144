"""`--device-map auto`: accelerate's placement, with room on each device for what is not weights.

accelerate's `infer_auto_device_map` fills one device after the other with weights. What a run adds to them is
found by planning that placement, and taken from the memory that accelerate may fill, until the plan fits.

Source: https://huggingface.co/docs/accelerate/usage_guides/big_modeling
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.capture import build_source
from fakexport.devices import Topology, emulate
from fakexport.error import InvalidValue
from fakexport.report import PlannedPoint
from fakexport.sources import how_to_install, parse_dtype, resolve

AUTO = "auto"
_ROUNDS = 6


@dataclass(frozen=True)
class AutomaticPlacement:
    """The device of each module path, and a line for the report: first and last module of each device."""

    entries: Mapping[str, str]
    summary: str


def automatic_placement(
    subject: str | nn.Module | Callable[[], Any],
    topology: Topology,
    dtype: str | torch.dtype | None,
    planned: Callable[[Mapping[str, str]], PlannedPoint],
) -> AutomaticPlacement:
    """Return a placement that fits, or the one of those tried that lacks the least.

    The first is that of weights alone. If something else makes a device too small, it gets fewer weights, and
    later ones get more.

    Raises:
        ValueError: accelerate is not installed, the memory of a device is not known, or there is none.
    """
    infer = _inferred()
    devices = {device.name: device.profile.memory_bytes for device in topology.accelerators}
    known = {name: size for name, size in devices.items() if size is not None}
    if not known or len(known) < len(devices):
        raise InvalidValue(f"--device-map auto: the memory of {topology.spec} is not known")
    module = _module(subject, topology, dtype)
    room = dict(known)
    tried: list[tuple[dict[str, str], PlannedPoint]] = []
    for _ in range(_ROUNDS):
        with torch_logs_silenced(), emulate(topology):
            entries = _named(infer(module, room), list(known))
        if entries is None or any(entries == other for other, _ in tried):
            break
        point = planned(entries)
        tried.append((entries, point))
        if point.fit == "fits":
            break
        _reserve(room, known, point)
    if not tried:
        raise InvalidValue(f"--device-map auto: the weights alone need more memory than {topology.spec} has")
    entries, _ = max(tried, key=lambda pair: _headroom(pair[1]))
    return AutomaticPlacement(entries, "; ".join(_runs(entries)))


def _inferred() -> Callable[[nn.Module, Mapping[str, int]], Mapping[str, Any]]:
    """Return accelerate's function, with the settings with which transformers calls it."""
    try:
        from accelerate import infer_auto_device_map
    except ImportError as error:
        how = how_to_install(error) or str(error)
        raise InvalidValue(f"--device-map auto needs accelerate: {how}") from error

    def infer(module: nn.Module, room: Mapping[str, int]) -> Mapping[str, Any]:
        memory = dict(enumerate(room.values()))
        named = (getattr(part, "_no_split_modules", None) or () for part in module.modules())
        whole = sorted({name for names in named for name in names})
        found: Mapping[str, Any] = infer_auto_device_map(
            module, max_memory=memory, no_split_module_classes=whole
        )
        return found

    return infer


def _module(
    subject: str | nn.Module | Callable[[], Any], topology: Topology, dtype: str | torch.dtype | None
) -> nn.Module:
    asked: torch.dtype | None = None if dtype is None else parse_dtype(dtype)
    with torch_logs_silenced(), emulate(topology):
        return build_source(resolve(subject), topology, dtype=asked).module


def _named(found: Mapping[str, Any], names: list[str]) -> dict[str, str] | None:
    """Return the map with torch's names of the devices; None if something is on none of them."""
    if not all(isinstance(device, int) for device in found.values()):
        return None
    return {"": names[0], **{path: names[device] for path, device in found.items()}}


def _reserve(room: dict[str, int], memory: Mapping[str, int], point: PlannedPoint) -> None:
    """Lower the weights of devices that lack memory: gradients, states shrink with them, the rest stays."""
    for device in point.columns:
        if device.fit != "fits" and device.name in room:
            with_weights = device.weights + device.gradients + device.optimizer
            left = memory[device.name] - device.total.upper + with_weights
            share = left * device.weights // max(1, with_weights)
            room[device.name] = max(1, min(room[device.name] - 1, share))


def _headroom(point: PlannedPoint) -> int:
    return min((device.headroom.lower for device in point.columns if device.headroom), default=0)


def _runs(entries: Mapping[str, str]) -> Iterator[str]:
    placed = [(path, device) for path, device in entries.items() if path] or list(entries.items())
    for device, group in itertools.groupby(placed, key=itemgetter(1)):
        paths = [path or "everything" for path, _ in group]
        yield f"{device} has {paths[0]}" + (f" to {paths[-1]}" if len(paths) > 1 else "")
