"""Decode a program from an untrusted document in torch's own schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram, ExportGraphSignature, ModuleCallEntry, ModuleCallSignature
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

from fakexport._torch.program_assembly import DIALECTS, as_parameter, assemble
from fakexport._torch.program_schema import SCHEMA_VERSION
from fakexport._torch.symbolic_numbers import SymbolTable, value_range
from fakexport.documents import (
    DocumentError,
    boolean,
    collection_paused,
    decimal,
    entries,
    field,
    identifier,
    integer,
    items,
    mapping,
    optional,
    text,
    union,
)

from .argument_decoder import ArgumentDecoder, output_name, read_object
from .graph_decoder import GraphDecoder, Shared
from .guard_text import checked_guard
from .node_metadata import MetadataDecoder
from .operator_lookup import Operators
from .tree_spec import tree_spec_from_text
from .value_decoder import ValueDecoder

MOST_GUARDS = 20_000
MOST_GUARD_CHARACTERS = 4_000_000


@dataclass(frozen=True)
class MissingObject:
    """Stands for a C++ object among the constants, which the document of a program does not contain.

    Args:
        qualified_name: Name of the class, `__torch__.torch.classes.signal_ops.Polynomial`.
    """

    qualified_name: str


def program_from_json(document: Any, *, trust: bool = False) -> ExportedProgram:
    """Return the program that a `models/model.json` describes; safe to call on untrusted documents.

    Does not execute, import or load anything that the document names: expressions and conditions are parsed
    by a grammar of our own, operators are looked up among those that are registered, everything is checked
    for type and size before it is passed to torch. Works for every device, whether or not the machine has it.

    Args:
        document: From `json.loads`. Not changed.
        trust: Also take operators that do more than compute, such as those that open files.
    Returns:
        A validated program without example inputs; each node has a fake value in `meta["val"]`, with the
        symbols, ranges and hints of the original. Weights and constants are fakes of the same mode, as the
        document describes them; an object of a C++ class is a `MissingObject`, for the caller to replace.
    Raises:
        DocumentError: one line that names the place in the document and the fault.
    """
    try:
        with collection_paused():
            return _Reading().program(document, Operators(trust=trust))
    except DocumentError:
        raise
    except Exception as error:  # what only torch finds out, when it puts the checked parts together
        raise DocumentError(f"torch rejects the program: {type(error).__name__}: {error}") from error


class _Reading:
    def program(self, document: Any, operators: Operators) -> ExportedProgram:
        owner = mapping(document)
        field(owner, "schema_version", check_version)
        ranges = field(owner, "range_constraints", lambda v: entries(v, read_range))
        dialects = field(owner, "verifiers", lambda v: items(v, _dialect), ["ATEN"])
        guards = field(owner, "guards_code", _guards, [])
        table = SymbolTable(ranges)
        shared = Shared(ValueDecoder(table), operators, MetadataDecoder(operators.remembered_function))
        self._literal = ArgumentDecoder({}, operators, _no_graph).read
        graph_module = field(owner, "graph_module", mapping)
        try:
            signature = field(graph_module, "signature", self._signature)
            names = [getattr(spec.arg, "name", "") for spec in signature.input_specs]
            main = GraphDecoder(shared, names)
            field(graph_module, "graph", main.decode)
            if (unbound := table.unbound_symbols()) and not shared.values.are_offsets_alone(unbound):
                raise DocumentError(f"no value defines the symbol {unbound[0]}")
            calls = field(graph_module, "module_call_graph", lambda v: items(v, self._call))
            meta = field(graph_module, "metadata", lambda v: entries(v, text), {})
        except DocumentError as error:
            raise error.within("graph_module") from None
        state_dict, constants = _fakes(main, signature)
        return assemble(
            root=main.root,
            graph=main.graph,
            signature=signature,
            state_dict=state_dict,
            constants=constants,
            range_constraints={
                table.symbols[name]: bounds for name, bounds in ranges.items() if name in table.symbols
            },
            module_call_graph=calls,
            dialects=dialects,
            guards=guards,
            meta={"custom": shared.metadata.custom(meta["custom"])} if "custom" in meta else {},
        )

    def _signature(self, value: Any) -> ExportGraphSignature:
        owner = mapping(value)
        inputs = field(owner, "input_specs", lambda v: items(v, self._input_spec))
        return ExportGraphSignature(
            inputs, field(owner, "output_specs", lambda v: items(v, self._output_spec))
        )

    def _input_spec(self, value: Any) -> InputSpec:
        kind, content = union(value)
        owner = mapping(content)
        match kind:
            case "user_input":
                return InputSpec(InputKind.USER_INPUT, field(owner, "arg", self._argument), None)
            case "constant_input":
                constant = ConstantArgument(
                    field(owner, "name", identifier), field(owner, "value", _constant)
                )
                return InputSpec(InputKind.USER_INPUT, constant, None)
            case "token":
                return InputSpec(InputKind.TOKEN, TokenArgument(field(owner, "arg", _name)), None)
            case "parameter" | "buffer" | "tensor_constant":
                argument = TensorArgument(field(owner, "arg", _name))
                target = field(owner, f"{kind}_name", _weight_name)
                persistent = field(owner, "persistent", boolean) if kind == "buffer" else None
                return InputSpec(_INPUT_KINDS[kind], argument, target, persistent)
            case "custom_obj":
                held = field(owner, "arg", read_object)
                return InputSpec(InputKind.CUSTOM_OBJ, held, field(owner, "custom_obj_name", _weight_name))
        raise DocumentError(f"unsupported kind of input {kind[:40]!r}")

    def _output_spec(self, value: Any) -> OutputSpec:
        kind, content = union(value)
        owner = mapping(content)
        if kind == "user_output":
            return OutputSpec(OutputKind.USER_OUTPUT, field(owner, "arg", self._argument), None)
        if kind == "token":
            return OutputSpec(OutputKind.TOKEN, TokenArgument(field(owner, "arg", _name)), None)
        if kind not in _OUTPUT_KINDS:
            raise DocumentError(f"unsupported kind of output {kind[:40]!r}")
        output_kind, target = _OUTPUT_KINDS[kind]
        argument = TensorArgument(field(owner, "arg", _name))
        return OutputSpec(
            output_kind, argument, None if target is None else field(owner, target, _weight_name)
        )

    def _argument(self, value: Any) -> Any:
        kind, content = union(value)
        if kind not in _ARGUMENTS:
            return ConstantArgument(name="", value=self._literal(value))
        if kind != "as_tensor" and type(content) is dict and "as_name" not in content:
            return ConstantArgument(name="", value=self._literal(value))
        return _ARGUMENTS[kind](identifier(output_name(value)[1]))

    def _call(self, value: Any) -> ModuleCallEntry:
        owner = mapping(value)
        signature = field(owner, "signature", lambda v: optional(v, self._call_signature), None)
        return ModuleCallEntry(field(owner, "fqn", text), signature)

    def _call_signature(self, value: Any) -> ModuleCallSignature:
        owner = mapping(value)
        names = field(owner, "forward_arg_names", lambda v: optional(v, lambda n: items(n, identifier)), None)
        return ModuleCallSignature(
            inputs=field(owner, "inputs", lambda v: items(v, self._argument)),
            outputs=field(owner, "outputs", lambda v: items(v, self._argument)),
            in_spec=field(owner, "in_spec", _input_structure),
            out_spec=field(owner, "out_spec", tree_spec_from_text),
            forward_arg_names=names or None,
        )


_INPUT_KINDS = {
    "parameter": InputKind.PARAMETER,
    "buffer": InputKind.BUFFER,
    "tensor_constant": InputKind.CONSTANT_TENSOR,
}
_OUTPUT_KINDS = {
    "loss_output": (OutputKind.LOSS_OUTPUT, None),
    "buffer_mutation": (OutputKind.BUFFER_MUTATION, "buffer_name"),
    "parameter_mutation": (OutputKind.PARAMETER_MUTATION, "parameter_name"),
    "gradient_to_parameter": (OutputKind.GRADIENT_TO_PARAMETER, "parameter_name"),
    "gradient_to_user_input": (OutputKind.GRADIENT_TO_USER_INPUT, "user_input_name"),
    "user_input_mutation": (OutputKind.USER_INPUT_MUTATION, "user_input_name"),
}
_ARGUMENTS: dict[str, Any] = {
    "as_tensor": TensorArgument,
    "as_sym_int": SymIntArgument,
    "as_sym_float": SymFloatArgument,
    "as_sym_bool": SymBoolArgument,
}


def _no_graph(value: Any) -> Any:
    raise DocumentError("a nested graph outside of the graph")


def check_version(value: Any) -> None:
    """Refuse a schema version that this torch does not read."""
    owner = mapping(value)
    major, minor = field(owner, "major", integer), field(owner, "minor", integer)
    if major != SCHEMA_VERSION[0]:
        reads = ".".join(map(str, SCHEMA_VERSION))
        raise DocumentError(
            f"the program has schema version {major}.{minor}; torch {torch.__version__} reads {reads}"
        )


def read_range(value: Any) -> Any:
    """Return the range of a symbol, as torch has it."""
    owner = mapping(value)
    lower, upper = (field(owner, name, lambda v: optional(v, integer)) for name in ("min_val", "max_val"))
    if lower is not None and upper is not None and lower > upper:
        raise DocumentError(f"an empty range, from {lower} to {upper}")
    return value_range(lower, upper)


def _guards(value: Any) -> list[str]:
    """Return the conditions on the inputs; each is parsed again wherever it is checked or shown."""
    guards = items(value, lambda guard: checked_guard(text(guard)), MOST_GUARDS)
    if sum(map(len, guards)) > MOST_GUARD_CHARACTERS:
        raise DocumentError(f"conditions with more than {MOST_GUARD_CHARACTERS:,} characters in total")
    return guards


def _dialect(value: Any) -> str:
    name = text(value)
    if name not in DIALECTS:
        raise DocumentError(f"unknown dialect {name[:40]!r}")
    return name


def _name(value: Any) -> str:
    return field(mapping(value), "name", identifier)


def _weight_name(value: Any) -> str:
    name = text(value, 2000)
    if not name.isprintable() or '"' in name or "'" in name or "\\" in name or not name:
        raise DocumentError("not the name of a weight")
    return name


def _constant(value: Any) -> Any:
    kind, content = union(value)
    readers: dict[str, Callable[[Any], Any]] = {
        "as_int": integer,
        "as_bool": boolean,
        "as_string": text,
        "as_float": decimal,
    }
    if kind == "as_none":
        return None
    if kind not in readers:
        raise DocumentError(f"unsupported kind of constant {kind[:40]!r}")
    return readers[kind](content)


def _input_structure(value: Any) -> Any:
    """Return the structure of arguments and keywords; torch writes the names of keywords into code."""
    spec = tree_spec_from_text(value)
    children = spec.children()
    if spec.type is not tuple or len(children) != 2 or children[0].type is not tuple:
        raise DocumentError("expected a tuple of positional and keyword arguments")
    if children[1].type is not dict:
        raise DocumentError("expected a dictionary of keyword arguments")
    for name in children[1].context:
        identifier(name)
    return spec


def _fakes(main: GraphDecoder, signature: ExportGraphSignature) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return fakes by name as the document describes the inputs: the state dict, and the constants."""
    state_dict: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for spec in signature.input_specs:
        if spec.target is None:
            continue
        if isinstance(spec.arg, CustomObjArgument):
            constants[spec.target] = MissingObject(spec.arg.class_fqn)
        elif (value := main.new_tensor(spec.arg.name)) is None:
            continue
        elif spec.kind is InputKind.PARAMETER:
            state_dict[spec.target] = as_parameter(value)
        else:
            is_state = spec.kind is InputKind.BUFFER and spec.persistent is not False
            (state_dict if is_state else constants)[spec.target] = value
    return state_dict, constants
