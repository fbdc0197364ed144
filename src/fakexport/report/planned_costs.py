"""What one call computes, reads and sends at one choice of sizes, and the times that it cannot stay below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PlannedBound:
    """A time that one call takes on a device at least.

    Args:
        limit: What takes it: arithmetic, the device's memory, or its links to other devices.
        seconds: No call is faster.
        amount: Operations, or bytes, that no kernel does without.
        per_second: The profile's rate for them.
        dtype: Dtype of what is multiplied; "" for bytes.
        source: Where the rate is from.
    """

    limit: Literal["compute", "memory", "link"]
    seconds: float
    amount: int
    per_second: float
    dtype: str
    source: str


@dataclass(frozen=True)
class PlannedDeviceCost:
    """What one device does in one call.

    Args:
        name: `cuda:0`.
        profile: Name of its profile.
        flops: By the formulas of `torch.utils.flop_counter`.
        least_flops: Dtype of what is multiplied -> operations that no kernel does without.
        read_bytes: Bytes of weights, cache and inputs that any kernel reads.
        written_bytes: Bytes of outputs, and what a cache grows by.
        sent_bytes: Device -> bytes that go there.
        exchanged_bytes: Bytes that it receives from other ranks at least; 0 without tensor parallelism.
        bounds: The times that follow, as far as the profile has the rates.
    """

    name: str
    profile: str
    flops: int
    least_flops: Mapping[str, int]
    read_bytes: int
    written_bytes: int
    sent_bytes: Mapping[str, int]
    exchanged_bytes: int
    bounds: tuple[PlannedBound, ...]

    @property
    def least_seconds(self) -> float | None:
        """The greatest of its bounds; None if its profile has no rates."""
        return max((bound.seconds for bound in self.bounds), default=None)

    @property
    def flops_per_byte(self) -> float | None:
        """Arithmetic intensity: operations over the bytes that are read and written; None for no bytes."""
        moved = self.read_bytes + self.written_bytes
        return self.flops / moved if moved else None


@dataclass(frozen=True)
class PlannedCosts:
    """What one call costs at least.

    Args:
        devices: In the order of their names.
        tokens: New tokens of one call, all sequences together; None if no input is text.
        left_out: Operators that count as 0, one sentence each.
    """

    devices: tuple[PlannedDeviceCost, ...]
    tokens: int | None
    left_out: tuple[str, ...] = ()

    @property
    def limit(self) -> tuple[PlannedDeviceCost, PlannedBound] | None:
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
