"""Name the inputs, outputs and dynamic axes of a program as Optimum does.

Code that generates text with ONNX Runtime, such as transformers.js, finds the cache by these names.

Source: the ONNX files of Optimum 1.x and optimum-onnx. Its code was not used.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fakexport.error import InvalidValue
from fakexport.files.documents import CallRecord

from ..signature import Signature

_NAMES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_OF_DECODER: Mapping[str, str] = _NAMES.pop("names-in-decoder")
_AXES: Mapping[str, Mapping[str, list[str]]] = _NAMES
_LENGTH = "sequence_length"
_TOTAL = f"past_{_LENGTH} + {_LENGTH}"
_SORTED = {"sequence_length + past_sequence_length": _TOTAL}
_LENGTHS = {"decoder": "past_decoder_sequence_length", "encoder": "encoder_sequence_length"}
_STATE = re.compile(
    r"past_key_values[._](?:(?P<part>self|cross)_attention_cache_)?layers_(?P<layer>\d+)_(?P<kind>key|value)s"
)
_PARTS = {None: "", "self": "decoder.", "cross": "encoder."}
_CACHED = re.compile(r"(?:past_key_values|present)\.(?P<layer>\d+)\.(?P<tensor>.+)")
_SYMBOL = re.compile(r"[a-z_]\w*")


def with_optimum_names(signature: Signature, call: CallRecord | None) -> Signature:
    """Return the signature with Optimum's names for keys and values, and for the inputs of a decoder that
    reads the results of an encoder. Its other names are the same already.

    Raises:
        ValueError: Optimum has no name for a tensor that the program passes to its next call.
    """
    for tensor in () if call is None else call.state:
        if not _STATE.fullmatch(tensor.name):
            raise InvalidValue(
                f"Optimum has no name for {tensor.name}, which the program passes to its next call: compile "
                "without --names optimum"
            )
    inputs = {each.name: _cached(each.name, "past_key_values") for each in signature.inputs}
    if _is_decoder(inputs.values()) and "decoder_input_ids" in inputs and "input_ids" not in inputs:
        inputs |= {name: _OF_DECODER[name] for name in inputs.keys() & _OF_DECODER.keys()}
    outputs = {each.name: _cached(each.name, "present") for each in signature.outputs}
    return signature.renamed(inputs, outputs)


def _cached(name: str, prefix: str) -> str:
    """Return Optimum's name if this is the name of a layer's keys or values, otherwise the name unchanged."""
    found = _STATE.fullmatch(name)
    return name if found is None else f"{prefix}.{found['layer']}.{_PARTS[found['part']]}{found['kind']}"


def _is_decoder(names: Iterable[str]) -> bool:
    """Return whether the inputs include results of an encoder."""
    return any(name.startswith("encoder_") or ".encoder." in name for name in names)


def arrange(model: Any) -> None:
    """Order the keys and values as Optimum does, which some callers rely on, and leave out unread inputs."""
    for values in (model.graph.inputs, model.graph.outputs):
        kept = [value for value in values if values is model.graph.outputs or value.uses()]
        kept.sort(key=_place)
        values.clear()
        values.extend(kept)


def _place(value: Any) -> tuple[int, str]:
    found = _CACHED.fullmatch(value.name)
    return (-1, "") if found is None else (int(found["layer"]), found["tensor"])


def axis_names(model: Any, call: CallRecord | None, source: str) -> dict[str, str]:
    """Return Optimum's names for the symbols in the shapes of the inputs, as far as it has names."""
    names: dict[str, str] = {}
    owners: dict[str, str] = {}
    for value in model.graph.inputs:
        group, axes = _axes_of(value.name, call)
        for size, axis in zip(value.shape, axes, strict=False):
            if axis and isinstance(symbol := getattr(size, "value", None), str):
                is_other = owners.setdefault(axis, group) != group and names.get(symbol) != axis
                names.setdefault(symbol, f"{group}_{axis}" if is_other else axis)
    is_decoder = _is_decoder(value.name for value in model.graph.inputs)
    part = "decoder_" if is_decoder else "encoder_" if source.endswith(" --component encoder") else ""
    return {symbol: f"{part}{axis}" if axis == _LENGTH else axis for symbol, axis in names.items()}


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
    if found := _CACHED.fullmatch(name):
        part = found["tensor"].partition(".")[0]
        return "text", ["batch_size", "", _LENGTHS.get(part, "past_sequence_length")]
    if call is not None and call.workload != "prefill" and name == call.mask:
        return "text", ["batch_size", _TOTAL]
    return next(((group, of[name]) for group, of in _AXES.items() if name in of), ("", []))


def _values(model: Any) -> Iterator[Any]:
    from onnx_ir.traversal import RecursiveGraphIterator

    yield from model.graph.inputs
    for node in RecursiveGraphIterator(model.graph):
        yield from node.outputs
