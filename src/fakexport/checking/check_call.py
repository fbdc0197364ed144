"""The arguments of `check`, and what they ask for once they are read."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fakexport._version import __version__
from fakexport.capture import AssumedAnswer, DynamicDims, dynamic_of, loaded_libraries, with_assumed
from fakexport.checking.targets import DeviceMapText, OneTarget, Target, parse_targets
from fakexport.devices import peak_bytes
from fakexport.documents import AdapterMode
from fakexport.error import InvalidValue
from fakexport.parallel import Degrees, parallel_source, refuse_with_parallel
from fakexport.sources import (
    CacheForm,
    ExportedWorkload,
    InputSpec,
    Source,
    adapter_source,
    component_source,
    exported_workload,
    parse_input_spec,
    resolve,
)


@dataclass(frozen=True)
class Request:
    """What is the same for every target; the fields are arguments of `check`, read.

    With `ranks`, which returns the source of a rank, other ranks than that of `source` are compared with it;
    with `is_every_rank` all of them.
    """

    name: str
    source: Source
    targets: Sequence[Target]
    degrees: Degrees | None
    ranks: Callable[[int], Source] | None
    is_every_rank: bool
    inputs: Sequence[InputSpec]
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any] | None
    dynamic: DynamicDims | Any
    dynamic_shapes: Any
    assumed: Sequence[AssumedAnswer]
    is_strict: bool
    start_rss_bytes: int

    @property
    def has_given_inputs(self) -> bool:
        return not (self.args is None and self.kwargs is None)

    @property
    def is_input_chosen(self) -> bool:
        return bool(self.inputs) or self.has_given_inputs


@dataclass(frozen=True, kw_only=True)
class CheckCall:
    """The arguments of `check`, unread: reading them can run code of the model.

    Args:
        prepare: Called before the source is read, such as to load libraries of operators.
    """

    source: str | nn.Module | Callable[[], Any]
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    target: OneTarget | Sequence[OneTarget] = "cpu"
    device_map: DeviceMapText | None = None
    dtype: str | torch.dtype | None = None
    inputs: Sequence[str] = ()
    dynamic_shapes: Any = None
    strict: bool = False
    use_cache: bool = False
    workload: ExportedWorkload = "forward"
    cache_length: int | None = None
    cache_form: CacheForm = "inputs"
    component: str | None = None
    adapter: str | Path | None = None
    adapter_mode: AdapterMode = "apart"
    parallel: str | None = None
    parallel_plan: Mapping[str, Any] | None = None
    rank: int | Literal["all"] | None = None
    assume: Sequence[str] = ()
    prepare: Callable[[], None] | None = None

    def read(self) -> Request:
        """Return what is asked; the model's file is imported here."""
        start_rss_bytes = peak_bytes()
        if self.inputs and not (self.args is None and self.kwargs is None):
            raise InvalidValue("example inputs are given twice: as args and kwargs, and as inputs")
        if self.prepare is not None:
            self.prepare()
        whole, dynamic_shapes = self._source()
        degrees = Degrees.of(self.parallel, self.parallel_plan)
        whole, assumed = with_assumed(whole, self.assume, is_strict=self.strict)
        own = self.rank if isinstance(self.rank, int) else None
        if self.rank == "all" and degrees is None:
            raise InvalidValue("a rank needs --parallel")
        source = parallel_source(whole, degrees, own)
        refuse_with_parallel(degrees, strict=self.strict, workload=self.workload, device_map=self.device_map)
        has_ranks = degrees is not None and own is None
        return Request(
            name=f"{whole.spec} --parallel {self.parallel}" if has_ranks else source.spec,
            source=source,
            targets=self._targets(source, degrees),
            ranks=(lambda rank: parallel_source(whole, degrees, rank)) if has_ranks else None,
            is_every_rank=self.rank == "all",
            degrees=degrees,
            inputs=[parse_input_spec(text) for text in self.inputs],
            args=self.args,
            kwargs=self.kwargs,
            dynamic=dynamic_of(dynamic_shapes),
            dynamic_shapes=dynamic_shapes or None,
            assumed=assumed,
            is_strict=self.strict,
            start_rss_bytes=start_rss_bytes,
        )

    def _source(self) -> tuple[Source, Any]:
        """Return the source, and the dynamic dimensions that its workload implies."""
        given = bool(self.inputs) or not (self.args is None and self.kwargs is None)
        call, dynamic_shapes = exported_workload(
            self.workload, self.dynamic_shapes, self.cache_length, self.cache_form, has_inputs=given
        )
        model = resolve(self.source, use_cache=self.use_cache, workload=call)
        model = adapter_source(model, self.adapter, self.adapter_mode, self.workload, has_inputs=given)
        model = component_source(
            model, self.component, self.workload, is_dynamic=bool(dynamic_shapes), has_inputs=given
        )
        return model, dynamic_shapes

    def _targets(self, source: Source, degrees: Degrees | None) -> list[Target]:
        targets = parse_targets(self.target, self.device_map, self.dtype, source)
        for row in targets:
            if degrees is not None:
                degrees.check_devices(row.topology)
            refuse_with_parallel(degrees, device_map=row.device_map)
        return targets


def versions() -> dict[str, str]:
    """Return the versions that a report depends on, as far as they are imported now."""
    return {
        "fakexport": __version__,
        "torch": str(torch.__version__),
        **loaded_libraries(),
        "python": platform.python_version(),
    }
