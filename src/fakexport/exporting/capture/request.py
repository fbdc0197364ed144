"""A user's request: a model, its inputs and the options, from the command line, a file or Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fakexport.emulation.devices import peak_bytes
from fakexport.error import InvalidValue
from fakexport.files.documents import AdapterMode, SizeRange
from fakexport.models import DynamicDims
from fakexport.models.parallel import Degrees, parallel_source, refuse_with_parallel
from fakexport.models.sources import (
    CacheForm,
    ExportedWorkload,
    InputSpec,
    Source,
    Workload,
    adapter_source,
    component_source,
    exported_workload,
    parse_input_spec,
    resolve,
)

from .assumed_answers import AssumedAnswer, with_assumed
from .dynamic_dims import dynamic_of


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as the user wrote it. The fields are the arguments of `check` and `export`.

    Args:
        target: One topology, or several targets for `check`.
        example_shapes: The shape of each leaf of the example inputs, to change their sizes; None for leaves
            that are not tensors.
        sizes: The sizes for which callers use the program, if several programs divide the sizes among them.
        prepare: Called before the source is read, for example to load libraries of operators.
    """

    source: Any
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    target: Any = "cpu"
    device_map: str | Mapping[str, str] | None = None
    dtype: str | torch.dtype | None = None
    inputs: Sequence[str] = ()
    dynamic_shapes: Any = None
    strict: bool = False
    use_cache: bool = False
    trust_remote_code: bool = False
    workload: ExportedWorkload = "forward"
    max_cache_len: int | None = None
    cache_form: CacheForm = "inputs"
    component: str | None = None
    adapter: str | Path | None = None
    adapter_mode: AdapterMode = "separate"
    parallel: str | None = None
    parallel_plan: Mapping[str, Any] | None = None
    rank: int | Literal["all"] | None = None
    assume: Sequence[str] = ()
    example_shapes: Sequence[tuple[int, ...] | None] | None = None
    sizes: tuple[SizeRange, ...] = ()
    prepare: Callable[[], None] | None = None

    @property
    def has_given_inputs(self) -> bool:
        """Whether the caller passes example inputs as Python objects."""
        return not (self.args is None and self.kwargs is None)

    @property
    def is_input_chosen(self) -> bool:
        """Whether the caller passes or describes example inputs."""
        return bool(self.inputs) or self.has_given_inputs

    def read(self, call: Workload | None = None) -> ModelRequest:
        """Parse everything but the target. This reads configs, but does not import a Python model's file.

        Args:
            call: The workload with its sizes, for a memory plan. Default: the workload of this request.
        Raises:
            ValueError, TypeError: invalid usage, as for `check`.
        """
        start_rss_bytes = peak_bytes()
        if self.inputs and self.has_given_inputs:
            raise InvalidValue("pass the example inputs either as args and kwargs or as inputs, not both")
        if self.prepare is not None:
            self.prepare()
        has_inputs = self.is_input_chosen
        dynamic_shapes = self.dynamic_shapes
        if call is None:
            call, dynamic_shapes = exported_workload(
                self.workload, dynamic_shapes, self.max_cache_len, self.cache_form, has_inputs=has_inputs
            )
        whole = resolve(
            self.source,
            use_cache=self.use_cache,
            workload=call,
            trust_remote_code=self.trust_remote_code,
        )
        whole = adapter_source(whole, self.adapter, self.adapter_mode, self.workload, has_inputs=has_inputs)
        whole = component_source(
            whole, self.component, self.workload, is_dynamic=bool(dynamic_shapes), has_inputs=has_inputs
        )
        parallel = Degrees.of(self.parallel, self.parallel_plan)
        degrees = parallel if parallel is not None and parallel.ranks > 1 else None
        if parallel is not None and parallel.stages > 1 and self.sizes:
            raise InvalidValue("pipeline stages (pp=) cannot be combined with several ranges of a size")
        whole, assumed = with_assumed(whole, self.assume, is_strict=self.strict)
        if self.rank == "all" and parallel is None:
            raise InvalidValue("a rank requires --parallel")
        own = self.rank if isinstance(self.rank, int) else None
        source = parallel_source(whole, degrees, own)
        refuse_with_parallel(degrees, strict=self.strict, workload=self.workload, device_map=self.device_map)
        has_ranks = degrees is not None and own is None
        return ModelRequest(
            asked=self,
            name=f"{whole.spec} --parallel {self.parallel}" if has_ranks else source.spec,
            source=source,
            parallel=parallel,
            degrees=degrees,
            ranks=(lambda rank: parallel_source(whole, degrees, rank)) if has_ranks else None,
            inputs=tuple(map(parse_input_spec, self.inputs)),
            dynamic=dynamic_of(dynamic_shapes),
            dynamic_shapes=dynamic_shapes or None,
            assumed=assumed,
            start_rss_bytes=start_rss_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A parsed request. It does not depend on the target.

    Args:
        asked: The request as the user wrote it.
        name: The source and the rank, as shown in the report.
        source: The source of the model, or of one rank if the model is parallel.
        parallel: The degrees of parallelism, or None.
        degrees: The same, or None if the weights are not sharded.
        ranks: Function that returns the source of a rank. None if only one rank was requested.
        inputs: The described example inputs.
        dynamic, dynamic_shapes: The dynamic dimensions, parsed and as written.
        assumed: The assumed values of data-dependent conditions and numbers.
        start_rss_bytes: Peak memory of the process before the model was read.
    """

    asked: Request
    name: str
    source: Source
    parallel: Degrees | None
    degrees: Degrees | None
    ranks: Callable[[int], Source] | None
    inputs: tuple[InputSpec, ...]
    dynamic: DynamicDims | Any
    dynamic_shapes: Any
    assumed: Sequence[AssumedAnswer]
    start_rss_bytes: int
