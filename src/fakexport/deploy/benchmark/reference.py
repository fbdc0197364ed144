"""The reference for all formats: inputs, if possible of several sizes, and the outputs of eager mode."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from json import dumps, loads  # A model may patch the module `json`.
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fakexport.deploy import DeployError
from fakexport.error import InvalidValue, type_and_line
from fakexport.exporting.capture import as_torch_shapes
from fakexport.exporting.program import plain_name
from fakexport.models import DynamicDims, parse_dynamic
from fakexport.models.sources import SourceError, inputs_from_specs, parse_input_spec

from .model import Inputs, Model, Request, call_of, copied

_SEED = 1

_FIRST_TOKEN = 3  # In most vocabularies, the first ids are padding, start and end.


@dataclass(frozen=True)
class Facts:
    """Results of `write_reference`: inputs, assumptions, and the packages of the model's classes."""

    inputs: tuple[str, ...]
    other_inputs: tuple[str, ...]
    assumptions: tuple[str, ...]
    packages: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read the results that `write_reference` wrote to the folder."""
        found = loads((folder / "facts.json").read_text())
        return cls(**{name: tuple(value) for name, value in found.items()})


def write_reference(request: Request, folder: Path) -> None:
    """Run the eager model with the example sizes and with others, and write its inputs and outputs."""
    model = Model.of(request)
    dynamic = parse_dynamic(request.dynamic)
    inputs, assumptions = _inputs(request, model)
    as_torch_shapes(dynamic, inputs.values)  # Raises if the dimensions are wrong.

    def works(values: Mapping[str, Any]) -> bool:
        return _failure(model, replace(inputs, values=dict(values))) is None

    sets = [inputs]
    if request.dynamic:
        resized = in_other_sizes(inputs.values, dynamic, works)
        if resized is not None:
            sets.append(replace(inputs, values=resized))
        else:
            assumptions = (
                *assumptions,
                "only the example sizes were tested: the eager model rejected all others that were tried",
            )
    # Construct the model again, because the calls above may have changed its state.
    call = call_of(Model.of(request).module)
    for number, each in enumerate(sets, start=1):
        _write_inputs(each, folder / f"inputs-{number}.pt", request.source)
        torch.save(call(copied(each)), folder / f"expected-{number}.pt")
    shown = [tuple(_shown(each.values)) for each in sets]
    facts = Facts(shown[0], shown[1] if len(shown) > 1 else (), assumptions, _packages(model.module))
    (folder / "facts.json").write_text(dumps(asdict(facts)))


def references(folder: Path) -> list[tuple[Inputs, list[torch.Tensor]]]:
    """Return inputs and outputs of eager mode: for the example sizes and, if available, for others."""
    return [
        (Inputs(**torch.load(path)), torch.load(path.with_name(path.name.replace("inputs", "expected"))))
        for path in sorted(folder.glob("inputs-*.pt"))
    ]


def _inputs(request: Request, model: Model) -> tuple[Inputs, tuple[str, ...]]:
    """Return inputs that the eager model accepts, and the assumptions made about them."""
    assumptions = model.source.assumptions
    if model.was_training:
        assumptions = (*assumptions, "the model was in training mode and was switched to eval mode")
    examples = model.examples
    if request.inputs:
        specs = [parse_input_spec(text) for text in request.inputs]
        examples = inputs_from_specs(specs, model.module, "cpu", expected=examples)
    elif examples is None:
        raise SourceError(
            f"{request.source} has no example inputs: return (module, args), or pass --input NAME=DTYPE[DIMS]"
        )
    assumptions = (*assumptions, *examples.assumptions)
    inputs = Inputs.of(model.module, examples)
    if model.source.kind != "python" or request.inputs:
        drawn = replace(inputs, values=drawn_values(inputs.values, model.module))
        if _failure(model, drawn) is None:
            return drawn, assumptions
        # For example, ids may have a special meaning for this model.
        assumptions = (*assumptions, "the inputs are zeros: the model does not accept random numbers")
    if (error := _failure(model, inputs)) is not None:
        raise DeployError(f"{request.source} does not run in eager mode: {type_and_line(error)}") from error
    return inputs, assumptions


def _failure(model: Model, inputs: Inputs) -> Exception | None:
    """Return the error that the eager model raises for copies of these inputs, or None if it runs."""
    try:
        call_of(model.module)(copied(inputs))
    except Exception as error:
        return error
    return None


def _write_inputs(inputs: Inputs, path: Path, source: str) -> None:
    """Write inputs to a file that can be read without the model's classes."""
    try:
        torch.save({"values": inputs.values, "positional": inputs.positional}, path)
        torch.load(path)
    except (pickle.PicklingError, pickle.UnpicklingError, AttributeError) as error:
        kinds = "tensors, numbers, strings, lists, tuples and dicts"
        raise InvalidValue(f"{source}: its inputs may only contain {kinds}") from error


def _shown(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}={plain_name(value.dtype)}[{','.join(map(str, value.shape))}]"
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    ]


def _packages(module: nn.Module) -> tuple[str, ...]:
    tops = {type(part).__module__.partition(".")[0] for part in module.modules()}
    return tuple(sorted(tops - {"torch", "fakexport", "__main__", "builtins"}))


def drawn_values(inputs: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return the inputs with random numbers instead of zeros.

    Floating-point numbers are drawn from the normal distribution. Token ids (inputs whose names end in
    `input_ids`) are drawn from the vocabulary. Nonzero numbers are not changed, because they have a meaning.
    For example, they may be placeholder tokens. Masks and other integers are not changed either.
    """
    generator = torch.Generator().manual_seed(_SEED)
    drawn = {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and not name.endswith("mask"):
            if value.dtype.is_floating_point:
                numbers = torch.randn(value.shape, generator=generator).to(value.dtype)
                value = torch.where(value == 0, numbers, value)
            elif name.endswith("input_ids") and (tokens := _tokens(module)) > _FIRST_TOKEN:
                ids = torch.randint(_FIRST_TOKEN, tokens, value.shape, generator=generator)
                value = torch.where(value == 0, ids.to(value.dtype), value)
        drawn[name] = value
    return drawn


def _tokens(module: nn.Module) -> int:
    """Return the vocabulary size: the rows of the input embedding, or of the smallest embedding."""
    own = getattr(module, "get_input_embeddings", None)
    try:
        embedding = own() if callable(own) else None
    except NotImplementedError:  # transformers raises it for models without input embeddings
        embedding = None
    if isinstance(embedding, nn.Embedding):
        return embedding.num_embeddings
    found = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    return min(found, default=0)


_Place = tuple[str, int]


def in_other_sizes(
    inputs: Mapping[str, Any], dynamic: DynamicDims, works: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any] | None:
    """Change the sizes of dynamic dimensions one after the other. Keep each change that the model accepts.

    First, all dimensions of the same size change together. For example, `attention_mask` has the length of
    `input_ids`. If the model rejects that, only the dimensions that are declared dynamic change. With `auto`,
    each dimension is then also changed separately. Return None if the model accepts no change.
    """
    found = dict(inputs)
    for places in _together(inputs, dynamic):
        for subset in _subsets(places, dynamic):
            resized = next((made for made in _candidates(found, subset, dynamic) if works(made)), None)
            if resized is not None:
                found = resized
                if subset == places:
                    break  # Smaller subsets are only tried if changing all places failed.
    shapes = [value.shape for value in inputs.values() if isinstance(value, torch.Tensor)]
    others = [value.shape for value in found.values() if isinstance(value, torch.Tensor)]
    return found if shapes != others else None


def _together(inputs: Mapping[str, Any], dynamic: DynamicDims) -> list[tuple[_Place, ...]]:
    """Return the dimensions to change, grouped by size."""
    named = {(dim.input_name, dim.dim) for dim in dynamic.dims}
    sizes = {int(inputs[name].shape[dim]) for name, dim in named}
    groups: dict[int, list[_Place]] = {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if dynamic.is_auto or (name, dim) in named or (size in sizes and size > 1):
                    groups.setdefault(int(size), []).append((name, dim))
    return [tuple(places) for _, places in sorted(groups.items())]


def _subsets(places: tuple[_Place, ...], dynamic: DynamicDims) -> list[tuple[_Place, ...]]:
    named = {(dim.input_name, dim.dim) for dim in dynamic.dims}
    subsets = [places, tuple(place for place in places if place in named)]
    if dynamic.is_auto:
        subsets += [(place,) for place in places]
    return [subset for subset in dict.fromkeys(subsets) if subset]


def _candidates(
    inputs: Mapping[str, Any], places: tuple[_Place, ...], dynamic: DynamicDims
) -> Iterator[dict[str, Any]]:
    size = int(inputs[places[0][0]].shape[places[0][1]])
    ranges = [dim for dim in dynamic.dims if (dim.input_name, dim.dim) in places]
    lowest = max((dim.min for dim in ranges if dim.min is not None), default=2)
    highest = min((dim.max for dim in ranges if dim.max is not None), default=None)
    for other in dict.fromkeys((size + 1, size - 1, size + 3, size - 3, 2 * size, size // 2)):
        if other >= lowest and (highest is None or other <= highest) and other != size:
            yield {name: _resized(name, value, places, other) for name, value in inputs.items()}


def _resized(name: str, value: Any, places: tuple[_Place, ...], size: int) -> Any:
    """Truncate a tensor, or extend it by repeating its beginning, so that its values stay valid."""
    for place, dim in places:
        if place == name:
            old = value.shape[dim]
            value = value.index_select(dim, torch.arange(size) % old)
    return value
