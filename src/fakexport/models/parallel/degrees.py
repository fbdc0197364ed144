"""Parse `--parallel`: the number of devices over which a model is sharded, and the plan file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fakexport.emulation.devices import Topology
from fakexport.error import InvalidValue
from fakexport.models.sources import SourceError

from .module_plan import Rules, read_plan, rules_of_styles

MAX_RANKS = 1024


class DegreeMismatch(SourceError):
    """The plan of a model cannot shard it over this number of ranks. A different number may work."""


_PART = re.compile(r"([a-z]+)\s*=\s*([0-9]{1,6})")


@dataclass(frozen=True)
class Degrees:
    """The degrees of parallelism of a model.

    Args:
        tensor: Number of ranks over which a weight is sharded.
        expert: Number of ranks that share the experts, each of which is whole on one rank. 1: the tensor plan
            shards each expert.
        plan_file: The file with rules that change the model's plan, or "" for the model's own plan.
        rules: The rules that change the model's plan.
    """

    tensor: int
    expert: int = 1
    plan_file: str = ""
    rules: Rules = ()

    @classmethod
    def parse(cls, text: str) -> Degrees:
        """Parse `tp=8`, `tp=8,ep=8`, or either followed by `,plan=FILE.json`.

        Raises:
            ValueError: the text has a different form, the degrees are incompatible, or the file is not a
                plan. The message is a single line.

        Example:
            >>> Degrees.parse("tp=4").ranks
            4
        """
        found: dict[str, int] = {}
        numbers, _, file = text.partition(",plan=")
        for part in numbers.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None or match[1] not in ("tp", "ep") or match[1] in found:
                raise InvalidValue(f"--parallel {text!r}: expected tp=N[,ep=N][,plan=FILE.json]")
            found[match[1]] = int(match[2])
        if "tp" not in found:
            raise InvalidValue(f"--parallel {text!r}: specify the degree of tensor parallelism, such as tp=8")
        degrees = cls(found["tp"], found.get("ep", 1), file)
        if not 2 <= degrees.tensor <= MAX_RANKS:
            raise InvalidValue(f"--parallel {text!r}: a degree must be from 2 to {MAX_RANKS}")
        if degrees.expert not in (1, degrees.tensor):
            every = f"use ep={degrees.tensor} or remove ep"
            raise InvalidValue(f"--parallel {text!r}: experts must be sharded over all ranks: {every}")
        return replace(degrees, rules=read_plan(file)) if file else degrees

    @classmethod
    def of(cls, parallel: str | None, plan: Mapping[str, Any] | None) -> Degrees | None:
        """Parse the degrees from `parallel`, and add the rules from `plan`.

        The values of `plan` are torch's `ParallelStyle` objects. Return None if `parallel` is None.

        Raises:
            ValueError: as for `parse`; or there is a plan without degrees, a second plan, or an unknown
                style.
        """
        if parallel is None and plan is not None:
            raise InvalidValue("parallel_plan requires the argument parallel, such as 'tp=2'")
        degrees = None if parallel is None else cls.parse(parallel)
        if degrees is None or plan is None:
            return degrees
        if degrees.rules:
            raise InvalidValue(f"two plans are given, {degrees.plan_file} and parallel_plan: pass only one")
        return replace(degrees, rules=rules_of_styles(plan))

    @property
    def ranks(self) -> int:
        """The number of ranks. Each rank is a process that runs one program."""
        return self.tensor

    @property
    def numbers(self) -> str:
        """The degrees as text, without the plan file, whose path is specific to this machine."""
        return f"tp={self.tensor}" + (f",ep={self.expert}" if self.expert > 1 else "")

    @property
    def canonical(self) -> str:
        """The shortest text that parses to the same degrees."""
        return self.numbers + (f",plan={self.plan_file}" if self.plan_file else "")

    @property
    def origin(self) -> str:
        """Where the rules come from, for messages: the plan file or `parallel_plan`."""
        return self.plan_file or "parallel_plan"

    def check_devices(self, topology: Topology) -> None:
        """Reject a topology that does not have one device per rank. A topology with only a CPU is accepted.

        Raises:
            ValueError: there are fewer devices than ranks, or the devices are of different models.
        """
        devices = topology.accelerators
        if not devices:
            return
        if len(devices) < self.ranks:
            has = f"{topology.canonical} has {len(devices)}"
            raise InvalidValue(f"--parallel {self.canonical} requires {self.ranks} devices, but {has}")
        if len({(device.type, device.profile.name) for device in devices}) > 1:
            raise InvalidValue(
                f"--parallel {self.canonical} requires identical devices, but {topology.canonical} has "
                "different ones"
            )
