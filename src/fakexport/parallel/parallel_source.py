"""One rank of a model as a source of its own: `--parallel tp=8`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from fakexport.documents import ParallelRecord
from fakexport.error import InvalidValue
from fakexport.sources import Source, SourceError

from .application import Sharded, shard_model
from .degrees import Degrees
from .place import Place


@dataclass(frozen=True)
class Rank:
    """A rank of a model, and what became of each model that was built for it.

    Args:
        degrees: Of parallelism.
        rank: From 0.
        whole: The model that the programs of all ranks are compared with; None for that model itself, whose
            weights stay whole, as `Place` says.
    """

    degrees: Degrees
    rank: int
    whole: Source | None = field(default=None, compare=False, repr=False)
    _made: WeakKeyDictionary[nn.Module, Sharded] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def record(self, module: nn.Module) -> ParallelRecord | None:
        """Return what the facts of a program say, for a model that `built` returned; None for a whole one."""
        if self.whole is None:
            return None
        made = self._made[module]
        degrees = self.degrees
        return ParallelRecord(
            degrees.numbers, self.rank, degrees.ranks, made.shards, made.styles, made.unused_rules
        )

    def built(self, source: Source) -> Any:
        """Return what the factory of a source returns, its module sharded."""
        made = source.factory if isinstance(source.factory, nn.Module) else source.factory()
        module, *inputs = made if isinstance(made, tuple) else (made,)
        place = Place(self.rank, self.degrees.ranks, has_whole=self.whole is None)
        self._made[module] = shard_model(module, self.degrees, place)
        return (module, *inputs) if inputs else module


def parallel_source(source: Source, parallel: str | Degrees | None, rank: int | None = None) -> Source:
    """Return the source of one rank of a model.

    Args:
        source: A model of transformers.
        parallel: The degrees, such as `tp=8`; None: the source as it is.
        rank: Whose program. Default: that of rank 0.
    Raises:
        SourceError: It is a part of a model, has an adapter, or is a module that is there already.
        ValueError: The degrees are not, or have no such rank.
    """
    if parallel is None:
        if rank is not None:
            raise InvalidValue("a rank needs --parallel")
        return source
    degrees = parallel if isinstance(parallel, Degrees) else Degrees.parse(parallel)
    rank = rank or 0
    if not 0 <= rank < degrees.ranks:
        raise InvalidValue(
            f"--parallel {degrees.canonical} has the ranks 0 to {degrees.ranks - 1}, not {rank}"
        )
    if source.component is not None or source.adapter is not None:
        raise SourceError("--parallel applies to a whole model without an adapter")
    if source.quantization is not None:
        raise SourceError(f"--parallel does not shard quantized weights, which {source.spec} has")
    if source.kind not in ("transformers", "python") or isinstance(source.factory, nn.Module):
        raise SourceError(f"--parallel needs an hf: model, or a factory of one: {source.spec} is not")
    whole = _of_rank(source, Rank(degrees, 0), source.spec)
    spec = f"{source.spec} --parallel {degrees.canonical} --rank {rank}"
    return _of_rank(source, Rank(degrees, rank, whole), spec)


def _of_rank(source: Source, rank: Rank, spec: str) -> Source:
    return replace(source, spec=spec, factory=lambda: rank.built(source), parallel=rank)


def refuse_with_parallel(
    degrees: Degrees | None, *, strict: bool = False, workload: str = "forward", device_map: object = None
) -> None:
    """Refuse what does not go with parallelism; nothing without degrees.

    Raises:
        ValueError: TorchDynamo, a call of generation, or a device map.
    """
    if degrees is None:
        return
    if strict:
        raise InvalidValue("--parallel does not go with --strict")
    if workload != "forward":
        raise InvalidValue(f"--parallel applies to --workload forward, not {workload}")
    if device_map is not None:
        raise InvalidValue("--parallel places each rank on one device: leave out --device-map")
