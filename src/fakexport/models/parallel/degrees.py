"""Parse `--parallel`: the devices over which a model is sharded, the plan file, and the pipeline stages."""

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
        tensor: Number of ranks over which a weight is sharded. 1: the weights are not sharded.
        expert: Number of ranks that share the experts, each of which is whole on one rank. 1: the tensor plan
            shards each expert.
        stages: Number of pipeline stages. 1: the program is not cut into stages.
        starts: Paths of the modules at which the stages after the first begin. Empty: they are chosen.
        plan_file: The file with rules that change the model's plan, or "" for the model's own plan.
        rules: The rules that change the model's plan.
    """

    tensor: int
    expert: int = 1
    stages: int = 1
    starts: tuple[str, ...] = ()
    plan_file: str = ""
    rules: Rules = ()

    @classmethod
    def parse(cls, text: str) -> Degrees:
        """Parse `tp=8`, `tp=8,ep=8`, `pp=4` or `tp=8,pp=4`, and then `,at=MODULE,...` or `,plan=FILE.json`.

        Raises:
            ValueError: the text has a different form, the degrees are incompatible, or the file is not a
                plan. The message is a single line.

        Example:
            >>> Degrees.parse("tp=4").ranks
            4
        """
        found: dict[str, int] = {}
        rest, _, file = text.partition(",plan=")
        numbers, *modules = re.split(r",\s*at\s*=", rest, maxsplit=1)
        starts = tuple(part.strip() for names in modules for part in names.split(",") if part.strip())
        for part in numbers.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None or match[1] not in ("tp", "ep", "pp") or match[1] in found:
                raise InvalidValue(
                    f"--parallel {text!r}: expected tp=N[,ep=N][,pp=N[,at=MODULE,...]][,plan=FILE.json]"
                )
            found[match[1]] = int(match[2])
        if "tp" not in found and ("pp" not in found or "ep" in found or file):
            raise InvalidValue(f"--parallel {text!r}: specify the degree of tensor parallelism: tp=8")
        degrees = cls(found.get("tp", 1), found.get("ep", 1), found.get("pp", 1), starts, file)
        if not all(2 <= found[name] <= MAX_RANKS for name in ("tp", "pp") if name in found):
            raise InvalidValue(f"--parallel {text!r}: a degree must be from 2 to {MAX_RANKS}")
        if starts and "pp" not in found:
            raise InvalidValue(f"--parallel {text!r}: at= needs the number of stages, such as pp=2")
        if starts and len(starts) != degrees.stages - 1:
            raise InvalidValue(
                f"--parallel {text!r}: pp={degrees.stages} needs {degrees.stages - 1} modules after at=, got "
                f"{len(starts)}"
            )
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
        stages = f"pp={self.stages}" if self.stages > 1 else ""
        numbers = self.numbers if self.tensor > 1 else ""
        at = f"at={','.join(self.starts)}" if self.starts else ""
        plan = f"plan={self.plan_file}" if self.plan_file else ""
        return ",".join(filter(None, (numbers, stages, at, plan)))

    @property
    def origin(self) -> str:
        """Where the rules come from, for messages: the plan file or `parallel_plan`."""
        return self.plan_file or "parallel_plan"

    def check_devices(self, topology: Topology) -> None:
        """Reject a topology without an equal device for each stage of each rank, unless it has only a CPU."""
        devices = topology.accelerators
        if not devices:
            return
        needed = self.ranks * self.stages
        if len(devices) < needed:
            has = f"{topology.canonical} has {len(devices)}"
            raise InvalidValue(f"--parallel {self.canonical} requires {needed} devices, but {has}")
        if len({(device.type, device.profile.name) for device in devices}) > 1:
            raise InvalidValue(
                f"--parallel {self.canonical} requires identical devices, but {topology.canonical} has "
                "different ones"
            )
