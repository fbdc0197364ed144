"""What one call costs at least, as values and as text: bounds on its time, and a row per module."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fakexport.diagnostics import escaped
from fakexport.report.quantity import bytes_text, device_names, duration_text, rate_text
from fakexport.report.table import wide_layout

if TYPE_CHECKING:
    from fakexport.costs import Bound, DeviceCost  # They import torch.


@dataclass(frozen=True)
class PlannedCosts:
    """What one call costs at least.

    Args:
        devices: In the order of their names.
        tokens: New tokens of one call, all sequences together; None if no input is text.
        left_out: Operators that count as 0, one sentence each.
    """

    devices: tuple[DeviceCost, ...]
    tokens: int | None
    left_out: tuple[str, ...] = ()

    @property
    def limit(self) -> tuple[DeviceCost, Bound] | None:
        """The device and the bound that take the most time; None if no profile has rates.

        Devices may work at the same time, on several calls, so their times are not added up.
        """
        found = [(device, bound) for device in self.devices for bound in device.bounds]
        return max(found, key=lambda pair: pair[1].seconds, default=None)

    @property
    def least_seconds(self) -> float | None:
        """No call is faster."""
        return None if self.limit is None else self.limit[1].seconds

    @property
    def most_tokens_per_second(self) -> float | None:
        """No sequence of calls makes more; None if that is not known, or nothing bounds it."""
        return self.tokens / self.least_seconds if self.tokens and self.least_seconds else None


@dataclass(frozen=True)
class PlannedModule:
    """One module at the first of the sizes, or a row of equal modules; the modules below it are counted in.

    Args:
        path: `model.layers.0-31.mlp`: a row of equal modules is one.
        depth: How many of the other modules it is inside of.
        count: How many modules the row is; of those below a row of equal modules, all are counted.
        flops: Operations of all of them, by the formulas of `torch.utils.flop_counter`.
        read_bytes: Bytes of weights, cache and inputs that all of them read at least; a tensor that several
            modules read counts in the first one.
        devices: Where they compute, sorted.
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
    """Yield what one call cannot be faster than and why, and what it computes and moves; not wrapped."""
    flops = sum(device.flops for device in costs.devices)
    if costs.limit is None:
        names = device_names([device.name for device in costs.devices])
        yield f"{flops_text(flops)} per call; no bound on its time: the profile of {names} has no rates"
    else:
        yield _fastest(costs, *costs.limit)
        yield f"{flops_text(flops)} per call; {_device(costs.limit[0])}"
    links = [text for device in costs.devices for text in _links(device)]
    if links:
        more = f" and {len(links) - _SHOWN_LINKS} more" if len(links) > _SHOWN_LINKS else ""
        yield f"per call, {', '.join(links[:_SHOWN_LINKS])}{more}"


def _links(device: DeviceCost) -> Iterator[str]:
    if device.exchanged_bytes:
        yield f"{device.name} receives {bytes_text(device.exchanged_bytes)} or more from other ranks"
    for target, size in device.sent_bytes.items():
        yield f"{device.name} sends {bytes_text(size)} to {target}"


def module_lines(modules: Sequence[PlannedModule], *, width: int) -> list[str]:
    """Return a table with a row per module, each below the one that it is in; equal ones are one row."""
    whole = max((module.flops for module in modules), default=0)
    rows = [_HEAD, *(_row(module, name, whole) for module, name in named_modules(modules))]
    is_told = len({module.devices for module in modules}) > 1
    return wide_layout([row if is_told else row[:-1] for row in rows], width=width, right=_RIGHT)


def named_modules(modules: Sequence[PlannedModule]) -> Iterator[tuple[PlannedModule, str]]:
    """Yield each module with its path from the one that it is in."""
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
        return f"no bound on its time: all that a call moves may stay in the cache of {device.name}"
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
    return f"{device.name} at least: {times or 'no time'}{intensity}"


def flops_text(count: int) -> str:
    return rate_text(count, "FLOP")


def _at_least(seconds: float) -> str:
    """Return a time that is rounded down to three digits: rounded up it would not be a bound."""
    step = 10.0 ** (math.floor(math.log10(seconds)) - 2) if seconds else 1.0
    return duration_text(math.floor(seconds / step + 1e-9) * step)
