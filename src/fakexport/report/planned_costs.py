"""Lower bounds on the cost of one call, and costs per module, as values and as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fakexport.files import escaped
from fakexport.report.quantity import bytes_text, device_names, duration_text, rate_text
from fakexport.report.table import wide_layout


@dataclass(frozen=True)
class Bound:
    """A lower bound on the time of one call on a device.

    Args:
        limit: The limiting resource: arithmetic, the device's memory, or the links to other devices.
        seconds: The bound: `amount / per_second`.
        amount: Operations or bytes that any implementation needs.
        per_second: Rate of the device profile, in operations or bytes per second.
        dtype: Dtype of the multiplied values; "" if the amount is in bytes.
        source: Source of the rate.
    """

    limit: Literal["compute", "memory", "link"]
    seconds: float
    amount: int
    per_second: float
    dtype: str
    source: str


@dataclass
class DeviceCost:
    """Work of one device in one call.

    Args:
        name: `cuda:0`.
        profile: Name of its profile.
        flops: Number of operations, by the formulas of `torch.utils.flop_counter`.
        least_flops: Dtype of the multiplied values -> operations that any implementation needs.
        read_bytes: Bytes of weights, cache and inputs that any implementation reads.
        written_bytes: Bytes of outputs and of cache growth.
        sent_bytes: Other device -> bytes that are sent to it.
        exchanged_bytes: Minimum number of bytes received from other ranks; 0 without tensor parallelism.
        bounds: Lower bounds on the time, one per rate that the profile specifies.
    """

    name: str
    profile: str = ""
    flops: int = 0
    least_flops: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    written_bytes: int = 0
    sent_bytes: Counter[str] = field(default_factory=Counter)
    exchanged_bytes: int = 0
    bounds: tuple[Bound, ...] = ()

    @property
    def least_seconds(self) -> float | None:
        """The largest of the device's bounds; None if the profile specifies no rates."""
        return max((bound.seconds for bound in self.bounds), default=None)

    @property
    def flops_per_byte(self) -> float | None:
        """Arithmetic intensity: operations per byte read or written; None if there are no bytes."""
        moved = self.read_bytes + self.written_bytes
        return self.flops / moved if moved else None


@dataclass(frozen=True)
class PlannedCosts:
    """Lower bounds on the cost of one call.

    Args:
        devices: One entry per device, ordered by name.
        tokens: Number of new tokens per call in all sequences; None if no input is text.
        left_out: Operators that are not counted, one sentence each.
    """

    devices: tuple[DeviceCost, ...]
    tokens: int | None
    left_out: tuple[str, ...] = ()

    @property
    def limit(self) -> tuple[DeviceCost, Bound] | None:
        """The device and the bound with the longest time; None if no profile specifies rates.

        Times of different devices are not added, since they can work on different calls at the same time.
        """
        found = [(device, bound) for device in self.devices for bound in device.bounds]
        return max(found, key=lambda pair: pair[1].seconds, default=None)

    @property
    def least_seconds(self) -> float | None:
        """Lower bound on the time of one call; None if no profile specifies rates."""
        return None if self.limit is None else self.limit[1].seconds

    @property
    def most_tokens_per_second(self) -> float | None:
        """Upper bound on the tokens per second; None if `tokens` or `least_seconds` is None or 0."""
        return self.tokens / self.least_seconds if self.tokens and self.least_seconds else None


@dataclass(frozen=True)
class PlannedModule:
    """Costs of a module, or of several identical modules, including submodules. They are for the first sizes.

    Args:
        path: `model.layers.0-31.mlp`; consecutive identical modules are merged.
        depth: Number of enclosing modules in the list.
        count: Number of modules in this row. If the parent's row contains several modules, the submodules of
            all of them are counted.
        flops: Number of operations of all modules in this row, by the formulas of `torch.utils.flop_counter`.
        read_bytes: Minimum number of bytes of weights, cache and inputs that these modules read. A tensor
            that several modules read counts only for the first of them.
        devices: Devices on which these modules compute, sorted.
    """

    path: str
    depth: int
    count: int
    flops: int
    read_bytes: int
    devices: tuple[str, ...]


_SHOWN_LINKS = 4
_HEAD = ("module", "count", "FLOP", "share", "reads at least", "FLOP per byte", "device")
_RIGHT = (1, 2, 3, 4, 5)


def cost_lines(costs: PlannedCosts) -> Iterator[str]:
    """Yield unwrapped lines: the lower bound on the time and its reason, the FLOPs, and the data sent."""
    flops = sum(device.flops for device in costs.devices)
    if costs.limit is None:
        names = device_names([device.name for device in costs.devices])
        why = f"the profile of {names} specifies no FLOP/s or B/s"
        yield f"{flops_text(flops)} per call; no bound on the time of a call: {why}"
    else:
        yield _fastest(costs, *costs.limit)
        yield f"{flops_text(flops)} per call; {_device(costs.limit[0])}"
    links = [text for device in costs.devices for text in _links(device)]
    if links:
        more = f" and {len(links) - _SHOWN_LINKS} more" if len(links) > _SHOWN_LINKS else ""
        yield f"per call, {', '.join(links[:_SHOWN_LINKS])}{more}"


def _links(device: DeviceCost) -> Iterator[str]:
    if device.exchanged_bytes:
        yield f"{device.name} receives at least {bytes_text(device.exchanged_bytes)} from other ranks"
    for target, size in device.sent_bytes.items():
        yield f"{device.name} sends {bytes_text(size)} to {target}"


def module_lines(modules: Sequence[PlannedModule], *, width: int) -> list[str]:
    """Return a table with a row per module, below the row of its parent. Identical modules share a row."""
    whole = max((module.flops for module in modules), default=0)
    rows = [_HEAD, *(_row(module, name, whole) for module, name in named_modules(modules))]
    is_told = len({module.devices for module in modules}) > 1
    return wide_layout([row if is_told else row[:-1] for row in rows], width=width, right=_RIGHT)


def named_modules(modules: Sequence[PlannedModule]) -> Iterator[tuple[PlannedModule, str]]:
    """Yield each module with its path relative to its parent row."""
    above: list[str] = []
    for module in modules:
        del above[module.depth :]
        outer = above[-1] if above else ""
        yield module, module.path[len(outer) :].lstrip(".") or "(root)"
        above.append(module.path)


def _row(module: PlannedModule, name: str, whole: int) -> tuple[str, ...]:
    return (
        "  " * module.depth + escaped(name),
        f"{module.count:,}",
        flops_text(module.flops),
        f"{100 * module.flops / whole:.1f} %" if whole else "",
        bytes_text(module.read_bytes),
        f"{module.flops / module.read_bytes:,.1f}" if module.read_bytes else "",
        device_names(module.devices),
    )


def _fastest(costs: PlannedCosts, device: DeviceCost, bound: Bound) -> str:
    if not bound.seconds:
        return f"no bound on the time of a call: all its data may fit in the cache of {device.name}"
    most = costs.most_tokens_per_second
    tokens = "" if most is None else f"; at most {math.ceil(most):,} tokens/s"
    return f"cannot be faster than {_at_least(bound.seconds)} per call: {_reason(device, bound)}{tokens}"


def _reason(device: DeviceCost, bound: Bound) -> str:
    if bound.limit == "compute":
        rate = rate_text(bound.per_second, "FLOP/s")
        return f"{device.name} computes {flops_text(bound.amount)} in {bound.dtype} at {rate}"
    rate = rate_text(bound.per_second, "B/s")
    if bound.limit == "link":
        return f"the link of {device.name} moves {bytes_text(bound.amount)} at {rate}"
    return f"the memory of {device.name} moves {bytes_text(bound.amount)} at {rate}"


def _device(device: DeviceCost) -> str:
    names = {"compute": "arithmetic", "memory": "memory", "link": "links"}
    times = ", ".join(
        f"{names[bound.limit]} {_at_least(bound.seconds)}" for bound in device.bounds if bound.seconds
    )
    ratio = device.flops_per_byte
    intensity = "" if ratio is None else f", {ratio:,.1f} FLOP per byte"
    return f"minimum time on {device.name}: {times or 'none'}{intensity}"


def flops_text(count: int) -> str:
    return rate_text(count, "FLOP")


def _at_least(seconds: float) -> str:
    """Return a time rounded down to three digits, so that it remains a lower bound."""
    step = 10.0 ** (math.floor(math.log10(seconds)) - 2) if seconds else 1.0
    return duration_text(math.floor(seconds / step + 1e-9) * step)
