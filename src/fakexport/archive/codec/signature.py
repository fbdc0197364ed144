"""Encode and decode the signature of a program: its inputs and outputs, by kind."""

from __future__ import annotations

from collections.abc import Callable
from json import dumps  # A model may replace it in `json`.
from typing import Any, cast

from torch.export import ExportGraphSignature, ModuleCallEntry, ModuleCallSignature
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

from fakexport._torch.tracing.program_assembly import leaf_spec, tree_spec
from fakexport.archive.codec.arguments import (
    ArgumentDecoder,
    ArgumentEncoder,
    object_json,
    output_name,
    read_object,
)
from fakexport.archive.codec.operator_lookup import Operators
from fakexport.archive.codec.structure import (
    DICTIONARIES,
    SEQUENCES,
    TREESPEC_VERSION,
    Structure,
    read_structure,
)
from fakexport.archive.codec.values import Json
from fakexport.error import InvalidValue
from fakexport.files.documents import (
    DocumentError,
    boolean,
    field,
    identifier,
    items,
    mapping,
    optional,
    text,
    union,
)

_KINDS = {kind: name for name, kind in (SEQUENCES | DICTIONARIES).items()}


def tree_spec_to_text(spec: Any) -> str:
    """Return the text that torch stores for a structure. Only plain tuples, lists and dicts are accepted."""
    return dumps([TREESPEC_VERSION, _part(spec)])


def _part(spec: Any) -> Json:
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    if spec.type not in _KINDS:
        raise InvalidValue(
            f"an input or output contains a {spec.type.__module__}.{spec.type.__qualname__}: only tuples, "
            "lists and dictionaries can be read without importing code"
        )
    if spec.type in DICTIONARIES.values() and not all(type(key) in (str, int) for key in spec.context):
        raise InvalidValue(
            "a dictionary in the inputs or outputs has a key that is not a string or an integer"
        )
    children = [_part(child) for child in spec.children()]
    return {"type": _KINDS[spec.type], "context": dumps(spec.context), "children_spec": children}


def tree_spec_from_text(value: Any) -> Any:
    """Decode a structure as torch's `TreeSpec`. Only plain containers are accepted."""
    return _tree_spec(read_structure(value))


def _tree_spec(part: Structure) -> Any:
    if part.is_leaf():
        return leaf_spec()
    return tree_spec(part.type, part.context, [_tree_spec(child) for child in part.children()])


# Kind -> name in torch's schema, and the key for the name of the weight or input, if any.
_INPUTS = {
    InputKind.PARAMETER: ("parameter", "parameter_name"),
    InputKind.BUFFER: ("buffer", "buffer_name"),
    InputKind.CONSTANT_TENSOR: ("tensor_constant", "tensor_constant_name"),
    InputKind.CUSTOM_OBJ: ("custom_obj", "custom_obj_name"),
    InputKind.TOKEN: ("token", None),
}
_OUTPUTS = {
    OutputKind.LOSS_OUTPUT: ("loss_output", None),
    OutputKind.BUFFER_MUTATION: ("buffer_mutation", "buffer_name"),
    OutputKind.PARAMETER_MUTATION: ("parameter_mutation", "parameter_name"),
    OutputKind.GRADIENT_TO_PARAMETER: ("gradient_to_parameter", "parameter_name"),
    OutputKind.GRADIENT_TO_USER_INPUT: ("gradient_to_user_input", "user_input_name"),
    OutputKind.USER_INPUT_MUTATION: ("user_input_mutation", "user_input_name"),
    OutputKind.TOKEN: ("token", None),
}
_ARGUMENTS: dict[type, tuple[str, str]] = {
    TokenArgument: ("as_tensor", "name"),  # Read back as a `TensorArgument`: the last entry wins.
    TensorArgument: ("as_tensor", "name"),
    SymIntArgument: ("as_sym_int", "as_name"),
    SymFloatArgument: ("as_sym_float", "as_name"),
    SymBoolArgument: ("as_sym_bool", "as_name"),
}
_INPUT_KINDS = {name: (kind, target) for kind, (name, target) in _INPUTS.items()}
_OUTPUT_KINDS = {name: (kind, target) for kind, (name, target) in _OUTPUTS.items()}
_ARGUMENT_KINDS: dict[str, Any] = {name: kind for kind, (name, _) in _ARGUMENTS.items()}
_CONSTANTS = frozenset(("as_none", "as_int", "as_float", "as_bool", "as_string"))


class SignatureEncoder:
    """Encode signatures. Raises the same errors as `program_to_json`."""

    def __init__(self) -> None:
        self._literal = ArgumentEncoder(_no_graph).of

    def signature(self, signature: ExportGraphSignature) -> Json:
        return {
            "input_specs": [self._input(spec) for spec in signature.input_specs],
            "output_specs": [self._output(spec) for spec in signature.output_specs],
        }

    def call(self, entry: ModuleCallEntry) -> Json:
        of = entry.signature
        signature = of and {
            "inputs": [self._argument(argument) for argument in of.inputs],
            "outputs": [self._argument(argument) for argument in of.outputs],
            "in_spec": tree_spec_to_text(of.in_spec),
            "out_spec": tree_spec_to_text(of.out_spec),
            "forward_arg_names": of.forward_arg_names or None,
        }
        return {"fqn": entry.fqn, "signature": signature}

    def _input(self, spec: InputSpec) -> Json:
        argument = spec.arg
        if isinstance(argument, ConstantArgument):
            value = self._literal(argument.value)
            if not value.keys() <= _CONSTANTS:
                kind = type(argument.value).__name__
                raise InvalidValue(f"cannot store the input {argument.name}: it is a constant of type {kind}")
            return {"constant_input": {"name": argument.name, "value": value}}
        if spec.kind is InputKind.USER_INPUT:
            return {"user_input": {"arg": self._argument(argument)}}
        kind, target = _INPUTS[spec.kind]
        found: Json = {"arg": {"name": argument.name}}
        if isinstance(argument, CustomObjArgument):
            found = {"arg": object_json(argument.name, argument)}
        if target is not None:
            found[target] = spec.target
        if spec.kind is InputKind.BUFFER:
            found["persistent"] = bool(spec.persistent)
        return {kind: found}

    def _output(self, spec: OutputSpec) -> Json:
        if spec.kind is OutputKind.USER_OUTPUT:
            return {"user_output": {"arg": self._argument(spec.arg)}}
        kind, target = _OUTPUTS[spec.kind]
        named: Json = {"arg": {"name": cast("Any", spec.arg).name}}
        return {kind: named if target is None else {**named, target: spec.target}}

    def _argument(self, argument: Any) -> Json:
        if isinstance(argument, ConstantArgument):
            return self._literal(argument.value)
        if type(argument) not in _ARGUMENTS:
            raise InvalidValue(f"cannot store {argument.name}: it is a {type(argument).__name__}")
        kind, key = _ARGUMENTS[type(argument)]
        return {kind: {key: argument.name}}


class SignatureDecoder:
    """Decode signatures. Raises the same errors as `program_from_json`."""

    def __init__(self, operators: Operators) -> None:
        self._literal = ArgumentDecoder({}, operators, _no_graph_in).read

    def signature(self, value: Any) -> ExportGraphSignature:
        owner = mapping(value)
        inputs = field(owner, "input_specs", lambda v: items(v, self._input))
        return ExportGraphSignature(inputs, field(owner, "output_specs", lambda v: items(v, self._output)))

    def call(self, value: Any) -> ModuleCallEntry:
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

    def _input(self, value: Any) -> InputSpec:
        kind, content = union(value)
        owner = mapping(content)
        if kind == "user_input":
            return InputSpec(InputKind.USER_INPUT, field(owner, "arg", self._argument), None)
        if kind == "constant_input":
            name, constant = field(owner, "name", identifier), field(owner, "value", self._constant)
            return InputSpec(InputKind.USER_INPUT, ConstantArgument(name, constant), None)
        if kind not in _INPUT_KINDS:
            raise DocumentError(f"unsupported kind of input {kind[:40]!r}")
        input_kind, key = _INPUT_KINDS[kind]
        argument = field(owner, "arg", read_object if kind == "custom_obj" else _named(kind))
        target = None if key is None else field(owner, key, _weight_name)
        persistent = field(owner, "persistent", boolean) if kind == "buffer" else None
        return InputSpec(input_kind, argument, target, persistent)

    def _output(self, value: Any) -> OutputSpec:
        kind, content = union(value)
        owner = mapping(content)
        if kind == "user_output":
            return OutputSpec(OutputKind.USER_OUTPUT, field(owner, "arg", self._argument), None)
        if kind not in _OUTPUT_KINDS:
            raise DocumentError(f"unsupported kind of output {kind[:40]!r}")
        output_kind, key = _OUTPUT_KINDS[kind]
        target = None if key is None else field(owner, key, _weight_name)
        return OutputSpec(output_kind, field(owner, "arg", _named(kind)), target)

    def _argument(self, value: Any) -> Any:
        kind, content = union(value)
        is_named = kind == "as_tensor" or type(content) is not dict or "as_name" in content
        if kind not in _ARGUMENT_KINDS or not is_named:
            return ConstantArgument(name="", value=self._literal(value))
        return _ARGUMENT_KINDS[kind](identifier(output_name(value)[1]))

    def _constant(self, value: Any) -> Any:
        kind, _ = union(value)
        if kind not in _CONSTANTS:
            raise DocumentError(f"unsupported kind of constant {kind[:40]!r}")
        return self._literal(value)


def _named(kind: str) -> Callable[[Any], Any]:
    """Return a reader of `{"name": ...}`, for a token or a tensor."""
    argument = TokenArgument if kind == "token" else TensorArgument
    return lambda value: argument(field(mapping(value), "name", identifier))


def _weight_name(value: Any) -> str:
    name = text(value, 2000)
    if not name.isprintable() or '"' in name or "'" in name or "\\" in name or not name:
        raise DocumentError("not a valid name of a weight")
    return name


def _input_structure(value: Any) -> Any:
    """Decode the structure of the inputs. Keywords must be identifiers, because torch puts them into code."""
    spec = tree_spec_from_text(value)
    children = spec.children()
    if spec.type is not tuple or len(children) != 2 or children[0].type is not tuple:
        raise DocumentError("expected a tuple of positional and keyword arguments")
    if children[1].type is not dict:
        raise DocumentError("expected a dictionary of keyword arguments")
    for name in children[1].context:
        identifier(name)
    return spec


def _no_graph(module: Any) -> Json:
    raise InvalidValue("the signature of the program contains a graph")


def _no_graph_in(value: Any) -> Any:
    raise DocumentError("a subgraph occurs outside of the program's graph")
