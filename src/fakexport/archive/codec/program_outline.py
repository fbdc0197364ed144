"""Summarize a program's inputs, outputs and calls from its document, without registering operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fakexport._torch.operators.packaged_operators import class_of
from fakexport.exporting.interface import (
    InputLeaf,
    SymbolRange,
    UnreadableCondition,
    ValueSummary,
    input_leaves,
    leaf_names,
    read_condition,
)
from fakexport.files.documents import (
    DocumentError,
    entries,
    field,
    identifier,
    items,
    mapping,
    optional,
    sequence,
    text,
    union,
)

from .document import check_version, read_guards, read_range
from .guard_text import checked_guard
from .operator_names import is_of_a_library, missing_reason, reach_of
from .shape_tree import read_shape
from .structure import read_structure
from .value_reader import ValueReader, read_object

MAX_DEPTH = 30


@dataclass(frozen=True)
class ProgramOutline:
    """Summary of a program, read from its JSON document without decoding the graph.

    Args:
        torch_version: Version of torch that wrote the document; None if not recorded.
        call_count: Number of nodes that call an operator, including subgraphs.
        operators: Operator name -> number of calls, sorted by name. `getitem` on tuples does not count.
        library_operators: Sorted names of the operators that are defined outside torch.
        library_classes: Sorted C++ classes of the program's objects, such as `signal_ops::Polynomial`.
        missing_operators: Operator name -> reason why this process cannot call it.
        refused_operators: Operator name -> its side effect, for operators that only a trusted program may use
            as a call's target or argument; sorted by name.
        inputs: The inputs that the caller passes, in order.
        outputs: The buffers and inputs that the program changes, then the values that it returns.
        range_constraints: Symbol -> range, sorted by name.
        conditions: Guards that are not ranges, as text: `x.shape[1] % 2 == 0`.
    """

    torch_version: str | None
    call_count: int
    operators: Mapping[str, int]
    library_operators: tuple[str, ...]
    library_classes: tuple[str, ...]
    missing_operators: Mapping[str, str]
    refused_operators: Mapping[str, str]
    inputs: tuple[ValueSummary, ...]
    outputs: tuple[ValueSummary, ...]
    range_constraints: Mapping[str, SymbolRange]
    conditions: tuple[str, ...]


def outline(document: Any, modules: Mapping[str, str] = MappingProxyType({})) -> ProgramOutline:
    """Return the outline of a `models/model.json` from an untrusted file. Unused parts of it are not checked.

    `modules` maps names of library operators to the Python modules that register them, if known.
    """
    owner = mapping(document)
    field(owner, "schema_version", check_version)
    ranges = field(owner, "range_constraints", lambda v: entries(v, read_range))
    module = field(owner, "graph_module", mapping)
    graph = field(module, "graph", mapping)
    signature = field(module, "signature", mapping)
    values = _Values(graph)
    inputs = field(signature, "input_specs", lambda v: items(v, values.input))
    outputs = field(signature, "output_specs", lambda v: items(v, values.output))
    operators = Counter(_targets(graph, 0))
    called = sorted({*operators, *_operator_arguments(graph)})
    given = tuple(value for value in inputs if value is not None)
    classes = set(field(signature, "input_specs", lambda v: filter(None, items(v, _class))))
    return ProgramOutline(
        torch_version=field(owner, "torch_version", lambda v: optional(v, lambda t: text(t, 100)), None),
        call_count=operators.total(),
        operators={_short(name): count for name, count in sorted(operators.items())},
        library_operators=tuple(_short(name) for name in sorted(operators) if is_of_a_library(name)),
        library_classes=tuple(sorted(classes)),
        missing_operators=dict(_missing(operators, modules)),
        refused_operators={_short(name): reason for name in called if (reason := reach_of(name))},
        inputs=given,
        outputs=tuple(_named(outputs, _structure_names(module))),
        range_constraints=dict(sorted(ranges.items())),
        conditions=stated_conditions(owner, module, given),
    )


def is_loadable(document: Any, modules: Mapping[str, str]) -> bool:
    """Return whether this process could load a program. The arguments of its nodes are not checked.

    Every symbolic size and guard is checked, because stock torch would run their text.

    Raises:
        DocumentError: The program is invalid.
    """
    found = outline(document, modules)
    reader = ValueReader()
    for graph in _objects(document, "tensor_values", is_nested=True):
        for name in field(graph, "tensor_values", lambda v: entries(v, reader.describe)):
            identifier(name)
    for written in {text(each["expr_str"]) for each in _objects(document, "expr_str", is_nested=True)}:
        read_shape(written)
    field(document, "guards_code", lambda v: read_guards(v, lambda guard: checked_guard(text(guard))), [])
    return not (found.missing_operators or found.refused_operators or found.library_classes)


class _Values:
    """Summarize the inputs and outputs in a signature. Sizes have the same text as in `summarise`."""

    def __init__(self, graph: dict[str, Any]) -> None:
        self._reader = ValueReader()
        self._graph = graph

    def input(self, value: Any) -> ValueSummary | None:
        """Return an input that the caller passes; None for weights, constants and tokens."""
        kind, content = union(value)
        owner = mapping(content)
        if kind == "user_input":
            return self._argument(field(owner, "arg", union), kind, "")
        if kind == "constant_input":
            name, (of, constant) = field(owner, "name", _name), field(owner, "value", union)
            return _constant(name, "user_input", of, constant)
        return None

    def output(self, value: Any) -> tuple[str, ValueSummary]:
        """Return an output, preceded by the name of the buffer or input that it changes ("" if none)."""
        kind, content = union(value)
        owner = mapping(content)
        if kind == "user_output":
            return "", self._argument(field(owner, "arg", union), kind, "")
        changed = next((field(owner, key, _name) for key in owner if key.endswith("_name")), "")
        return changed, self._argument(("as_tensor", field(owner, "arg", mapping)), kind, changed)

    def _argument(self, argument: tuple[str, Any], kind: str, name: str) -> ValueSummary:
        of, content = argument
        owner = content if type(content) is dict else {}
        if of == "as_tensor":
            node = field(owner, "name", _name)
            meta = self._reader.describe(self._value("tensor_values", node))
            return ValueSummary(
                name=name or node,
                kind=kind,
                node=node,
                dtype=meta.dtype,
                shape=tuple(map(str, meta.sizes)),
                device=meta.device,
            )
        if of in _SYMBOLIC and "as_name" in owner:
            python_type, values, read = _SYMBOLIC[of]
            node = field(owner, "as_name", _name)
            number = getattr(self._reader, read)(self._value(values, node))
            return ValueSummary(name or node, kind, node, python_type, value=str(number))
        return _constant(name, kind, of, content)

    def _value(self, values: str, name: str) -> Any:
        return field(self._graph, values, lambda found: field(mapping(found), name, mapping))


_SYMBOLIC = {
    "as_sym_int": ("int", "sym_int_values", "sym_int"),
    "as_sym_float": ("float", "sym_float_values", "sym_float"),
    "as_sym_bool": ("bool", "sym_bool_values", "sym_bool"),
}
_CONSTANTS = {
    "as_int": "int",
    "as_bool": "bool",
    "as_float": "float",
    "as_string": "str",
    "as_none": "NoneType",
}


def _constant(name: str, kind: str, of: str, content: Any) -> ValueSummary:
    python_type = _CONSTANTS.get(of, of.removeprefix("as_")[:40])
    plain = str(None if of == "as_none" else content)[:200] if of in _CONSTANTS else None
    return ValueSummary(name, kind, "", python_type, value=plain)


def _class(value: Any) -> str | None:
    """Return the C++ class of an input that is a C++ object, or None for other inputs."""
    kind, content = union(value)
    if kind != "custom_obj":
        return None
    return class_of(field(mapping(content), "arg", read_object)[1])


def _named(outputs: list[tuple[str, ValueSummary]], names: tuple[str, ...]) -> Iterator[ValueSummary]:
    """Yield the outputs. Returned values are named by their paths in the result, if all paths are known."""
    returned = sum(not changed for changed, _ in outputs)
    places = iter(names if len(names) == returned else ())
    for changed, value in outputs:
        yield value if changed else replace(value, name=next(places, value.name))


def _structure_names(module: dict[str, Any]) -> tuple[str, ...]:
    calls = field(module, "module_call_graph", sequence)
    signature = mapping(calls[0]).get("signature") if calls else None
    if signature is None:
        return ()
    return leaf_names(field(mapping(signature), "out_spec", read_structure))


def _targets(graph: Any, depth: int) -> Iterator[str]:
    """Yield the operator of each call in a graph and its subgraphs."""
    if depth > MAX_DEPTH:
        raise DocumentError(f"the graph is nested {depth} levels deep")
    for node in field(mapping(graph), "nodes", lambda v: items(v, mapping)):
        yield field(node, "target", lambda v: text(v, 1000))
        for argument in field(node, "inputs", lambda v: items(v, mapping)):
            for held in subgraph_arguments(argument):
                yield from _targets(field(held, "graph", mapping), depth + 1)


def subgraph_arguments(argument: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the subgraphs in an argument. FlexAttention nests them in tuples and dictionaries."""
    for value in _objects(dict([field(argument, "arg", union)]), "as_graph"):
        yield mapping(value["as_graph"])


def _objects(value: Any, key: str, *, is_nested: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the objects that have a key. With `is_nested`, also yield those within such objects."""
    pending = [value]
    while pending:
        value = pending.pop()
        is_found = type(value) is dict and key in value
        if is_found:
            yield value
        if type(value) is dict and (is_nested or not is_found):
            pending += value.values()
        elif type(value) is list:
            pending += value


def _operator_arguments(graph: Any) -> Iterator[str]:
    """Yield the operators passed as arguments, for example to `auto_functionalized`, which calls them."""
    for value in _objects(graph, "as_operator", is_nested=True):
        if type(name := value["as_operator"]) is str:
            yield text(name, 1000)


def _missing(operators: Mapping[str, int], modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(operators):
        if (reason := missing_reason(name, modules)) is not None:
            yield _short(name), reason


def _short(name: str) -> str:
    """Shorten an operator's name as `program.summarise` does: `aten.mul.Tensor`, `operator.add`."""
    return name.removeprefix("torch.ops.").removeprefix("_" if name.startswith("_operator.") else "")


def _name(value: Any) -> str:
    return text(value, 2000)


_SHOWN = 500


def stated_conditions(
    document: dict[str, Any], module: dict[str, Any], inputs: Sequence[ValueSummary]
) -> tuple[str, ...]:
    """Return the guards, such as `x.shape[1] % 2 == 0`. A guard that cannot be parsed keeps torch's text."""
    guards = field(document, "guards_code", lambda v: read_guards(v, text), [])
    try:
        leaves = _leaves(module, inputs)
    # If a container type of a library cannot be decoded, the program cannot be loaded either.
    except (DocumentError, ValueError):
        leaves = ()
    found = (_words(guard, leaves) for guard in guards)
    return tuple(dict.fromkeys(words for words in found if words))


def _words(guard: str, leaves: Sequence[InputLeaf]) -> str:
    try:
        condition = read_condition(guard, leaves)
    except UnreadableCondition:
        return guard[:_SHOWN]
    return "" if condition is None else str(condition)


def _leaves(module: dict[str, Any], inputs: Sequence[ValueSummary]) -> tuple[InputLeaf, ...]:
    calls = field(module, "module_call_graph", sequence)
    signature = field(mapping(calls[0] if calls else None), "signature", mapping)
    names = field(signature, "forward_arg_names", lambda v: optional(v, lambda n: items(n, identifier)), None)
    structure = field(signature, "in_spec", read_structure)
    leaves = [(value.name, *_rank_and_constant(value)) for value in inputs]
    return input_leaves(structure, names or (), leaves)


def _rank_and_constant(value: ValueSummary) -> tuple[int | None, Any]:
    """Return an input's rank (None for a number) and its constant value (`...` if it is not constant)."""
    if value.shape is not None:
        return len(value.shape), ...
    is_constant = not value.node
    return None, _number(value) if is_constant else ...


def _number(value: ValueSummary) -> Any:
    match value.dtype:
        case "int":
            return int(value.value or "")
        case "float":
            return float(value.value or "")
        case "bool":
            return value.value == "True"
    return value.value
