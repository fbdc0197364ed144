"""What `--parallel` says: over how many devices a model is sharded, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fakexport.devices import Topology
from fakexport.error import InvalidValue
from fakexport.sources import SourceError

from .module_plan import Rules, read_plan, rules_of_styles

MAX_RANKS = 1024


class DegreeMismatch(SourceError):
    """A model that has a plan cannot be sharded over this number of ranks; over another one it may be."""


_PART = re.compile(r"([a-z]+)\s*=\s*([0-9]{1,6})")


@dataclass(frozen=True)
class Degrees:
    """The degrees of parallelism of a model.

    Args:
        tensor: Ranks that hold a shard of each sharded weight.
        expert: Ranks that hold whole experts of their own; 1: experts are sharded as the tensor plan says.
        plan_file: Where the rules are from that change the model's plan; "" for the model's alone.
        rules: Those.
    """

    tensor: int
    expert: int = 1
    plan_file: str = ""
    rules: Rules = ()

    @classmethod
    def parse(cls, text: str) -> Degrees:
        """Read `tp=8`, `tp=8,ep=8`, or either with `,plan=FILE.json` after it.

        Raises:
            ValueError: another text, degrees that do not go together, or a file that is not a plan; one line.

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
            raise InvalidValue(f"--parallel {text!r}: name the degree of tensor parallelism, such as tp=8")
        degrees = cls(found["tp"], found.get("ep", 1), file)
        if not 2 <= degrees.tensor <= MAX_RANKS:
            raise InvalidValue(f"--parallel {text!r}: a degree is 2 to {MAX_RANKS}")
        if degrees.expert not in (1, degrees.tensor):
            every = f"use ep={degrees.tensor} or leave out ep"
            raise InvalidValue(f"--parallel {text!r}: experts are sharded over all ranks: {every}")
        return replace(degrees, rules=read_plan(file)) if file else degrees

    @classmethod
    def of(cls, parallel: str | None, plan: Mapping[str, Any] | None) -> Degrees | None:
        """Return the degrees that a text says, with the rules of a plan of torch's styles; None without.

        Raises:
            ValueError: As `parse`, and for a plan without degrees, a second plan, or an unknown style.
        """
        if parallel is None and plan is not None:
            raise InvalidValue("parallel_plan needs parallel, such as tp=2")
        degrees = None if parallel is None else cls.parse(parallel)
        if degrees is None or plan is None:
            return degrees
        if degrees.rules:
            raise InvalidValue(f"two plans are given: {degrees.plan_file} and parallel_plan")
        return replace(degrees, rules=rules_of_styles(plan))

    @property
    def ranks(self) -> int:
        """The number of processes, each of which runs one program."""
        return self.tensor

    @property
    def numbers(self) -> str:
        """The degrees alone, without a path of this machine."""
        return f"tp={self.tensor}" + (f",ep={self.expert}" if self.expert > 1 else "")

    @property
    def canonical(self) -> str:
        """The same in the shortest text."""
        return self.numbers + (f",plan={self.plan_file}" if self.plan_file else "")

    @property
    def origin(self) -> str:
        """Where the rules are from, for messages."""
        return self.plan_file or "parallel_plan"

    def check_devices(self, topology: Topology) -> None:
        """Refuse devices that the ranks cannot have one each of.

        Raises:
            ValueError: fewer devices than ranks, or several models. On the CPU, a rank is a process.
        """
        devices = topology.accelerators
        if not devices:
            return
        if len(devices) < self.ranks:
            has = f"{topology.canonical} has {len(devices)}"
            raise InvalidValue(f"--parallel {self.canonical} needs {self.ranks} devices, and {has}")
        if len({(device.type, device.profile.name) for device in devices}) > 1:
            raise InvalidValue(
                f"--parallel {self.canonical} needs devices of one model: {topology.canonical} mixes them"
            )
