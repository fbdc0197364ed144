"""Encode a program as JSON in torch's own schema, without the unneeded work of torch's serializer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
)

from fakexport._torch.program_assembly import guards_code
from fakexport._torch.program_schema import SCHEMA_VERSION, aten_version
from fakexport._torch.symbolic_numbers import finite_bound
from fakexport.conditions import UnreadableCondition, conditions_of
from fakexport.documents import DocumentError, collection_paused
from fakexport.error import InvalidValue
from fakexport.program import SourcePaths, with_plain_indexing

from .argument_encoder import ArgumentEncoder, object_json
from .graph_encoder import GraphEncoder
from .guard_text import checked_guard
from .node_metadata import MetadataEncoder, custom_json
from .tree_spec import tree_spec_to_text
from .value_encoder import Json, ValueEncoder, float_json, integer_json

_OUTPUT_KINDS = {
    OutputKind.LOSS_OUTPUT: ("loss_output", None),
    OutputKind.BUFFER_MUTATION: ("buffer_mutation", "buffer_name"),
    OutputKind.PARAMETER_MUTATION: ("parameter_mutation", "parameter_name"),
    OutputKind.GRADIENT_TO_PARAMETER: ("gradient_to_parameter", "parameter_name"),
    OutputKind.GRADIENT_TO_USER_INPUT: ("gradient_to_user_input", "user_input_name"),
    OutputKind.USER_INPUT_MUTATION: ("user_input_mutation", "user_input_name"),
    OutputKind.TOKEN: ("token", None),
}


def program_to_json(
    program: ExportedProgram, *, root: str | Path | None = None, is_for_stock: bool = False
) -> Json:
    """Return the document that stock torch keeps as `models/model.json` of a `.pt2` archive.

    It contains everything of a program except its tensors, and the same program results in the same document:
        no
    addresses, no absolute paths of source files, no order that depends on hashes.

    Args:
        root: Folder of the user's project: source files below it are named relative to it, other
            files outside of packages by their bare name.
        is_for_stock: Whether stock torch has to read the document, so that it has only what torch's schema
            has. By default it may have what `program_from_json` alone reads.
    Returns:
        Dicts, lists, strings, numbers, true, false and null for `json.dumps`. Equal parts may be the same
        object: do not change it in place.
    Raises:
        ValueError: the program contains something that torch's schema cannot express, or that only code can
            read back; names the node and the reason.
    """
    with collection_paused():
        return _document(
            program,
            GraphEncoder(ValueEncoder(), MetadataEncoder(SourcePaths(root)), is_for_stock=is_for_stock),
        )


def _document(program: ExportedProgram, encoder: GraphEncoder) -> Json:
    literal = ArgumentEncoder(_no_graph).of
    graph = encoder.encode(with_plain_indexing(program))
    signature = program.graph_signature
    custom = program.graph_module.meta.get("custom")
    return {
        "graph_module": {
            "graph": graph,
            "signature": {
                "input_specs": [_input_spec(spec) for spec in signature.input_specs],
                "output_specs": [_output_spec(spec, literal) for spec in signature.output_specs],
            },
            "module_call_graph": [
                {"fqn": entry.fqn, "signature": _call_signature(entry.signature, literal)}
                for entry in program.module_call_graph
            ],
            "metadata": {"custom": custom_json(custom)} if custom else {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": aten_version()},
        "range_constraints": {
            str(symbol): {"min_val": finite_bound(bounds.lower), "max_val": finite_bound(bounds.upper)}
            for symbol, bounds in sorted(program.range_constraints.items(), key=lambda item: str(item[0]))
        },
        "schema_version": {"major": SCHEMA_VERSION[0], "minor": SCHEMA_VERSION[1]},
        "verifiers": [verifier.dialect for verifier in program.verifiers],
        "torch_version": str(torch.__version__),
        "guards_code": _guards(program),
    }


def _guards(program: ExportedProgram) -> list[str]:
    """Return the conditions on inputs in torch's form, which `load` accepts and every path can check.

    Raises:
        ValueError: names the first that cannot be stored.
    """
    guards = guards_code(program)
    for guard in guards:
        try:
            checked_guard(guard)
        except DocumentError as error:
            raise UnreadableCondition(guard, str(error)) from error
    conditions_of(program)
    return guards


def _no_graph(module: Any) -> Json:
    raise InvalidValue("a graph in the signature of a program")


def _input_spec(spec: InputSpec) -> Json:
    argument = spec.arg
    if isinstance(argument, ConstantArgument):
        return {"constant_input": {"name": argument.name, "value": _constant(argument)}}
    named = {"name": argument.name}
    match spec.kind:
        case InputKind.USER_INPUT:
            return {"user_input": {"arg": _by_name(argument)}}
        case InputKind.PARAMETER:
            return {"parameter": {"arg": named, "parameter_name": spec.target}}
        case InputKind.BUFFER:
            buffer = {"arg": named, "buffer_name": spec.target, "persistent": bool(spec.persistent)}
            return {"buffer": buffer}
        case InputKind.CONSTANT_TENSOR:
            return {"tensor_constant": {"arg": named, "tensor_constant_name": spec.target}}
        case InputKind.TOKEN:
            return {"token": {"arg": named}}
        case InputKind.CUSTOM_OBJ if isinstance(argument, CustomObjArgument):
            held = {"arg": object_json(argument.name, argument), "custom_obj_name": spec.target}
            return {"custom_obj": held}
    raise InvalidValue(
        f"cannot store the input {argument.name}: a {type(argument).__name__} ({spec.kind.name})"
    )


def _constant(argument: ConstantArgument) -> Json:
    value = argument.value
    if value is None:
        return {"as_none": True}
    if type(value) is int:
        return {"as_int": integer_json(value)}
    if type(value) is float:
        return {"as_float": float_json(value)}
    if type(value) not in (bool, str):
        raise InvalidValue(f"cannot store the input {argument.name}: a constant {type(value).__name__}")
    return {"as_bool" if type(value) is bool else "as_string": value}


_NAMED: dict[type, tuple[str, str]] = {
    TensorArgument: ("as_tensor", "name"),
    TokenArgument: ("as_tensor", "name"),
    SymIntArgument: ("as_sym_int", "as_name"),
    SymFloatArgument: ("as_sym_float", "as_name"),
    SymBoolArgument: ("as_sym_bool", "as_name"),
}


def _by_name(argument: Any) -> Json:
    if type(argument) not in _NAMED:
        raise InvalidValue(f"cannot store {argument.name}: a {type(argument).__name__}")
    kind, key = _NAMED[type(argument)]
    return {kind: {key: argument.name}}


def _output_spec(spec: OutputSpec, literal: Callable[[Any], Json]) -> Json:
    if spec.kind is OutputKind.USER_OUTPUT:
        return {"user_output": {"arg": _argument(spec.arg, literal)}}
    kind, target = _OUTPUT_KINDS[spec.kind]
    named: Json = {"arg": {"name": cast("Any", spec.arg).name}}
    return {kind: named if target is None else {**named, target: spec.target}}


def _argument(argument: Any, literal: Callable[[Any], Json]) -> Json:
    return literal(argument.value) if isinstance(argument, ConstantArgument) else _by_name(argument)


def _call_signature(signature: Any, literal: Callable[[Any], Json]) -> Json | None:
    if signature is None:
        return None
    return {
        "inputs": [_argument(argument, literal) for argument in signature.inputs],
        "outputs": [_argument(argument, literal) for argument in signature.outputs],
        "in_spec": tree_spec_to_text(signature.in_spec),
        "out_spec": tree_spec_to_text(signature.out_spec),
        "forward_arg_names": signature.forward_arg_names or None,
    }
