"""Export a model for devices that this machine may not have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.capture.assumed_answers import with_assumed
from fakexport.capture.built_source import ModelNotBuilt, build_source
from fakexport.capture.capture import Captured, capture
from fakexport.capture.capture_facts import facts_at_capture
from fakexport.capture.dynamic_dims import dynamic_of
from fakexport.capture.given_inputs import given_inputs
from fakexport.capture.recovered import PartialProgram, UnboundConstants
from fakexport.devices import Topology, emulate, emulated_topology
from fakexport.documents import AdapterMode
from fakexport.fake import Built, DeviceMap, install_transfers
from fakexport.parallel import Degrees, parallel_source, refuse_with_parallel
from fakexport.processes import warn_of_shared_process
from fakexport.program import unused_parameters
from fakexport.sources import (
    CacheForm,
    ExampleInputs,
    ExportedWorkload,
    Source,
    adapter_source,
    component_source,
    exported_workload,
    parse_dtype,
    resolve,
)

_exported_for: set[str] = set()
"""Topologies of earlier calls in this process."""


def export(
    source: str | nn.Module | Callable[[], Any] | Source,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Topology | None = None,
    device_map: str | Mapping[str, str] | None = None,
    dtype: str | torch.dtype | None = None,
    dynamic_shapes: Any = None,
    strict: bool = False,
    workload: ExportedWorkload = "forward",
    cache_length: int | None = None,
    cache_form: CacheForm = "inputs",
    component: str | None = None,
    adapter: str | Path | None = None,
    adapter_mode: AdapterMode = "apart",
    parallel: str | None = None,
    parallel_plan: Mapping[str, Any] | None = None,
    rank: int | None = None,
    assume: Sequence[str] = (),
) -> ExportedProgram:
    """Export a model for a topology: fake weights, true constants, and no device needed.

    Constants are non-persistent buffers, plain tensor attributes and literals. Those on the CPU are real
    tensors; those on a virtual device are fakes, whose value `fakexport.fake.value_of` returns.

    Args:
        source: What builds the module without data: `file.py:factory`,
            `hf:config.json` and the like, as for `check`; or a factory, which returns the module,
            `(module, args)` or `(module, args, kwargs)`. A module, real or fake, is used as it is: the
            weights of a real one become fakes of the same shapes, and no data is copied.
        args: Positional example inputs, real or fake; a real one becomes a fake on the device of the first
            module. Default: what the factory returned, or `check` derives.
        kwargs: Keyword example inputs, treated the same way.
        target: The topology, which are the devices that exist: `"H100"`, `"cpu+2xA100-40GB"`. Default: those
            of the `emulate` block around the call, else the CPU alone.
        device_map: Where the modules are: a device, `{"model.embed": "cpu", "": "cuda:0"}`,
            `"fc1=cpu,fc2=cuda:0"`, the path of a JSON file, or `"balanced"`. Where the model does not move
            tensors between them itself, transfers are inserted. Default: where the factory puts them, on
            the topology's first accelerator if it does not say.
        dtype: Default floating-point dtype during construction, such as `torch.bfloat16`. Default: torch's.
        dynamic_shapes: `"auto"`, `["input_ids.1=2..4096"]`, or what `torch.export.export` takes.
        strict: Trace with TorchDynamo instead of running the Python code.
        workload, cache_length, cache_form: `prefill` or `decode` of an `hf:` model, as for `check`.
        component: A part of an `hf:` model, as for `check`.
        adapter, adapter_mode: A LoRA adapter of an `hf:` model, as for `check`.
        parallel: Degrees of parallelism, as for `check`.
        parallel_plan: With `parallel`: pattern of module names to style, as `parallelize_module` of torch
            takes it, `{"layers.*.up": ColwiseParallel()}`, or to the name of a style. Changes the plan of an
            `hf:` model, and is the plan of another one, which a factory returns.
        rank: With `parallel`: whose program; default 0. Its weights are its parts, on the first device.
        assume: Conditions and integers that data decide, as for `check`.
    Returns:
        A plain `ExportedProgram`; its outputs are plain tuples, lists and dicts.
    Raises:
        ValueError, TypeError: a topology, device map, dynamic dimension or input that does not fit the model.
        Exception: what the model or `torch.export` raised, as it was raised.
    Warns:
        UnboundConstants: some constants have no value, because the code does not determine one; the warning
            names them, with FE601, FE602 or FE603.
        PartialProgram: the program is not the whole model: an input that could not be derived is missing
            (FE104), or the quantization of its config (FE105).
        SharedProcess: this process has exported for another topology before, and what the model's code
            remembers of it, in a cache or a global variable, is there for this one too.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100")
        >>> program.state_dict["weight"].device
        device(type='cuda', index=0)
    """
    has_inputs = not (args is None and kwargs is None)
    call, dynamic_shapes = exported_workload(
        workload, dynamic_shapes, cache_length, cache_form, has_inputs=has_inputs
    )
    dynamic = dynamic_of(dynamic_shapes)
    found = resolve(source, workload=call)
    found = adapter_source(found, adapter, adapter_mode, workload, has_inputs=has_inputs)
    found = component_source(
        found, component, workload=workload, is_dynamic=bool(dynamic_shapes), has_inputs=has_inputs
    )
    degrees = Degrees.of(parallel, parallel_plan)
    found = parallel_source(found, degrees, rank)
    refuse_with_parallel(degrees, strict=strict, workload=workload, device_map=device_map)
    found, assumed = with_assumed(found, assume, is_strict=strict)
    chosen = None if dtype is None else parse_dtype(dtype)
    placed = None if device_map is None else DeviceMap.parse(device_map)
    with torch_logs_silenced(), _devices(target) as devices:
        _warn_of_earlier_export(devices)
        if degrees is not None:
            degrees.check_devices(devices)

        def made(source: Source, whole: ExportedProgram | None) -> tuple[Built, ExampleInputs, Captured]:
            built = _built(source, devices, placed, chosen)
            inputs = _inputs(source, built, args, kwargs, chosen)
            facts = facts_at_capture(
                source, devices, built, inputs, dtype=chosen, dynamic_shapes=dynamic_shapes, is_strict=strict
            )
            with install_transfers(built.module, built.placement):
                captured = capture(
                    built.module,
                    inputs.args,
                    inputs.kwargs,
                    dynamic=dynamic,
                    strict=strict,
                    tracing=lambda: source.tracing(built.module, inputs),
                    facts=facts,
                    assumed=assumed,
                    whole=whole,
                )
            if captured.program is None:
                assert captured.failure is not None
                assert captured.failure.error is not None
                raise captured.failure.error
            return built, inputs, captured

        whole = None if found.parallel is None else made(found.parallel.whole, None)[2].program
        built, inputs, captured = made(found, whole)
    assert captured.program is not None
    unbound = () if captured.recovered is None else captured.recovered.unbound
    if unbound:
        warnings.warn(UnboundConstants.of(unbound), stacklevel=2)
    for text in _left_out(found, built.module, inputs, captured.program):
        warnings.warn(PartialProgram(text), stacklevel=2)
    return captured.program


def _warn_of_earlier_export(devices: Topology) -> None:
    if (others := _exported_for - {devices.canonical}) and devices.canonical not in _exported_for:
        reason = f"fe.export ran for {', '.join(sorted(others))} before; fe.check uses one for each target"
        warn_of_shared_process(reason, stacklevel=3)
    _exported_for.add(devices.canonical)


def _left_out(
    source: Source, module: nn.Module, inputs: ExampleInputs, program: ExportedProgram
) -> Iterator[str]:
    """Yield what of the model that the source names is not in the program."""
    more = f"run `fakexport check {source.spec}` for details"
    if source.quantization is not None and source.quantization.left_out(module) is not None:
        yield f"FE105: the config is quantized ({source.quantization.method}), and the program is not; {more}"
    if inputs.omitted and (unused := unused_parameters(program, module)).modules:
        share = f"{unused.elements:,} of {unused.total_elements:,} parameters"
        yield f"FE104: without {', '.join(inputs.omitted)}, the program does not use {share}; {more}"


@contextmanager
def _devices(topology: str | Topology | None) -> Iterator[Topology]:
    active = emulated_topology()
    if topology is None and active is not None:
        yield active
        return
    with emulate(topology or "cpu") as emulated:
        yield emulated


def _built(
    source: Source, devices: Topology, device_map: DeviceMap | None, dtype: torch.dtype | None
) -> Built:
    try:
        return build_source(source, devices, device_map=device_map, dtype=dtype)
    except ModelNotBuilt as error:
        raise error.__cause__ or error from None


@one_at_a_time
def _inputs(
    source: Source,
    built: Built,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    dtype: torch.dtype | None,
) -> ExampleInputs:
    """Return the inputs as fake tensors; from the factory or the source, if the caller passes none."""
    if args is None and kwargs is None and (built.args or built.kwargs or source.kind == "python"):
        args, kwargs = built.args, built.kwargs
    elif args is None and kwargs is None:
        # Where the inputs of a step of generation are made, the model itself runs, on all of its devices.
        with built.mode, install_transfers(built.module, built.placement):
            return source.example_inputs(built.module, built.placement.input_device, dtype or source.dtype)
    return given_inputs(built, args, kwargs)
