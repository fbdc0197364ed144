"""Name the inputs, outputs and dynamic axes of a program as Optimum does.

Code that generates text with ONNX Runtime, such as transformers.js, finds the cache by these names.

Source: the ONNX files of Optimum 1.x and optimum-onnx. Its code was not used.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fakexport.error import InvalidValue
from fakexport.files.documents import CallRecord

from ..signature import Signature

_AXES: Mapping[str, Mapping[str, list[str]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
_TOTAL = "past_sequence_length + sequence_length"
_SORTED = {"sequence_length + past_sequence_length": _TOTAL}
_CACHE = ["batch_size", "", "past_sequence_length"]
_STATE = re.compile(r"past_key_values\.layers_(?P<layer>\d+)_(?P<kind>key|value)s")
_SYMBOL = re.compile(r"[a-z_]\w*")


def with_optimum_names(signature: Signature, call: CallRecord | None) -> Signature:
    """Return the signature with Optimum's names for keys and values. Its other names are the same already.

    Raises:
        ValueError: Optimum has no name for a tensor that the program passes to its next call.
    """
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for tensor in () if call is None else call.state:
        if (found := _STATE.fullmatch(tensor.name)) is None:
            raise InvalidValue(
                f"Optimum has no name for {tensor.name}, which the program passes to its next call: compile "
                "without --names optimum"
            )
        place = f"{found['layer']}.{found['kind']}"
        outputs[tensor.output] = f"present.{place}"
        if tensor.input is not None:
            inputs[tensor.input] = f"past_key_values.{place}"
    return signature.renamed(inputs, outputs)


def axis_names(model: Any, call: CallRecord | None) -> dict[str, str]:
    """Return Optimum's names for the symbols in the shapes of the inputs, as far as it has names."""
    names: dict[str, str] = {}
    owners: dict[str, str] = {}
    for value in model.graph.inputs:
        group, axes = _axes_of(value.name, call)
        for size, axis in zip(value.shape, axes, strict=False):
            if axis and isinstance(symbol := getattr(size, "value", None), str):
                is_other = owners.setdefault(axis, group) != group and names.get(symbol) != axis
                names.setdefault(symbol, f"{group}_{axis}" if is_other else axis)
    return names


def rename_axes(model: Any, names: Mapping[str, str]) -> None:
    """Rename the symbols in the shapes of a graph.

    A symbol that is a number becomes one: torch 2.13 writes a specialized size as the symbol `"3"`.
    """
    import onnx_ir as ir

    def renamed(size: Any) -> Any:
        if not isinstance(text := getattr(size, "value", None), str):
            return size
        new = _SYMBOL.sub(lambda found: names.get(found[0], found[0]), text)
        return int(new) if new.isdecimal() else _SORTED.get(new, new)

    for value in _values(model):
        sizes = [renamed(size) for size in value.shape or ()]
        if sizes != list(value.shape or ()):
            value.shape = ir.Shape(sizes)  # Some of torch's shapes cannot be changed.


def _axes_of(name: str, call: CallRecord | None) -> tuple[str, list[str]]:
    """Return the group of an input, and the names of its axes."""
    if name.startswith("past_key_values."):
        return "text", _CACHE
    if call is not None and call.workload != "prefill" and name == call.mask:
        return "text", ["batch_size", _TOTAL]
    return next(((group, of[name]) for group, of in _AXES.items() if name in of), ("", []))


def _values(model: Any) -> Iterator[Any]:
    from onnx_ir.traversal import RecursiveGraphIterator

    yield from model.graph.inputs
    for node in RecursiveGraphIterator(model.graph):
        yield from node.outputs
