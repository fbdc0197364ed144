"""`--device-map auto`: place modules with accelerate, and leave memory for activations and other tensors.

accelerate's `infer_auto_device_map` fills one device after the other with weights. fakexport plans that
placement to find out how much memory a run needs in addition to weights, subtracts this amount from the
memory that accelerate may fill, and repeats until the plan fits. Source:
https://huggingface.co/docs/accelerate/usage_guides/big_modeling
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
from fakexport.emulation.devices import Topology, emulate
from fakexport.error import InvalidValue
from fakexport.exporting.capture import ModelRequest, build_source
from fakexport.models.sources import how_to_install
from fakexport.report import PlannedPoint

AUTO = "auto"
_ROUNDS = 6


@dataclass(frozen=True)
class AutomaticPlacement:
    """The device chosen for each module path. `summary` names the first and last module of each device."""

    entries: Mapping[str, str]
    summary: str


def automatic_placement(
    request: ModelRequest,
    topology: Topology,
    planned: Callable[[Mapping[str, str]], PlannedPoint],
    *,
    dtype: torch.dtype | None,
) -> AutomaticPlacement:
    """Return a placement that fits. If none fits, return the one that exceeds the memory the least.

    The first attempt considers only weights. If a device is too small for everything else that a run needs,
    the next attempt places fewer weights on it, and more on later devices.
    """
    infer = _inferred()
    devices = {device.name: device.profile.memory_bytes for device in topology.accelerators}
    known = {name: size for name, size in devices.items() if size is not None}
    if not known or len(known) < len(devices):
        raise InvalidValue(
            f"--device-map auto: the memory size of {topology.spec} is not known; name a GPU, such as 2xH100"
        )
    with torch_logs_silenced(), emulate(topology):
        module = build_source(request.source, topology, dtype=dtype).module
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
    """Return accelerate's `infer_auto_device_map` with the arguments that transformers passes to it."""
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


def _named(found: Mapping[str, Any], names: list[str]) -> dict[str, str] | None:
    """Return the device map with torch's device names, or None if a module is placed on the CPU or disk."""
    if not all(isinstance(device, int) for device in found.values()):
        return None
    return {"": names[0], **{path: names[device] for path, device in found.items()}}


def _reserve(room: dict[str, int], memory: Mapping[str, int], point: PlannedPoint) -> None:
    """Lower the bytes that `room` allows for weights, for each device on which the plan does not fit.

    Gradients and optimizer states shrink with the weights. Other memory is assumed to stay the same.
    """
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
