"""Check whether a model exports for a list of targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.checking.forked_targets import ShownProgress, answers, answers_in_parts
from fakexport.checking.target_answer import Answer, Wanted
from fakexport.checking.targets import DeviceMapText, OneTarget, parse_targets, targets_of
from fakexport.checking.tried_fixes import with_tried_fixes
from fakexport.deploy import check_runtimes
from fakexport.emulation.devices import check_emulation, emulate
from fakexport.error import InvalidValue
from fakexport.exporting.capture import Request, build_source, dynamic_of
from fakexport.exporting.program import ComparedProgram, ModuleSummary, diff_compared, inspect_module
from fakexport.files.documents import AdapterMode
from fakexport.models import DynamicDims
from fakexport.models.sources import CacheForm, ExportedWorkload
from fakexport.report import Progress, Report, TargetDifference
from fakexport.rules.diagnostics import fold


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
    trust_remote_code: bool = False,
    workload: ExportedWorkload = "forward",
    max_cache_len: int | None = None,
    cache_form: CacheForm = "inputs",
    component: str | None = None,
    adapter: str | Path | None = None,
    adapter_mode: AdapterMode = "separate",
    parallel: str | None = None,
    parallel_plan: Mapping[str, Any] | None = None,
    rank: int | Literal["all"] | None = None,
    assume: Sequence[str] = (),
    runtimes: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Check whether a model exports for each target, how the programs differ, and what blocks the export.

    No weights are downloaded or allocated, and the devices do not need to exist.

    Args:
        source: `file.py:factory`, `package.module:factory`, `hf:org/name`, `hf:config.json`,
            `hf:MODEL_TYPE[:CLASS]`, `diffusers:FOLDER`, `timm:NAME`, `torchvision:NAME`; or a factory;
            or a module, whose weights are not read.
        args, kwargs: Example inputs, real or fake, as for `export`. Default: the inputs from the factory, or
            derived inputs.
        target: A topology, such as `"H100"`, or a list of several. An item can also be a mapping with
            `topology`, and `device_map` and `dtype` to override the arguments of the same names.
        device_map: A device, `"balanced"`, `"fc1=cpu,fc2=cuda:0"`, a mapping, or the path of a JSON file.
        dtype: Default floating point dtype while the model is constructed, such as `"bfloat16"`.
        inputs: Example inputs that override derived ones, such as `"pixel_values=float32[1,3,224,224]"`.
        dynamic_shapes: `"auto"`, `["input_ids.1=2..4096"]`, or the argument of `torch.export.export`. Several
            ranges, `["input_ids.0=1|2..32"]`, divide the sizes among programs; each has its own verdict.
        strict: Trace with TorchDynamo instead of running the Python code.
        use_cache: Whether a language model returns its KV cache. The cache is then an output, but not an
            input.
        trust_remote_code: Whether to run the Python files of an `hf:` repository or folder that `auto_map` in
            its `config.json` names.
        workload: `prefill`, `decode` or `chunk` of an `hf:` model: the cache is an input and an output.
        max_cache_len: For `prefill` and `decode`: use a static cache of this many tokens instead of a growing
            one.
        cache_form: `buffers`: the program keeps the static cache in buffers that it writes.
        component: A part of an `hf:` model: `vision`, `language`, or the path or class name of a module;
            or a model of a `diffusers:` pipeline.
        adapter: A folder with a peft LoRA adapter for an `hf:` model; or `NAME=FOLDER`, to bundle several.
        adapter_mode: `separate`: the adapter's matrices are weights of the program; `merged`: `bind` merges
            the matrices into the weights; `inputs`: the matrices are inputs of the program.
        parallel: Degrees of tensor and expert parallelism, `tp=8` or `tp=8,ep=8`. An `hf:` model is sharded
            by its own plan. The program of rank 0 is checked, and other ranks are compared with it. With
            `pp=4` or `tp=8,pp=4,at=MODULE,...`, the program is cut into pipeline stages, as by `split`.
        parallel_plan: With `parallel`: mapping from patterns to torch's parallel styles, as for `export`.
        rank: With `parallel`: check only the program of this rank; or `"all"`: trace all ranks and return all
            programs. Default: compare rank 0 with as many ranks as needed to know what all ranks run.
        assume: Values to assume for data-dependent conditions, `"modeling_led.py:812=False"`, and for
            integers that Python reads from data, `"model.py:9=7"`. The program raises a RuntimeError for
            inputs that violate them.
        runtimes: Runtimes to ask whether they take each exported program, such as `"onnx"`. The answers are
            in `Verdict.runtimes`.
        on_progress: Called at the start of each step.
    Returns:
        One verdict per target in the given order, the differences, and the diagnostics.
    Raises:
        ValueError: invalid usage, such as an unknown source, target, input, dimension or device map. The
            message is one line.
        TypeError: the factory does not return a module.
    Reports:
        FE001, FE101 to FE105, FE201 to FE210, FE301 to FE305, FE401 to FE407, FE502, FE503, FE505 to
        FE507, FE601 to FE603, FE801 to FE803, FE805, and FE901 to FE914.

    Example:
        >>> report = check(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)), target=["cpu", "H100"])
        >>> [verdict.is_exportable for verdict in report.verdicts]
        [True, True]
    """
    given = locals()
    on_progress, runtimes = given.pop("on_progress"), check_runtimes(given.pop("runtimes"))
    wanted = Wanted(programs=True, runtimes=runtimes)
    return report_on(Request(**given), on_progress=on_progress, wanted=wanted)


def report_on(
    request: Request, *, wanted: Wanted, on_progress: Callable[[Progress], None] | None = None
) -> Report:
    """Return the report of `check` for a request."""
    targets = parse_targets(request.target, request.device_map, request.dtype)
    for row in targets:
        check_emulation(row.topology)
    shown = ShownProgress([row.spec.name for row in targets], on_progress)
    wanted = replace(wanted, compared=len(targets) > 1, progress=on_progress is not None)
    dynamic = dynamic_of(request.dynamic_shapes)
    is_divided = isinstance(dynamic, DynamicDims) and dynamic.is_split
    if is_divided:
        rows = answers_in_parts(request, dynamic, targets, wanted, shown)
    else:
        ended = answers(request, targets, wanted, shown)
        rows = [(index, targets[index].spec, answer) for index, answer in enumerate(ended)]
    found = [
        answer if isinstance(answer, Answer) else shown.failed(index, answer, spec, _name(request))
        for index, spec, answer in rows
    ]
    if sum(answer.verdict.is_exportable for answer in found) > 1:
        shown.compare()
    named = next((answer for _, _, answer in rows if isinstance(answer, Answer)), found[0])
    report = Report(
        source=named.source,
        verdicts=tuple(answer.verdict for answer in found),
        differences=tuple(_differences(found)),
        diagnostics=fold(diagnostic for answer in found for diagnostic in answer.diagnostics),
        versions={name: version for answer in found for name, version in answer.versions.items()},
    )
    return with_tried_fixes(report, request, targets) if wanted.tried_fixes and not is_divided else report


def _name(request: Request) -> str:
    source = request.source
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
    trust_remote_code: bool = False,
) -> ModuleSummary:
    """Return the modules of a model, with parameters, bytes and devices. The model may be too large for this
    machine.

    Args:
        source, device_map, dtype, parallel, parallel_plan, trust_remote_code: as for `check`.
        topology: The devices that the device map can use.
        rank: With `parallel`: the rank whose shard to return. Default: rank 0.
    Returns:
        The root module; repeated blocks are merged.
    Raises:
        ValueError, TypeError: as for `check`.
        ModelNotBuilt: the constructor raised; the original error is its cause.
    """
    targets = parse_targets(topology, device_map, dtype)
    request = Request(
        source=source,
        device_map=device_map,
        parallel=parallel,
        parallel_plan=parallel_plan,
        rank=rank,
        trust_remote_code=trust_remote_code,
    ).read()
    if request.parallel is not None and request.parallel.stages > 1:
        raise InvalidValue("`inspect` shows the modules of the model, which pipeline stages do not change")
    (row,) = targets_of(request, targets)
    with torch_logs_silenced(), emulate(row.topology) as devices:
        built = build_source(request.source, devices, device_map=row.device_map, dtype=row.dtype)
        return inspect_module(built.module)


def _differences(found: Sequence[Answer]) -> Iterator[TargetDifference]:
    firsts: dict[str | None, tuple[str, ComparedProgram]] = {}  # By the sizes of the program.
    for answer in found:
        target, program = answer.verdict.target, answer.compared
        if program is None:
            continue
        first, other = firsts.setdefault(target.sizes, (target.name, program))
        if first != target.name:
            yield TargetDifference(first, target.name, diff_compared(other, program))
