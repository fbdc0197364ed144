"""Guards that every call of a program must satisfy, in torch's syntax.

torch checks sizes, and the values of numbers and strings. However, it accepts a different dtype, an
additional dimension, `True` instead of 1, or a tensor instead of None. With such an input, `forward` may take
a different branch than the program. These guards are stored together with torch's own, so `program.module()`
checks them even if stock torch loads the archive.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing.symbolic_numbers import expression_of, expression_python
from fakexport._torch.tracing.tensor_questions import Property, has_property
from fakexport.exporting.interface import WHILE_EXPORTING, InputLeaf

from .guards_of_program import leaves_of

_SYMBOL = re.compile(r"\b[a-z]\w*\b")
_IS_DEVICE_GUARD = re.compile(r"L\['flat_args'\]\[\d+\]\.device\.type == '\w+'")
_USUAL: Mapping[str, bool] = {"is_leaf": True} | dict.fromkeys(
    ("requires_grad", "is_view", "is_inference", "is_conj", "is_neg"), False
)
_MOST_IN_A_PART = 300
_FORMATS = ("channels_last", "channels_last_3d")


@dataclass(frozen=True)
class Asked:
    """A property of an input that `forward` read during the trace.

    Args:
        index: Index of the input leaf.
        property: The property, such as `strides` or `requires_grad`.
        answer: The value of a boolean property during the trace. None for other properties.
        place: The line that read the property, such as `model.py:12`, or "" if it is unknown.
    """

    index: int
    property: Property
    answer: bool | None
    place: str


def always_guards(program: ExportedProgram) -> list[str]:
    """Return guards on tensors (dtype, rank, layout, device, identity) and on the types of other inputs."""
    guards: list[str] = []
    tensors: list[str] = []
    for at, (leaf, value) in enumerate(_inputs(program)):
        source = _source(at)
        if isinstance(value, torch.Tensor):
            tensors.append(source)
            guards += [f"{source}.dtype == {value.dtype}", f"{source}.ndim == {value.dim()}"]
            guards += [f"{source}.layout == {value.layout}", _device_guard(source, value)]
        elif isinstance(value, torch.SymInt):
            guards.append(f"type({source}) == int{WHILE_EXPORTING}")
        elif leaf.constant is None:
            guards.append(f"{source} == None")
        elif isinstance(leaf.constant, Enum):
            kind = type(leaf.constant)
            guards += [
                f"type({source}).{name} == {getattr(kind, name)!r}" for name in ("__module__", "__qualname__")
            ]
            guards.append(f"{source}._name_ == {leaf.constant._name_!r}")
        elif type(leaf.constant) in (bool, int, float, str):
            guards.append(f"type({source}) == {type(leaf.constant).__name__}{WHILE_EXPORTING}")
            if leaf.constant == 0 and type(leaf.constant) is float:
                guards.append(f"str({source}) == '{leaf.constant}'")
    return guards + [
        f"len({{{', '.join(f'id({source})' for source in group)}}}) == {len(group)}"
        for group in _groups(tensors)
    ]


def has_identity_guard(guards: Sequence[str]) -> bool:
    """Return whether one of the guards rejects a tensor that is passed twice."""
    return any(guard.startswith("len({id(") for guard in guards)


def with_device_guards(program: ExportedProgram, guards: Sequence[str]) -> list[str]:
    """Return the guards with recorded devices replaced by the devices of the program's current inputs."""
    inputs = {_source(at): value for at, (_, value) in enumerate(_inputs(program))}
    found = []
    for guard in guards:
        value = inputs.get(guard.partition(".device.type")[0]) if _IS_DEVICE_GUARD.fullmatch(guard) else None
        found.append(_device_guard(guard.partition(".device")[0], value) if value is not None else guard)
    return found


def asked_guards(program: ExportedProgram, asked: Sequence[Asked]) -> list[str]:
    """Return a guard for each input property that `forward` read, with the line that read it."""
    inputs = list(_inputs(program))
    sizes = dict(_size_sources(inputs))
    guards = []
    for each in asked:
        for text in _texts(each, inputs, sizes):
            check = text if _is_so_in_exports(each, inputs[each.index][1]) else f"({text}{WHILE_EXPORTING})"
            guards.append(check + _reason(each.place))
    return guards


def inference_mode_guard(is_on: bool, place: str) -> str:
    """Return the guard that requires every call to use inference mode if and only if the trace did."""
    return f"torch.is_inference_mode_enabled() == {is_on}" + _reason(place)


def least_size_guard(index: int, dim: int, least: int) -> str:
    """Return the guard that requires a size to be at least its declared lower bound."""
    return f"{_source(index)}.size()[{dim}] >= {least}"


def equal_size_guard(one: tuple[int, int], other: tuple[int, int]) -> str:
    """Return the guard that requires two sizes, `(index of the input, dimension)`, to be equal."""
    return " == ".join(f"{_source(index)}.size()[{dim}]" for index, dim in (other, one))


def _reason(place: str) -> str:
    return f" and 'asked at {place}'" if place else ""


def _is_so_in_exports(asked: Asked, value: torch.Tensor) -> bool:
    """Return whether the property has the same value for the inputs that `run_decompositions` creates."""
    usual = _USUAL.get(asked.property)
    is_same = usual is None or (asked.answer is usual and has_property(value, asked.property) is usual)
    return is_same and not (asked.property == "is_leaf" and value.requires_grad)


def _texts(asked: Asked, inputs: Sequence[tuple[InputLeaf, Any]], sizes: Mapping[str, str]) -> Iterator[str]:
    source, value = _source(asked.index), inputs[asked.index][1]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return
    match asked.property:
        case "strides":
            yield from _stride_texts(source, value, sizes)
        case "offset":
            if (text := _number_text(value.storage_offset(), sizes)) is not None:
                yield f"{source}.storage_offset() == {text}"
        case "storage":
            if (
                text := _number_text(cast("int | torch.SymInt", value.untyped_storage().nbytes()), sizes)
            ) is not None:
                yield f"{source}.untyped_storage().nbytes() == {text}"
            for at, (_, other) in enumerate(inputs):
                if at != asked.index and isinstance(other, torch.Tensor):
                    own, its = (f"{each}.untyped_storage()._cdata" for each in (source, _source(at)))
                    yield f"{own} != {its}"
        case "contiguous" | "channels_last" | "channels_last_3d" if (
            has_property(value, asked.property) is not asked.answer
        ):  # `forward` changed the strides before it read them, for example with `t_()`.
            yield from _stride_texts(source, value, sizes)
        case "contiguous":
            yield f"{source}.is_contiguous() == {asked.answer}"
        case name if name in _FORMATS:
            yield f"{source}.is_contiguous(memory_format=torch.{name}) == {asked.answer}"
        case "requires_grad" | "is_leaf":
            yield f"{source}.{asked.property} == {asked.answer}"
        case "is_view":
            yield f"{source}._is_view() == {asked.answer}"
        case name:
            yield f"{source}.{name}() == {asked.answer}"


def _stride_texts(source: str, value: torch.Tensor, sizes: Mapping[str, str]) -> Iterator[str]:
    for dim, stride in enumerate(value.stride()):
        if (text := _number_text(stride, sizes)) is not None:
            yield f"{source}.stride()[{dim}] == {text}"


def _groups(sources: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield overlapping groups of sources, each small enough for one guard. Any two sources share a group."""
    parts = [sources[start : start + _MOST_IN_A_PART] for start in range(0, len(sources), _MOST_IN_A_PART)]
    if len(parts) == 1 and len(sources) > 1:
        yield sources
    for one, other in itertools.combinations(parts, 2):
        yield [*one, *other]


def _inputs(program: ExportedProgram) -> Iterator[tuple[InputLeaf, Any]]:
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    for leaf in leaves_of(program):
        yield leaf, values.get(leaf.name)


def _source(index: int) -> str:
    """Return torch's name for the input leaf at `index`. torch's messages show the user's path instead."""
    return f"L['flat_args'][{index}]"


def _device_guard(source: str, value: torch.Tensor) -> str:
    return f"{source}.device.type == '{value.device.type}'"


def _size_sources(inputs: Sequence[tuple[InputLeaf, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each symbol that is a size of an input, and the text with which a guard refers to this size."""
    for at, (_, value) in reversed(list(enumerate(inputs))):
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and expression_of(size).is_Symbol:
                yield str(expression_of(size)), f"{_source(at)}.size()[{dim}]"


def _number_text(number: int | torch.SymInt, sizes: Mapping[str, str]) -> str | None:
    """Return a number as guard text in terms of input sizes, or None if it has other symbols."""
    if isinstance(number, int):
        return str(number)
    expression = expression_of(number)
    if not {symbol.name for symbol in expression.free_symbols} <= sizes.keys():
        return None
    return _SYMBOL.sub(lambda name: sizes.get(name[0], name[0]), expression_python(expression))
