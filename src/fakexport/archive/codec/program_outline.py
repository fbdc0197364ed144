"""What a program takes, returns and calls, from its document alone: no operator has to be registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fakexport._torch.script_objects import class_of
from fakexport._torch.symbolic_numbers import SymbolTable, finite_bound, value_range
from fakexport.conditions import InputLeaf, UnreadableCondition, input_leaves, read_condition
from fakexport.documents import (
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
from fakexport.program import Spelling, SymbolRange, ValueSummary, leaf_names

from .argument_decoder import read_object
from .operator_lookup import Operators, is_of_a_library, reach_of
from .program_decoder import MOST_GUARD_CHARACTERS, MOST_GUARDS, check_version, read_range
from .tree_spec import tree_spec_from_text
from .value_decoder import ValueDecoder

_MAX_DEPTH = 30


@dataclass(frozen=True)
class ProgramOutline:
    """Facts about a program that are visible without decoding its document.

    Args:
        torch_version: Version of torch that wrote it; None if not recorded.
        call_count: Nodes that call an operator, those of subgraphs included.
        operators: Operator name to number of calls, sorted by name, without the unpacking of tuples.
        library_operators: Names of the operators that torch does not have, sorted.
        library_classes: The C++ classes of which the program holds objects, `signal_ops::Polynomial`, sorted.
        missing_operators: Operator name to the reason why this process cannot call it.
        refused_operators: Operator name to its side effect, for those that only a trusted
            program may call, or hand to another operator; sorted by name.
        inputs: What the caller passes, in order.
        outputs: What the program returns, preceded by the buffers and inputs that it changes.
        range_constraints: Symbol to range, sorted by name.
        conditions: Further conditions on input sizes, as text: `x.shape[1] % 2 == 0`.
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
    """Return the outline of a `models/model.json` from an untrusted file.

    Args:
        document: The parsed JSON.
        modules: For some library operators, the Python module that registers them.
    Raises:
        DocumentError: what is shown is not what torch writes. What is not shown is not checked.
    """
    owner = mapping(document)
    field(owner, "schema_version", check_version)
    ranges = field(owner, "range_constraints", lambda v: entries(v, _bounds))
    module = field(owner, "graph_module", mapping)
    graph = field(module, "graph", mapping)
    signature = field(module, "signature", mapping)
    values = _Values(graph, ranges)
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


class _Values:
    """Reads the signature of one program; sizes are spelt as `program.summarise` spells them."""

    def __init__(self, graph: dict[str, Any], ranges: Mapping[str, SymbolRange]) -> None:
        table = SymbolTable(
            {name: value_range(bounds.lower, bounds.upper) for name, bounds in ranges.items()}
        )
        self._decoder = ValueDecoder(table)
        self._graph = graph
        self._spelling = Spelling()

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
        """Return an output, and what it changes: the name of a buffer or input, "" for what is returned."""
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
            meta = self._decoder.describe(self._value("tensor_values", node))
            return ValueSummary(
                name=name or node,
                kind=kind,
                node=node,
                dtype=str(meta.dtype).removeprefix("torch."),
                shape=tuple(map(self._spelling.size, meta.sizes)),
                device=str(meta.device),
            )
        if of in _SYMBOLIC and "as_name" in owner:
            python_type, values, read = _SYMBOLIC[of]
            node = field(owner, "as_name", _name)
            number = getattr(self._decoder, read)(self._value(values, node))
            text_of = self._spelling.size(number)
            return ValueSummary(name or node, kind, node, python_type, value=text_of)
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
    """Return the C++ class of an input that is an object."""
    kind, content = union(value)
    if kind != "custom_obj":
        return None
    return class_of(field(mapping(content), "arg", read_object).class_fqn)


def _named(outputs: list[tuple[str, ValueSummary]], names: tuple[str, ...]) -> Iterator[ValueSummary]:
    """Yield the returned outputs named by their place in the structure, if it has as many."""
    returned = sum(not changed for changed, _ in outputs)
    places = iter(names if len(names) == returned else ())
    for changed, value in outputs:
        yield value if changed else replace(value, name=next(places, value.name))


def _structure_names(module: dict[str, Any]) -> tuple[str, ...]:
    calls = field(module, "module_call_graph", sequence)
    signature = mapping(calls[0]).get("signature") if calls else None
    if signature is None:
        return ()
    return leaf_names(field(mapping(signature), "out_spec", tree_spec_from_text))


def _targets(graph: Any, depth: int) -> Iterator[str]:
    """Yield the operators that a graph calls, and those of the graphs that it hands to them."""
    if depth > _MAX_DEPTH:
        raise DocumentError(f"a graph nested in {depth} graphs")
    for node in field(mapping(graph), "nodes", lambda v: items(v, mapping)):
        yield field(node, "target", lambda v: text(v, 1000))
        for argument in field(node, "inputs", lambda v: items(v, mapping)):
            for inner in _graphs(dict([field(argument, "arg", union)])):
                yield from _targets(inner, depth + 1)


def _graphs(argument: Any) -> Iterator[Any]:
    """Yield the graphs in an argument, which may be in tuples and dictionaries, as FlexAttention has one."""
    pending = [argument]
    while pending:
        value = pending.pop()
        if type(value) is dict and "as_graph" in value:
            yield field(mapping(value["as_graph"]), "graph", mapping)
        elif type(value) is dict:
            pending += value.values()
        elif type(value) is list:
            pending += value


def _operator_arguments(graph: Any) -> Iterator[str]:
    """Yield operators that are arguments of others, such as of `auto_functionalized`, which calls them."""
    pending = [graph]
    while pending:
        value = pending.pop()
        if type(value) is dict:
            if type(name := value.get("as_operator")) is str:
                yield text(name, 1000)
            pending += value.values()
        elif type(value) is list:
            pending += value


def _missing(operators: Mapping[str, int], modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    known = Operators(modules, trust=True)
    for name in sorted(operators):
        try:
            known.target(name)
        except DocumentError as error:
            yield _short(name), error.reason


def _short(name: str) -> str:
    """Return the name as `program.summarise` has it: `aten.mul.Tensor`, `operator.add`."""
    return name.removeprefix("torch.ops.").removeprefix("_" if name.startswith("_operator.") else "")


def _bounds(value: Any) -> SymbolRange:
    bounds = read_range(value)
    return SymbolRange(finite_bound(bounds.lower), finite_bound(bounds.upper))


def _name(value: Any) -> str:
    return text(value, 2000)


_SHOWN = 500


def stated_conditions(
    document: dict[str, Any], module: dict[str, Any], inputs: Sequence[ValueSummary]
) -> tuple[str, ...]:
    """Yield `x.shape[1] % 2 == 0` for each, in the form of `program.conditions` or else in torch's form."""
    guards = field(document, "guards_code", _texts, [])
    try:
        leaves = _leaves(module, inputs)
    except (DocumentError, ValueError):  # Containers of a library, which are not read: nor is the program.
        leaves = ()
    found = (_words(guard, leaves) for guard in guards)
    return tuple(dict.fromkeys(words for words in found if words))


def _texts(value: Any) -> list[str]:
    guards = items(value, text, MOST_GUARDS)
    if sum(map(len, guards)) > MOST_GUARD_CHARACTERS:
        raise DocumentError(f"conditions with more than {MOST_GUARD_CHARACTERS:,} characters in total")
    return guards


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
    structure = field(signature, "in_spec", tree_spec_from_text)
    leaves = [(value.name, *_rank_and_constant(value)) for value in inputs]
    return input_leaves(structure, names or (), leaves)


def _rank_and_constant(value: ValueSummary) -> tuple[int | None, Any]:
    """Return the value of a constant number as text, which is all that the summary of an input has."""
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
