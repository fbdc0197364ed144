"""Derive example inputs of a diffusers model from its config and the signature of its `forward`.

diffusers itself has no example inputs. `diffusers_inputs.toml` has an expression for each input, which this
module evaluates. Verified with diffusers 0.42.1.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from fakexport._torch.pytree import has_tensor
from fakexport.models.sources.shape_expressions import Builder, constant, expression, sized, table
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.source_error import SourceError
from fakexport.models.sources.transformers.input_request import InputRequest

_NEVER = "never"
"""Value of an input that no pipeline passes. The weights that process this input are unused."""
_OMITTED = "omitted"
"""Value of an optional input whose size is unknown, or that pipelines rarely pass."""
_NONE = "none"
"""Value of an input that must be passed as None."""

_STATE = re.compile(r"return_dict|generator|kv_cache|attention_kwargs|skip_layers")
"""Parameters that are settings of a call, or state that a pipeline keeps between calls."""
_ADDS_ONLY = re.compile(r"mask|residual|block_samples")
"""Inputs that can be omitted without leaving a weight of the model unused."""
_OPTIONAL = "it is optional, and the config does not specify its size"


class InputTable:
    """The rows of `diffusers_inputs.toml` for one module.

    In the expressions, a name in capital letters refers to another row. Other names are functions or settings
    of the module's config. `batch` is the batch size, unless a row of the class defines it.
    """

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype | None, batch: int) -> None:
        self.request = InputRequest.of(module, device, dtype, batch)
        names = dict(_NAMES)
        rows = _rows_of(type(module).__name__)
        self._rows = {name: expression(text, names) for name, text in rows.items()}
        names |= {name: row for name, row in self._rows.items() if name.isupper()}

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def value(self, name: str) -> Any:
        """Return the value of a row, or None if the table has no such row for this class."""
        row = self._rows.get(name)
        return None if row is None else row(self.request)

    @property
    def has_own_size(self) -> bool:
        """Whether the config specifies the size of the latents."""
        return self.request.setting("sample_size", "sample_height") is not None


def _rows_of(model_class: str) -> Mapping[str, str]:
    """Return the rows for a class. Its own rows have priority over those for matching kinds."""
    tables: Mapping[str, Any] = table(__package__, "diffusers_inputs.toml")
    kinds = [
        kind
        for kind, patterns in tables["KINDS"].items()
        if any(fnmatchcase(model_class, pattern) for pattern in patterns.split())
    ]
    found = [tables[name] for name in ("ANY", *reversed(kinds), model_class) if name in tables]
    return {name: text for rows in found for name, text in rows.items()}


def derive_inputs(
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int = 2
) -> ExampleInputs:
    """Return keyword inputs for one forward pass, by default with a batch of 2 and 77 text tokens.

    The inputs are the required inputs of `forward` and the conditioning inputs that the config enables.
    Inputs that pipelines pass in float32, such as most time steps, do not have the dtype `dtype`.

    Raises:
        SourceError: the module requires an input that its config does not determine.
    """
    name = type(module).__name__
    if type(module).forward is nn.Module.forward:
        raise SourceError(f"{name} has no forward")
    inputs = InputTable(module, device, dtype, batch)
    parameters = inputs.request.parameters
    required = {key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    if kept := [key for key in parameters if key in required and _STATE.search(key)]:
        raise SourceError(
            f"{name} requires {kept[0]!r}, state that a pipeline keeps between calls: write a factory that "
            "returns the model and its inputs"
        )
    values = {key: inputs.value(key) for key in parameters}
    words = {key: value for key, value in values.items() if isinstance(value, str)}
    kwargs = {
        key: None if key in words else value
        for key, value in values.items()
        if value is not None and words.get(key) not in (_NEVER, _OMITTED)
    }
    left_out = [
        key
        for key, parameter in parameters.items()
        if key not in kwargs
        and parameter.default is None
        and (key not in inputs or key in words)
        and not _STATE.search(key)
    ]
    if missing := [key for key in parameters if key in required and key not in kwargs]:
        raise SourceError(_underivable(module, missing))
    if not kwargs:
        raise SourceError(_underivable(module, left_out or ["an input"]))
    return ExampleInputs(
        kwargs=kwargs,
        assumptions=tuple(_notes(inputs, kwargs, left_out)),
        # If weights are unused in the program, these inputs may be the reason.
        omitted={
            key: _OPTIONAL for key in left_out if words.get(key) != _NEVER and not _ADDS_ONLY.search(key)
        },
    )


def _underivable(module: nn.Module, names: Sequence[str]) -> str:
    how = f"use --input {names[0]}=DTYPE[DIMS]"
    if len(names) > 1:
        how = (
            "use --input NAME=DTYPE[DIMS] for each, or write a factory that returns the model and its inputs"
        )
    return (
        f"{type(module).__name__} requires {', '.join(map(repr, names))}, which its config does not "
        f"determine: {how}"
    )


def _notes(inputs: InputTable, kwargs: Mapping[str, Any], left_out: Sequence[str]) -> Iterator[str]:
    name, main = next(iter(kwargs.items()))
    first = main[0] if isinstance(main, list) else main
    if not inputs.has_own_size and isinstance(first, torch.Tensor) and first.dim() > 2:
        each = " each" if first is not main else ""
        yield f"the config specifies no size: assuming {list(first.shape)} for {name}{each}"
    if "time_ids" in kwargs.get("added_cond_kwargs", ()):
        pooled, ids = (kwargs["added_cond_kwargs"][name].shape[-1] for name in ("text_embeds", "time_ids"))
        yield f"added_cond_kwargs: pooled text embeddings of size {pooled}, and {ids} time ids"
    fixed = [name for name, value in kwargs.items() if value is not None and not has_tensor(value)]
    if fixed:
        yield f"{', '.join(fixed)}: Python values that are constant in the program"
    if left_out:
        yield f"omitted optional inputs: {', '.join(left_out)}"


def _first(*values: Any) -> Any:
    """Return the first value that is not None; if it is a list, return its first item."""
    found = next((value for value in values if value is not None), None)
    return _first(*found) if isinstance(found, (list, tuple)) else found


def _times(sizes: Sequence[int], factor: int) -> list[int]:
    return [size * factor for size in sizes]


def _sides(size: Any, height: int | None, width: int | None) -> list[int]:
    return [*map(int, size)] if isinstance(size, (list, tuple)) else [int(height or size), int(width or size)]


def _known(**values: Any) -> dict[str, Any] | None:
    return {name: value for name, value in values.items() if value is not None} or None


_NAMES: Mapping[str, Builder] = {
    "DEVICE": lambda request: torch.device(request.device),
    "DTYPE": lambda request: request.dtype,
    "zeros": sized(lambda request, *dims: torch.zeros(dims, device=request.device)),
    "eye": sized(lambda request, size: torch.eye(size, device=request.device)),
    "several": sized(lambda request, count, *dims: [request.floats(*dims) for _ in range(count)]),
    **{name: constant(name) for name in (_NEVER, _OMITTED, _NONE)},
    **{"tuple": constant(tuple), "getattr": constant(getattr), "first": constant(_first)},
    **{"known": constant(_known), "sides": constant(_sides), "times": constant(_times)},
}
