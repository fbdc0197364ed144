"""The main job: does this model export for these targets? The only module that knows every step of it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fakexport._renamed import renamed
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._version import __version__
from fakexport.capture import TracedBlocks, dynamic_of, loaded_libraries, with_assumed
from fakexport.checking.target_checks import Request, TargetChecks, build_target
from fakexport.checking.targets import (
    DeviceMapText,
    OneTarget,
    parse_target,
    parse_targets,
)
from fakexport.devices import check_emulation, emulate, peak_bytes
from fakexport.diagnostics import fold
from fakexport.documents import AdapterMode
from fakexport.error import InvalidValue
from fakexport.parallel import Degrees, parallel_source, refuse_with_parallel
from fakexport.program import ModuleSummary, diff, inspect_module, no_difference
from fakexport.report import Progress, Report, Step, TargetDifference, Verdict
from fakexport.sources import (
    CacheForm,
    ExportedWorkload,
    adapter_source,
    component_source,
    exported_workload,
    parse_input_spec,
    resolve,
)

__all__ = ["check", "inspect"]


@renamed(targets="target")
def check(
    source: str | nn.Module | Callable[[], Any],
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: OneTarget | Sequence[OneTarget] = "cpu",
    device_map: DeviceMapText | None = None,
    dtype: str | torch.dtype | None = None,
    inputs: Sequence[str] = (),
    dynamic_shapes: Any = None,
    strict: bool = False,
    use_cache: bool = False,
    workload: ExportedWorkload = "forward",
    cache_length: int | None = None,
    cache_form: CacheForm = "inputs",
    component: str | None = None,
    adapter: str | Path | None = None,
    adapter_mode: AdapterMode = "apart",
    parallel: str | None = None,
    parallel_plan: Mapping[str, Any] | None = None,
    rank: int | Literal["all"] | None = None,
    assume: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Check whether a model exports for each target, how the programs differ, and what blocks the export.

    No weight is downloaded or allocated, and none of the devices needs to exist.

    Args:
        source: `file.py:factory`, `package.module:factory`, `hf:org/name`, `hf:config.json`,
            `hf:MODEL_TYPE[:CLASS]`, `diffusers:FOLDER`, `timm:NAME`; or a factory; or a module, whose weights
            are not read.
        args, kwargs: Example inputs, real or fake, as for `export`. Default: of the factory, or derived.
        target: A topology, such as `"H100"`, or several in a list. One may be a mapping with `topology` and,
            to override the arguments of the same names, `device_map` and `dtype`.
        device_map: A device, `"balanced"`, `"fc1=cpu,fc2=cuda:0"`, a mapping, or the path of a JSON file.
        dtype: Default floating-point dtype while the model is constructed, such as `"bfloat16"`.
        inputs: Example inputs, such as `"pixel_values=float32[1,3,224,224]"`, which override derived ones.
        dynamic_shapes: `"auto"`, `["input_ids.1=2..4096"]`, or what `torch.export.export` takes.
        strict: Trace with TorchDynamo instead of running the Python code.
        use_cache: Let a language model return the KV cache of its input; it takes none.
        workload: `prefill` or `decode` of an `hf:` model: the cache is inputs and outputs of the program.
        cache_length: With such a workload: a static cache of so many tokens, in place of one that grows.
        cache_form: `buffers`: the program keeps the static cache itself, in buffers that it writes into.
        component: A part of an `hf:` model: `vision`, `language`, or a module by the model's own name;
            or a model of a `diffusers:` pipeline.
        adapter: A folder with a LoRA adapter of peft for an `hf:` model; or `NAME=FOLDER`, to bundle several.
        adapter_mode: `apart`: its matrices are weights of the program; `merged`: they are merged into the
            weights when these are bound; `inputs`: they are inputs.
        parallel: Degrees of tensor and expert parallelism, `tp=8` or `tp=8,ep=8`, by the plan that the `hf:`
            model has: the program is that of rank 0, and other ranks are compared with it.
        parallel_plan: With `parallel`: pattern to style of torch, as for `export`.
        rank: With `parallel`: check the program of this rank alone, or trace `"all"`: the verdict has the
            program of each. Default: compare rank 0 with those that tell what all of them run.
        assume: Answers of conditions that data decide, `"modeling_led.py:812=False"`, and integers that
            Python reads from data, `"model.py:9=7"`: the trace goes that way, and the program raises a
            RuntimeError for an input with which it is not so.
        on_progress: Called at the start of each step.
    Returns:
        One verdict per target in the order asked, the differences, and the diagnostics.
    Raises:
        ValueError: bad usage: an unknown source, target, input, dimension or device map; one line.
        TypeError: a factory that does not return a module.
    Reports:
        FE001, FE101 to FE105, FE201 to FE210, FE301 to FE305, FE401 to FE404, FE502, FE503, FE505, FE506,
        FE601 to FE603, and FE901 to FE911.

    Example:
        >>> report = check(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)), target=["cpu", "H100"])
        >>> [verdict.is_exportable for verdict in report.verdicts]
        [True, True]
    """
    if inputs and not (args is None and kwargs is None):
        raise InvalidValue("example inputs are given twice: as args and kwargs, and as inputs")
    given = bool(inputs) or not (args is None and kwargs is None)
    call, dynamic_shapes = exported_workload(
        workload, dynamic_shapes, cache_length, cache_form, has_inputs=given
    )
    model = resolve(source, use_cache=use_cache, workload=call)
    model = adapter_source(model, adapter, adapter_mode, workload, has_inputs=given)
    model = component_source(model, component, workload, is_dynamic=bool(dynamic_shapes), has_inputs=given)
    degrees = Degrees.of(parallel, parallel_plan)
    whole, assumed = with_assumed(model, assume, is_strict=strict)
    own = rank if isinstance(rank, int) else None
    if rank == "all" and degrees is None:
        raise InvalidValue("a rank needs --parallel")
    model = parallel_source(whole, degrees, own)
    refuse_with_parallel(degrees, strict=strict, workload=workload, device_map=device_map)
    request = Request(
        source=model,
        ranks=None if degrees is None or own is not None else lambda r: parallel_source(whole, degrees, r),
        is_every_rank=rank == "all",
        degrees=degrees,
        inputs=[parse_input_spec(text) for text in inputs],
        args=args,
        kwargs=kwargs,
        dynamic=dynamic_of(dynamic_shapes),
        dynamic_shapes=dynamic_shapes or None,
        assumed=assumed,
        is_strict=strict,
        is_watched=on_progress is not None,
        start_rss_bytes=peak_bytes(),
        versions=_versions,
    )
    asked = parse_targets(target, device_map, dtype, model)
    for row in asked:
        check_emulation(row.topology)
        if degrees is not None:
            degrees.check_devices(row.topology)
            refuse_with_parallel(degrees, device_map=row.device_map)
    announce = on_progress or (lambda progress: None)
    checks = TargetChecks(request, asked)
    outcomes = []
    for index, row in enumerate(asked, start=1):

        def step(
            step: Step,
            finding: str = "",
            blocks: TracedBlocks | None = None,
            index: int = index,
            name: str = row.spec.name,
        ) -> None:
            announce(Progress(index, len(asked), name, step, finding, blocks))

        outcomes.append(checks.next(step))
    verdicts = tuple(verdict for verdict, _ in outcomes)
    if sum(verdict.is_exportable for verdict in verdicts) > 1:
        announce(Progress(len(asked), len(asked), "", "compare"))
    return Report(
        source=model.spec if request.ranks is None else f"{whole.spec} --parallel {parallel}",
        verdicts=verdicts,
        differences=tuple(_differences(verdicts, checks.traced_for)),
        diagnostics=fold(diagnostic for _, found in outcomes for diagnostic in found),
        versions=_versions(),
    )


def inspect(
    source: str | nn.Module | Callable[[], Any],
    *,
    topology: str = "cpu",
    device_map: DeviceMapText | None = None,
    dtype: str | torch.dtype | None = None,
    parallel: str | None = None,
    parallel_plan: Mapping[str, Any] | None = None,
    rank: int | None = None,
) -> ModuleSummary:
    """Return the architecture of a model that need not fit this machine: modules, parameters, bytes, devices.

    Args:
        source, device_map, dtype, parallel, parallel_plan: as for `check`.
        topology: The devices that the device map may name.
        rank: With `parallel`: whose part of the model. Default: that of rank 0.
    Returns:
        The root module; repeated blocks are folded.
    Raises:
        ValueError, TypeError: as for `check`.
        ModelNotBuilt: the constructor raised; its cause is what it raised.
    """
    degrees = Degrees.of(parallel, parallel_plan)
    refuse_with_parallel(degrees, device_map=device_map)
    model = parallel_source(resolve(source), degrees, rank)
    target = parse_target({"topology": topology}, device_map, dtype, model)
    with torch_logs_silenced(), emulate(target.topology):
        return inspect_module(build_target(model, target).module)


def _differences(verdicts: Sequence[Verdict], traced_for: Mapping[str, str]) -> Iterator[TargetDifference]:
    exported = [verdict for verdict in verdicts if verdict.program is not None]
    for verdict in exported[1:]:
        first, name = exported[0], verdict.target.name
        if traced_for.get(name) == first.target.name and verdict.summary is not None:
            difference = no_difference(verdict.summary.node_count)
        else:
            assert first.program is not None
            assert verdict.program is not None
            difference = diff(first.program, verdict.program)
        yield TargetDifference(first.target.name, name, difference)


def _versions() -> dict[str, str]:
    return {
        "fakexport": __version__,
        "torch": str(torch.__version__),
        **loaded_libraries(),
        "python": platform.python_version(),
    }
