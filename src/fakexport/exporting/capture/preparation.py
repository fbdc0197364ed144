"""Prepare a model for its capture: fake weights, placement, example inputs, and recorded facts.

Every command that builds a model uses this module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.pytree import tree_flatten, tree_unflatten
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.tracing.presented_classes import classes_presented
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.emulation.devices import Topology, emulate
from fakexport.emulation.fake import DeviceMap, FakeModel, Transfers, build, install_transfers
from fakexport.emulation.history import recording
from fakexport.error import FakexportError, InvalidValue, type_and_line
from fakexport.exporting.program import ProgramFacts, is_user_code
from fakexport.models import PACKAGES, installed_version
from fakexport.models.sources import (
    ExampleInputs,
    Source,
    SourceError,
    components_of,
    dtype_text,
    inputs_from_specs,
    parse_dtype,
)

from .capture import Captured, capture
from .dynamic_dims import dynamic_texts
from .given_inputs import given_inputs
from .request import ModelRequest, Request


class ModelNotBuilt(FakexportError, ValueError):
    """The model's own constructor raised an error. That error is the `__cause__`."""


@one_at_a_time
def build_source(
    source: Source,
    devices: Topology,
    *,
    device_map: DeviceMap | None = None,
    dtype: torch.dtype | None = None,
) -> FakeModel:
    """Build the model of a source with fake weights. Call this within an `emulate` block for the devices.

    Args:
        source: The model.
        devices: The emulated devices.
        device_map: The placement of the modules. Default: a library's model is placed entirely on the default
            device. A model from a user's factory is not moved, because the factory may place its parts
            itself.
        dtype: Default floating point dtype during construction. An existing module is converted to it.
            Default: the source's dtype, or torch's default dtype if the source has none.
    Raises:
        ModelNotBuilt: the constructor raised an error.
        SourceError: the source cannot be imported, or returned no module. This is a usage error.
        ValueError, TypeError: as for `build`.
    """

    def factory() -> Any:
        try:
            return source.factory()
        except SourceError:
            raise
        except Exception as error:
            reason = f"{type_and_line(error)}; run `fakexport check {source.spec}` for details"
            raise ModelNotBuilt(f"{source.spec} cannot be built: {reason}") from error

    source.prepare()
    usual = devices.default_device
    with classes_presented(is_user_code):
        return build(
            source.factory if isinstance(source.factory, nn.Module) else factory,
            device_map=device_map or (None if source.kind == "python" else usual),
            dtype=dtype or source.dtype,
            default_device=usual,
        )


_NOT_STRICT = "traced by running the Python code, not verified by TorchDynamo (--strict)"


@dataclass(frozen=True)
class PreparedModel:
    """A fake model on its devices, with example inputs and what the archive will record about its program."""

    request: ModelRequest
    source: Source
    built: FakeModel
    inputs: ExampleInputs
    facts: ProgramFacts

    def transfers(self) -> Transfers:
        """Return a context in which tensors are moved between the devices of the model's modules."""
        return install_transfers(self.built.module, self.built.placement)

    def tracing(self) -> AbstractContextManager[None]:
        """Return a context with the patches that the model's library needs during a trace."""
        return self.source.tracing(self.built.module, self.inputs)

    def captured(self, whole: ExportedProgram | None = None) -> Captured:
        """Capture the model. Arguments and errors are as for `capture`."""
        return capture(
            self.built.module,
            self.inputs.args,
            self.inputs.kwargs,
            dynamic=self.request.dynamic,
            strict=self.request.asked.strict,
            tracing=self.tracing,
            facts=self.facts,
            assumed=self.request.assumed,
            whole=whole,
        )


def prepare(
    request: ModelRequest,
    devices: Topology,
    *,
    device_map: DeviceMap | None,
    dtype: torch.dtype | None,
    source: Source | None = None,
) -> PreparedModel:
    """Build the model of a request and its example inputs. Call this within an `emulate` block.

    Args:
        request: The request.
        devices, device_map, dtype: As for `build_source`.
        source: A different source for the same request, such as the whole model or a different rank. Default:
            the source of the request.
    Raises:
        ModelNotBuilt, ValueError, TypeError: as for `build_source`.
        SourceError: no example inputs are known.
    """
    source = source or request.source
    built = build_source(source, devices, device_map=device_map, dtype=dtype)
    inputs = _inputs(request, source, built, dtype or source.dtype)
    if request.asked.example_shapes is not None:
        inputs = _resized_inputs(built, inputs, request.asked.example_shapes)
    facts = _facts(request, source, devices, built, inputs, dtype or source.dtype)
    return PreparedModel(request, source, built, inputs, facts)


@one_at_a_time
def _inputs(
    request: ModelRequest, source: Source, built: FakeModel, dtype: torch.dtype | None
) -> ExampleInputs:
    if request.asked.has_given_inputs:
        return given_inputs(built, request.asked.args, request.asked.kwargs)
    device = built.placement.input_device

    def derived() -> ExampleInputs:
        if built.has_inputs:
            return ExampleInputs(built.args, built.kwargs)
        inputs = source.example_inputs(built.module, device, dtype)
        # A rank is compared with the whole model, whose cache has more heads: no size of it may be constant.
        return inputs if source.parallel is None else replace(inputs, sizes={})

    # Deriving the inputs of a generation step runs the model itself, on all of its devices.
    with built.mode, recording(built.mode), install_transfers(built.module, built.placement):
        if not request.inputs:
            return derived()
        try:
            expected = derived()
        except SourceError:
            expected = None  # No inputs can be derived, so there is nothing to compare with.
        return inputs_from_specs(request.inputs, built.module, device, expected=expected)


def _facts(
    request: ModelRequest,
    source: Source,
    devices: Topology,
    built: FakeModel,
    inputs: ExampleInputs,
    dtype: torch.dtype | None,
) -> ProgramFacts:
    """Return the facts about a program that are known before its capture."""
    assumptions = dict.fromkeys((*devices.assumptions, *source.assumptions, *inputs.assumptions))
    return ProgramFacts(
        source=source.spec,
        topology=devices.canonical,
        profiles=tuple(device.profile.name for device in devices.devices),
        device_map=dict(built.placement.device_map),
        dtype=None if dtype is None else dtype_text(dtype),
        dynamic_shapes=", ".join(dynamic_texts(request.dynamic_shapes) or ()) or None,
        skipped_checks=(*assumptions, *source.left_out, *([] if request.asked.strict else [_NOT_STRICT])),
        versions=_libraries_of(built.module),
        call=inputs.call,
        component=source.component,
        adapter=None if source.adapter is None else source.adapter.record(built.module, inputs),
        sizes=request.asked.sizes,
        unpacked_parameters=(
            None
            if source.quantization is None or source.component is not None
            else source.quantization.unpacked_parameters(built.module)
        ),
        parallel=None if source.parallel is None else source.parallel.record(built.module),
        settings=source.settings,
    )


def _libraries_of(model: nn.Module) -> dict[str, str]:
    """Return the version of each model library that a model uses, by library name."""
    used = {type(part).__module__.partition(".")[0] for part in model.modules()}
    return {name: version for name, version in loaded_libraries().items() if name in used}


def loaded_libraries() -> dict[str, str]:
    """Return the version of each imported model library, by name; `unknown` if it has no version."""
    return {
        name: str(getattr(module, "__version__", None) or installed_version(name) or "unknown")
        for name in PACKAGES
        if (module := sys.modules.get(name)) is not None
    }


def components(
    source: Any, *, target: str | Topology = "cpu", dtype: torch.dtype | str | None = None
) -> tuple[str, ...]:
    """Return the names of the parts that make up a multimodal model, in execution order.

    Export each part with `export(source, component=name)`, and write all parts to one file with
    `save_bundle`.

    Args:
        source: An `hf:` model, such as `hf:config.json`.
        target, dtype: As for `export`.
    Raises:
        SourceError: the source is not an `hf:` model, has no such components, or does not run on its example
            inputs.
        FakexportError: as for `export`.

    Example:
        >>> components("hf:no/config.json")
        Traceback (most recent call last):
        fakexport...SourceError: no such file: no/config.json
    """
    found = Request(source=source).read().source
    if found.kind != "transformers":
        raise SourceError(f"only hf: models have components, not {found.spec}")
    chosen = None if dtype is None else parse_dtype(dtype)
    with torch_logs_silenced(), emulate(target) as devices:
        built = build_source(found, devices, dtype=chosen)
        with built.mode, install_transfers(built.module, built.placement):
            return components_of(found, built.module, built.placement.input_device, chosen or found.dtype)


def _resized_inputs(
    built: FakeModel, inputs: ExampleInputs, shapes: Sequence[tuple[int, ...] | None]
) -> ExampleInputs:
    """Return example inputs with other sizes.

    A tensor is cut, or extended by repeating it, so that its values stay valid.

    Args:
        shapes: The shape of each leaf of the inputs, in the order of the program's inputs; None if the leaf
            is not a tensor.
    Raises:
        ValueError: the inputs have other leaves.
    """
    leaves, spec = tree_flatten((tuple(inputs.args), dict(inputs.kwargs)))
    if len(leaves) != len(shapes) or any(
        (shape is not None) != isinstance(leaf, torch.Tensor)
        or (shape is not None and len(shape) != leaf.dim())
        for leaf, shape in zip(leaves, shapes, strict=False)
    ):
        raise InvalidValue(
            "the example inputs cannot be changed to the sizes of another range: pass tensors, or tuples, "
            "lists and dicts of tensors"
        )
    with built.mode, recording(built.mode):
        made = [__resized_inputs(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)]
    args, kwargs = tree_unflatten(made, spec)
    return replace(inputs, args=args, kwargs=kwargs)


def __resized_inputs(value: Any, shape: tuple[int, ...] | None) -> Any:
    for dim, size in enumerate(shape or ()):
        old = value.shape[dim]
        if size != old:
            value = value.index_select(dim, torch.arange(size, device=value.device) % max(old, 1))
    return value
