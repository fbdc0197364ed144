"""The conditions on inputs that a document of a program states, as text, without the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fakexport.conditions import InputLeaf, UnreadableCondition, input_leaves, read_condition
from fakexport.documents import DocumentError, field, identifier, items, mapping, optional, sequence, text
from fakexport.program import ValueSummary

from .program_decoder import MOST_GUARD_CHARACTERS, MOST_GUARDS
from .tree_spec import tree_spec_from_text

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
