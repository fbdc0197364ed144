"""The main job: does this model export for these targets?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.checking.answers import Answer, Wanted
from fakexport.checking.check_call import CheckCall
from fakexport.checking.isolation import ShownProgress, answers
from fakexport.checking.target_check import build_target
from fakexport.checking.targets import DeviceMapText, OneTarget, parse_target, parse_targets
from fakexport.checking.tried_fixes import with_tried_fixes
from fakexport.devices import check_emulation, emulate
from fakexport.diagnostics import fold
from fakexport.documents import AdapterMode
from fakexport.parallel import Degrees, parallel_source, refuse_with_parallel
from fakexport.program import ModuleSummary, diff_compared, inspect_module
from fakexport.report import Progress, Report, TargetDifference
from fakexport.sources import CacheForm, ExportedWorkload, resolve


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
        cache_length: With such a workload: a static cache of so many tokens, instead of one that grows.
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
        FE001, FE101 to FE105, FE201 to FE210, FE301 to FE305, FE401 to FE406, FE502, FE503, FE505, FE506,
        FE601 to FE603, and FE901 to FE912.

    Example:
        >>> report = check(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)), target=["cpu", "H100"])
        >>> [verdict.is_exportable for verdict in report.verdicts]
        [True, True]
    """
    call = CheckCall(
        source=source,
        args=args,
        kwargs=kwargs,
        target=target,
        device_map=device_map,
        dtype=dtype,
        inputs=inputs,
        dynamic_shapes=dynamic_shapes,
        strict=strict,
        use_cache=use_cache,
        workload=workload,
        cache_length=cache_length,
        cache_form=cache_form,
        component=component,
        adapter=adapter,
        adapter_mode=adapter_mode,
        parallel=parallel,
        parallel_plan=parallel_plan,
        rank=rank,
        assume=assume,
    )
    return report_on(call, on_progress=on_progress, wanted=Wanted(programs=True))


def report_on(
    call: CheckCall,
    *,
    wanted: Wanted,
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Return the report of `check`."""
    targets = parse_targets(call.target, call.device_map, call.dtype)
    for row in targets:
        check_emulation(row.topology)
    shown = ShownProgress([row.spec.name for row in targets], on_progress)
    wanted = replace(wanted, compared=len(targets) > 1, progress=on_progress is not None)
    ended = answers(call, targets, wanted, shown)
    found = [
        answer
        if isinstance(answer, Answer)
        else shown.failed(index, answer, targets[index].spec, _name(call))
        for index, answer in enumerate(ended)
    ]
    if sum(answer.verdict.is_exportable for answer in found) > 1:
        shown.compare()
    named = next((answer for answer in ended if isinstance(answer, Answer)), found[0])
    report = Report(
        source=named.source,
        verdicts=tuple(answer.verdict for answer in found),
        differences=tuple(_differences(found)),
        diagnostics=fold(diagnostic for answer in found for diagnostic in answer.diagnostics),
        versions={name: version for answer in found for name, version in answer.versions.items()},
    )
    return with_tried_fixes(report, call, targets) if wanted.tried_fixes else report


def _name(call: CheckCall) -> str:
    """Return the name of a source that no process could read."""
    source = call.source
    return source if isinstance(source, str) else getattr(source, "__name__", type(source).__name__)


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


def _differences(found: Sequence[Answer]) -> Iterator[TargetDifference]:
    exported = [(answer.verdict.target.name, answer.compared) for answer in found if answer.compared]
    for name, program in exported[1:]:
        first, other = exported[0]
        assert other is not None
        assert program is not None
        yield TargetDifference(first, name, diff_compared(other, program))
