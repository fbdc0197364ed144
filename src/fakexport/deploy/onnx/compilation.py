"""Compile a program to an ONNX file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport._torch.kernels.grouped_products import TORCHS, TRANSFORMERS
from fakexport._torch.kernels.mxfp4_products import PACKED
from fakexport._torch.operators.operator_registry import registered_overload
from fakexport.error import InvalidValue, first_line
from fakexport.exporting.program import (
    SourcePaths,
    devices_of_program,
    facts_of,
    retarget,
    span_of_trace,
    unbound_names,
)
from fakexport.files import new_file
from fakexport.report.diagnose import labels_at
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

from ..artifact import CompiledFile, CompileFailure, DeployError, Names, Report, WeightsPlace, silent
from ..composed_program import Compositions, all_true, composed, kept_size, packed_product
from ..signature import Signature
from ..weights_file import FileLayout, file_beside, raw_chunks
from .conversion import Converted, convert
from .description import KEY, Description
from .optimum_names import with_optimum_names

_OLDEST_OPSET = 18  # The opset of torch's translations; torch converts only to newer ones.
LARGEST_BYTES = 2**31 - 2**20
"""Size limit in bytes: protobuf reads at most 2 GiB. Larger models have their weights in a second file."""

# Placeholder until the model's digest is known. The layout does not depend on the digest.
_ANY_DIGEST = "0" * 64


def compile_onnx(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    weights: WeightsPlace = "inside",
    names: Names | None = None,
    opset: int | None = None,
    custom_translation_table: Mapping[Any, Callable[..., Any]] | None = None,
    report: Report | None = None,
) -> CompiledFile:
    """Compile a program to an ONNX file, and validate it with ONNX's own checker.

    The graph is the same with and without weights. A weight-less program can be compiled again after it is
    bound, or a checkpoint can be passed to `open_onnx`.

    Args:
        program, path: As for `compile`. ONNX has no devices, so the program is converted as if it were for
            the CPU.
        weights: `inside` the file, or `beside` it in a safetensors file, which all ONNX runtimes read as
            external data. If the program is weight-less or has more than 2 GiB of weights, `beside` is always
            used.
        names: `optimum`: the names of inputs, outputs and dynamic axes that files written by Optimum have.
            Default: the names in the program.
        opset: Version of ONNX's operators, at least 18. Default: the version that torch chooses.
        custom_translation_table: As for `torch.onnx.export`: onnxscript functions by operator.
        report: Called with a line of text for each step.

    Raises:
        CompileFailure: ONNX cannot express the program (FE802). All reasons are reported at once.
        DeployError: The exporter or the checker fails, the model is too large, or a different safetensors
            file exists at the path of the weights.
        RetargetError: The program is for a different device, and cannot run on the CPU.
        FileWriteError: A file cannot be written; an existing file is kept.
        ValueError: The path does not end in `.onnx`, an input is not a tensor, torch cannot write the opset,
            or Optimum has no name for a part of the program's state.
    """
    import onnx  # Raise before the work starts if it is missing.

    started = time.monotonic()
    say = report or silent
    target = Path(path)
    if target.suffix != ".onnx":
        raise InvalidValue(f"{target}: the name of an ONNX file must end in .onnx")
    if names not in (None, "optimum"):
        raise InvalidValue(f"names must be 'optimum' or None, not {names!r}")
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not _OLDEST_OPSET <= opset <= newest:
        raise InvalidValue(f"opset {opset} is not supported; use a number in {_OLDEST_OPSET}..{newest}")
    program, notes = prepared_program(program)
    tensors = {**program.constants, **program.state_dict}
    is_bound = not unbound_names(program)
    beside = file_beside(target)

    def file_of(converted: Converted) -> str:
        return "" if _fits(converted, tensors) and is_bound and weights == "inside" else beside.name

    table = custom_translation_table or {}
    model, description, converted = checked_model(program, file_of, table, names=names, opset=opset, say=say)
    is_inside = not description.file
    shorten_notes(model)
    if is_inside:
        _fill(model, tensors)
    description = description.sealed(model)
    model.metadata_props.add(key=KEY, value=description.to_json())
    files = [target, beside] if is_bound and not is_inside else [target]
    say(f"writing {' and '.join(file.name for file in files)}")
    _write(model, files, FileLayout.of(description.stored, description.digest), tensors)
    if not is_bound:
        notes += (f"the file has no weights; they will be in {beside.name} next to it once they are bound",)
    elif weights == "inside" and not is_inside:
        notes += (f"the weights exceed the size limit of an ONNX file: they are in {beside.name}",)
    return CompiledFile.of(target, files, started, notes=(*converted.notes, *notes))


COMPOSITIONS: Compositions = MappingProxyType(
    {PACKED: packed_product, "aten._is_all_true.default": all_true, "aten.squeeze.dim": kept_size}
)
"""The operators that are replaced before a program is converted."""


def checked_model(
    program: ExportedProgram,
    file_of: Callable[[Converted], str],
    custom_translation_table: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
    *,
    names: Names | None = None,
    opset: int | None = None,
    say: Report = silent,
) -> tuple[Any, Description, Converted]:
    """Convert a prepared program and check the result. Nothing is written. Raises as `compile_onnx` does.

    `file_of` returns the name of the weights file, or "" to put them into the model. Returns the model as
    protobuf without weights, its description, and the converted graph.
    """
    signature = Signature.of(program)
    say("converting to ONNX")
    named = with_optimum_names(signature, facts_of(program).call) if names == "optimum" else None
    table = {**translations(), **custom_translation_table}
    converted = convert(program, signature, table, named=named, opset=opset)
    read = (value.name for value in converted.model.graph.inputs)
    described = signature if named is None else named.of_inputs(frozenset(read))
    description = Description.of(program, described, converted.outputs, file_of(converted))
    model = _proto(converted, description, FileLayout.of(description.stored, _ANY_DIGEST))
    say("checking the model")
    check_model(model)
    return model, description, converted


def prepared_program(program: ExportedProgram) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Move a program to the CPU, and replace operators without a translation. Return it with notes."""
    others = [device for device in devices_of_program(program) if device != "cpu"]
    if not others:
        return composed(program, COMPOSITIONS), ()
    note = f"ONNX has no devices: the program for {', '.join(others)} was converted as if for the CPU"
    return composed(retarget(program, dict.fromkeys(others, "cpu")), COMPOSITIONS), (note,)


def _fits(converted: Converted, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return whether the weights fit into the file, together with the constants, which are always inside."""
    values = [value.const_value for value in converted.model.graph.initializers.values()]
    constants: int = sum(value.nbytes for value in values if value is not None)
    if constants > LARGEST_BYTES:
        raise DeployError(f"{constants:,} bytes of constants exceed the size limit of an ONNX file")
    weights = sum(tensors[name].nbytes for name in converted.weights)
    return constants + weights <= LARGEST_BYTES


def _proto(converted: Converted, description: Description, layout: FileLayout) -> Any:
    """Return the model as protobuf. Weights refer to their file, or to "" until `_fill` inserts them."""
    import onnx_ir as ir

    stored = description.stored_name
    for name in converted.weights:
        value = converted.model.graph.initializers[name]
        offset, length = layout.places[stored[name]] if stored else (0, 0)
        value.const_value = ir.ExternalTensor(
            description.file, offset, length, value.dtype, shape=value.shape, name=name
        )
    return ir.to_proto(converted.model)


def _write(model: Any, files: list[Path], layout: FileLayout, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the model and, if the weights are in a separate file, the weights. Write both files or neither.

    First the model is completely written to disk. Then the weights file is renamed to its final name. The
    model is renamed last, so there is never a new model next to old weights, even if the process dies.
    """
    target, *beside = files
    with new_file(target) as file:
        file.write(model.SerializeToString(deterministic=True))
        file.flush()
        for path in beside:
            layout.write_beside(path, tensors)


def _fill(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Replace references to external data with the weights themselves."""
    import onnx

    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = b"".join(raw_chunks(tensors[tensor.name]))


# Metadata that torch repeats for each node. It makes up two thirds of a small file.
_REPEATED = ("pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes")
_TRACE = "pkg.torch.onnx.stack_trace"
_WRONG_NODE = re.compile(r"\(op_type:(?P<operator>\w+), node name: (?P<node>[^)]*)\): (?P<reason>[^\n]*)")


def check_model(model: Any) -> None:
    """Validate the graph with ONNX, with weights as inputs, because they may be missing.

    Raises:
        CompileFailure: An operator does not accept its arguments (FE802), usually because of their dtype.
        DeployError: The checker rejects the model for a different reason.
    """
    import onnx

    try:
        onnx.checker.check_model(without_weights(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        if found := _WRONG_NODE.search(str(error)):
            raise CompileFailure((_finding(model, found),)) from error
        reason = first_line(error)
        raise DeployError(f"ONNX's checker rejects the model that torch.onnx produced: {reason}") from error


def without_weights(model: Any) -> Any:
    """Return a copy of a model in which the weights are inputs."""
    import onnx

    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    del alone.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            weight = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            alone.graph.input.append(weight)
        else:
            alone.graph.initializer.append(tensor)
    return alone


def _finding(model: Any, found: re.Match[str]) -> Diagnostic:
    return finding_at_node(
        model,
        found["node"],
        f"the ONNX operator {found['operator']} does not accept this",
        f"ONNX's checker at node {found['node']}: {found['reason']}",
        Fix("convert the inputs to a dtype that ONNX supports here, and convert the result back"),
    )


def finding_at_node(model: Any, name: str, label: str, note: str, fix: Fix) -> Diagnostic:
    """Return a finding (FE802) at a node of an ONNX model."""
    nodes = (node for node in messages(model, "NodeProto") if node.name == name)
    trace = next((entry.value for node in nodes for entry in node.metadata_props if entry.key == _TRACE), "")
    return rule("FE802").diagnostic(
        labels=labels_at(span_of_trace(trace), label), notes=(note,), fix=fix, node=name
    )


def shorten_notes(model: Any) -> None:
    """Remove repeated metadata from each node, and this machine's folders from its stack trace."""
    paths = SourcePaths(Path.cwd())
    del model.graph.metadata_props[:]
    for node in messages(model, "NodeProto"):
        kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key not in _REPEATED]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=paths.in_trace(value) if key == _TRACE else value)


_END = 2**63 - 1


def translations() -> Mapping[Any, Callable[..., Any]]:
    """Return ONNX translations of grouped matrix products, and of means by `scatter_reduce`.

    Rows after the last group become zeros. The translation that torch uses for `scatter_reduce` computes a
    wrong result instead of the mean, without an error (onnxscript 0.7.2).
    """
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops.core import aten_scatter_reduce

    op: Any = opset18

    def product(rows: Any, matrices: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
        if offs is None and bias is None and out_dtype is None:
            return op.MatMul(rows, matrices)
        if bias is not None or out_dtype is not None or len(rows.shape) != 2 or len(matrices.shape) != 3:
            raise NotImplementedError(
                "grouped_mm is supported only for 2-D rows, one matrix per group, and no bias or out_dtype"
            )
        groups = matrices.shape[0]
        ends = op.Cast(offs, to=7)  # 7 is int64.
        first = op.Constant(value_ints=[0])
        axis = op.Constant(value_ints=[0])
        made = []
        for index in range(groups):
            end = op.Gather(ends, op.Constant(value_ints=[index]), axis=0)
            own = op.Gather(matrices, op.Constant(value_int=index), axis=0)
            made.append(op.MatMul(op.Slice(rows, first, end, axis), own))
            first = end
        rest = op.Slice(rows, first, op.Constant(value_ints=[_END]), axis)
        size = op.Concat(op.Shape(rest, start=0, end=1), op.Shape(matrices, start=2, end=3), axis=0)
        zero = op.CastLike(op.Constant(value_float=0.0), rows)
        return op.Concat(*made, op.Expand(zero, size), axis=0)

    def scattered(
        kept: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
    ) -> Any:
        if reduce != "mean":
            return aten_scatter_reduce(kept, dim, index, source, reduce, include_self)
        if not kept.dtype.is_floating_point():
            raise NotImplementedError("scatter_reduce computes means only of floating-point numbers")
        zero, one = (op.CastLike(op.Constant(value_float=value), kept) for value in (0.0, 1.0))

        def total(first: Any, values: Any) -> Any:
            if not include_self:
                first = op.ScatterElements(first, index, op.Expand(zero, op.Shape(source)), axis=dim)
            return op.ScatterElements(first, index, values, axis=dim, reduction="add")

        ones = (op.Expand(one, op.Shape(each)) for each in (kept, source))
        return op.Div(total(kept, source), total(*ones))

    found = {name: registered_overload(*name.split(".")) for name in (TORCHS, TRANSFORMERS)}
    products = {operator: product for operator in found.values() if operator is not None}
    return {**products, torch.ops.aten.scatter_reduce.two: scattered}


def messages(message: Any, kind: str) -> Iterator[Any]:
    """Yield every message of one kind, such as `NodeProto`, including those in nested graphs."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in [value] if hasattr(value, "ListFields") else value:
            if field.message_type.name == kind:
                yield part
            yield from messages(part, kind)
