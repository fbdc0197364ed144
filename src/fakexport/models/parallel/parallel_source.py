"""Load the part of a model that one rank runs, for `--parallel tp=8`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from fakexport.error import InvalidValue
from fakexport.files.documents import ParallelRecord
from fakexport.models.sources import Source, SourceError

from .application import Sharded, shard_model
from .degrees import Degrees
from .shard import Place


@dataclass(frozen=True)
class Rank:
    """A rank of a sharded model, and the record of each module that was built for the rank.

    Args:
        degrees: The degrees of parallelism.
        rank: Starting at 0.
        whole: The source of the whole model. Each rank's program is compared with the program of this source.
            None if this is the source of the whole model itself (see `Place.has_whole`).
    """

    degrees: Degrees
    rank: int
    whole: Source | None = field(default=None, compare=False, repr=False)
    _made: WeakKeyDictionary[nn.Module, Sharded] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def record(self, module: nn.Module) -> ParallelRecord | None:
        """Return the record that an archive stores about a module that `built` sharded.

        Return None for a whole model.
        """
        if self.whole is None:
            return None
        made = self._made[module]
        degrees = self.degrees
        return ParallelRecord(
            degrees.numbers, self.rank, degrees.ranks, made.shards, made.styles, made.unused_rules
        )

    def built(self, source: Source) -> Any:
        """Call the factory of a source and shard the module. Return the factory's result."""
        made = source.factory if isinstance(source.factory, nn.Module) else source.factory()
        module, *inputs = made if isinstance(made, tuple) else (made,)
        place = Place(self.rank, self.degrees.ranks, has_whole=self.whole is None)
        self._made[module] = shard_model(module, self.degrees, place)
        return (module, *inputs) if inputs else module


def parallel_source(source: Source, degrees: Degrees | None, rank: int | None = None) -> Source:
    """Return the source of one rank of a model, by default rank 0; the source itself if `degrees` is None.

    Raises:
        SourceError: the source is a component of a model, has an adapter, or is an existing module.
        ValueError: the rank does not exist.
    """
    if degrees is None:
        if rank is not None:
            raise InvalidValue("a rank requires --parallel")
        return source
    rank = rank or 0
    if not 0 <= rank < degrees.ranks:
        raise InvalidValue(f"--parallel {degrees.canonical} has ranks 0 to {degrees.ranks - 1}; got {rank}")
    if source.component is not None or source.adapter is not None:
        raise SourceError("--parallel cannot be combined with --component or --adapter")
    if source.quantization is not None:
        raise SourceError(f"--parallel does not support quantized weights, which {source.spec} has")
    if source.kind not in ("transformers", "python") or isinstance(source.factory, nn.Module):
        raise SourceError(
            f"--parallel requires an hf: model or a factory that builds a model, not {source.spec}"
        )
    whole = _of_rank(source, Rank(degrees, 0), source.spec)
    spec = f"{source.spec} --parallel {degrees.canonical} --rank {rank}"
    return _of_rank(source, Rank(degrees, rank, whole), spec)


def _of_rank(source: Source, rank: Rank, spec: str) -> Source:
    return replace(source, spec=spec, factory=lambda: rank.built(source), parallel=rank)


def refuse_with_parallel(
    degrees: Degrees | None, *, strict: bool = False, workload: str = "forward", device_map: object = None
) -> None:
    """Reject options that cannot be combined with parallelism, if there are degrees of parallelism."""
    if degrees is None:
        return
    if strict:
        raise InvalidValue("--parallel cannot be combined with --strict")
    if workload != "forward":
        raise InvalidValue(f"--parallel supports --workload forward, not {workload}")
    if device_map is not None:
        raise InvalidValue("--parallel places each rank on one device: remove --device-map")
