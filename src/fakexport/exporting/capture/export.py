"""Export a model for devices that this machine may not have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.emulation.devices import Topology, emulate, emulated_topology
from fakexport.emulation.fake import DeviceMap
from fakexport.error import InvalidValue
from fakexport.exporting.program import UnboundConstant, unused_parameters
from fakexport.files.documents import AdapterMode
from fakexport.files.processes import warn_of_shared_process
from fakexport.models.sources import CacheForm, ExportedWorkload, Source, parse_dtype

from .capture import Captured
from .preparation import ModelNotBuilt, PreparedModel, prepare
from .request import ModelRequest, Request

_NAMES_IN_WARNING = 5
_exported_for: set[str] = set()
"""Topologies of the earlier `export` calls in this process."""


class PartialExportWarning(UserWarning):
    """The exported program covers only part of the model that its source names. See FE104 and FE105."""


class UnboundConstants(UserWarning):
    """Some constants of the exported program have no value. The message lists them."""

    @classmethod
    def of(cls, constants: Sequence[UnboundConstant]) -> UnboundConstants:
        """Return the warning for a nonempty sequence of constants."""
        shown = [f"{c.name} ({c.code}: {c.detail})" for c in constants[:_NAMES_IN_WARNING]]
        if len(constants) > len(shown):
            shown.append(f"and {len(constants) - len(shown)} more")
        what = "1 constant has" if len(constants) == 1 else f"{len(constants)} constants have"
        codes = " and ".join(f"`fakexport explain {code}`" for code in sorted({c.code for c in constants}))
        return cls(
            f"the program is incomplete: {what} no value: {'; '.join(shown)}. Set the values in "
            f"`program.constants` before running it; {codes} explains how to avoid this"
        )


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
    trust_remote_code: bool = False,
    workload: ExportedWorkload = "forward",
    max_cache_len: int | None = None,
    cache_form: CacheForm = "inputs",
    component: str | None = None,
    adapter: str | Path | None = None,
    adapter_mode: AdapterMode = "separate",
    parallel: str | None = None,
    parallel_plan: Mapping[str, Any] | None = None,
    rank: int | None = None,
    assume: Sequence[str] = (),
) -> ExportedProgram:
    """Export a model for a topology, with fake weights and real constants. The devices need not exist.

    Constants are non-persistent buffers, plain tensor attributes and literals. Constants on the CPU are real
    tensors; constants on a virtual device are fake tensors whose value `fakexport.constant_value` returns.

    Args:
        source: A source of a model, such as `file.py:factory` or `hf:config.json`, as for `check`; or a
            factory that returns the module, `(module, args)` or `(module, args, kwargs)`. A module can be
            real or fake. Real weights become fake weights of the same shapes, and no data is copied.
        args: Positional example inputs, real or fake. Real inputs become fake tensors on the device of the
            first module. Default: the inputs that the factory returns, or that `check` would derive.
        kwargs: Keyword example inputs, handled the same way.
        target: The topology, that is, the devices that exist: `"H100"`, `"cpu+2xA100-40GB"`. Default: the
            topology of the enclosing `emulate` block, or only the CPU if there is no such block.
        device_map: The placement of the modules: a device, `{"model.embed": "cpu", "": "cuda:0"}`,
            `"fc1=cpu,fc2=cuda:0"`, the path of a JSON file, or `"balanced"`. If the model does not move
            tensors between the devices itself, transfers are inserted. Default: the devices that the factory
            uses, or the topology's first accelerator if the factory uses none.
        dtype: Default floating point dtype during construction, such as `torch.bfloat16`. If None, torch's
            default dtype is used.
        dynamic_shapes: `"auto"`, `["input_ids.1=2..4096"]`, or the argument of `torch.export.export`.
        strict: Trace with TorchDynamo instead of running the Python code.
        trust_remote_code: Whether to run the model code of an `hf:` repository or folder, as for `check`.
        workload, max_cache_len, cache_form: `prefill`, `decode` or `chunk` of an `hf:` model, as for `check`.
        component: A part of an `hf:` model, as for `check`.
        adapter, adapter_mode: A LoRA adapter for an `hf:` model, as for `check`.
        parallel: Degrees of parallelism, as for `check`.
        parallel_plan: With `parallel`: a mapping from module name patterns to styles of torch's
            `parallelize_module`, such as `{"layers.*.up": ColwiseParallel()}`, or to names of styles. For an
            `hf:` model, it changes the model's own plan. For a factory's model, it is the whole plan.
        rank: With `parallel`: the rank to export, by default 0. Its weights are shards on the first device.
        assume: Assumed values of data-dependent conditions and integers, as for `check`.
    Returns:
        A plain `ExportedProgram`; its outputs are plain tuples, lists and dicts.
    Raises:
        ValueError, TypeError: a topology, device map, dynamic dimension or input does not match the model.
        Exception: any error of the model or `torch.export`, unchanged.
    Warns:
        UnboundConstants: some constants have no value, because the code does not determine it. The warning
            lists them, with FE601, FE602 or FE603.
        PartialExportWarning: the program is only part of the model: an input could not be derived (FE104),
            or the quantization of its config was not applied (FE105).
        SharedProcess: this process has exported for a different topology before, so values that the model's
            code cached or stored in global variables may affect this export.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100")
        >>> program.state_dict["weight"].device
        device(type='cuda', index=0)
    """
    request = Request(**locals()).read()
    if request.asked.rank == "all":
        raise InvalidValue("`fe.export` returns the program of one rank: pass its number, such as `rank=0`")
    if request.parallel is not None and request.parallel.stages > 1:
        raise InvalidValue("`fe.export` returns one program: cut it into stages with `fe.split`")
    placed = None if device_map is None else DeviceMap.parse(device_map)
    chosen = None if dtype is None else parse_dtype(dtype)
    with torch_logs_silenced(), _devices(target) as devices:
        _warn_of_earlier_export(devices)
        if request.parallel is not None:
            request.parallel.check_devices(devices)

        made = exported(request, devices, device_map=placed, dtype=chosen)
    if made.unbound:
        warnings.warn(UnboundConstants.of(made.unbound), stacklevel=2)
    for text in made.left_out:
        warnings.warn(PartialExportWarning(text), stacklevel=2)
    return made.program


@dataclass(frozen=True)
class Exported:
    """A program, its constants that have no value, and a sentence for each missing part of the model."""

    program: ExportedProgram
    unbound: Sequence[UnboundConstant]
    left_out: tuple[str, ...]


def exported(
    request: ModelRequest, devices: Topology, *, device_map: DeviceMap | None, dtype: torch.dtype | None
) -> Exported:
    """Prepare the model of a request and capture its program. Call this within an `emulate` block.

    Args:
        request, devices, device_map, dtype: As for `prepare`.
    Raises:
        Exception: any error of the model or `torch.export`, unchanged.
    """

    def made(source: Source, whole: ExportedProgram | None) -> tuple[PreparedModel, Captured]:
        try:
            model = prepare(request, devices, device_map=device_map, dtype=dtype, source=source)
        except ModelNotBuilt as error:
            raise error.__cause__ or error from None
        with model.transfers():
            captured = model.captured(whole)
        if captured.program is None:
            assert captured.failure is not None
            assert captured.failure.error is not None
            raise captured.failure.error
        return model, captured

    _exported_for.add(devices.canonical)
    own = request.source
    whole = None if own.parallel is None else made(own.parallel.whole, None)[1].program
    model, captured = made(own, whole)
    assert captured.program is not None
    unbound = () if captured.recovered is None else captured.recovered.unbound
    return Exported(captured.program, unbound, tuple(_left_out(model, captured.program)))


def _warn_of_earlier_export(devices: Topology) -> None:
    if (others := _exported_for - {devices.canonical}) and devices.canonical not in _exported_for:
        reason = (
            f"fe.export already ran for {', '.join(sorted(others))} in this process, and values that the "
            "model's code cached may affect this export; use a new process for each target"
        )
        warn_of_shared_process(reason, stacklevel=3)


def _left_out(model: PreparedModel, program: ExportedProgram) -> Iterator[str]:
    """Yield a sentence for each part or feature of the source's model that is not in the program."""
    source, module, omitted = model.source, model.built.module, model.inputs.omitted
    more = f"run `fakexport check {source.spec}` for details"
    if source.quantization is not None and source.quantization.left_out(module) is not None:
        yield (
            f"FE105: the config specifies quantization ({source.quantization.method}), but the program is "
            f"not quantized; {more}"
        )
    if omitted and (unused := unused_parameters(program, module)).modules:
        share = f"{unused.elements:,} of {unused.total_elements:,} parameters"
        yield (
            f"FE104: the program was exported without an input for {', '.join(omitted)}, and does not use "
            f"{share}; {more}"
        )


@contextmanager
def _devices(topology: str | Topology | None) -> Iterator[Topology]:
    active = emulated_topology()
    if topology is None and active is not None:
        yield active
        return
    with emulate(topology or "cpu") as emulated:
        yield emulated
