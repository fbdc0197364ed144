"""The reference for all formats: inputs, possibly in other sizes too, and eager's outputs for them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from json import dumps, loads  # A model may replace them in `json`.
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fakexport.capture import DynamicDims, as_torch_shapes, parse_dynamic
from fakexport.deploy import DeployError
from fakexport.error import InvalidValue, type_and_line
from fakexport.program import plain_name
from fakexport.sources import SourceError, inputs_from_specs, parse_input_spec

from .model import Inputs, Model, Request, call_of, copied

_SEED = 1

_FIRST_TOKEN = 3  # After those that mean padding, start and end in most vocabularies.


@dataclass(frozen=True)
class Facts:
    """Inputs, assumptions, and the Python packages of the model's classes, once the reference is written."""

    inputs: tuple[str, ...]
    other_inputs: tuple[str, ...]
    assumptions: tuple[str, ...]
    packages: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Return the facts that `write_reference` left in the folder."""
        found = loads((folder / "facts.json").read_text())
        return cls(**{name: tuple(value) for name, value in found.items()})


def write_reference(request: Request, folder: Path) -> None:
    """Run the eager model in its examples' sizes and in others; write inputs and outputs to the folder.

    Raises:
        ValueError, TypeError: the source, the inputs or the dimensions do not fit, in one line.
    """
    model = Model.of(request)
    dynamic = parse_dynamic(request.dynamic)
    inputs, assumptions = _inputs(request, model)
    as_torch_shapes(dynamic, inputs.values)  # Says what is wrong with the dimensions.

    def works(values: Mapping[str, Any]) -> bool:
        try:
            call_of(model.module)(copied(replace(inputs, values=dict(values))))
        except Exception:  # whatever the model raises for a size that it does not take
            return False
        return True

    sets = [inputs]
    if request.dynamic:
        resized = in_other_sizes(inputs.values, dynamic, works)
        if resized is not None:
            sets.append(replace(inputs, values=resized))
        else:
            assumptions = (
                *assumptions,
                ("no other size was tried: the eager model accepts none close to the example's"),
            )
    # Anew, since calls may have changed its state.
    call = call_of(Model.of(request).module)
    for number, each in enumerate(sets, start=1):
        _write_inputs(each, folder / f"inputs-{number}.pt", request.source)
        torch.save(call(copied(each)), folder / f"expected-{number}.pt")
    shown = [tuple(_shown(each.values)) for each in sets]
    facts = Facts(shown[0], shown[1] if len(shown) > 1 else (), assumptions, _packages(model.module))
    (folder / "facts.json").write_text(dumps(asdict(facts)))


def first_inputs(folder: Path) -> Inputs:
    """Return the inputs."""
    return Inputs(**torch.load(folder / "inputs-1.pt"))


def other_inputs(folder: Path) -> Inputs | None:
    """Return the inputs in other sizes, if there are any."""
    path = folder / "inputs-2.pt"
    return Inputs(**torch.load(path)) if path.exists() else None


def expected_outputs(folder: Path, number: int) -> list[torch.Tensor]:
    """Return eager's outputs for the first (1) or the other inputs (2)."""
    tensors: list[torch.Tensor] = torch.load(folder / f"expected-{number}.pt")
    return tensors


def _inputs(request: Request, model: Model) -> tuple[Inputs, tuple[str, ...]]:
    """Return the inputs that eager accepts, and assumptions about them."""
    assumptions = model.source.assumptions
    if model.was_training:
        assumptions = (*assumptions, "the model came in training mode and was put into eval mode")
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
        if (drawn := _drawn(inputs, model)) is not None:
            return drawn, assumptions
        assumptions = (*assumptions, "the inputs are zeros: the model does not accept random numbers")
    try:
        call_of(model.module)(copied(inputs))
    except Exception as error:
        raise DeployError(f"{request.source} does not run here: {type_and_line(error)}") from error
    return inputs, assumptions


def _drawn(inputs: Inputs, model: Model) -> Inputs | None:
    drawn = replace(inputs, values=drawn_values(inputs.values, model.module, seed=_SEED))
    try:
        call_of(model.module)(copied(drawn))
    except Exception:  # ids that mean something else to this model, for example
        return None
    return drawn


def _write_inputs(inputs: Inputs, path: Path, source: str) -> None:
    """Write inputs in a form that can be read without the model's classes."""
    try:
        torch.save({"values": inputs.values, "positional": inputs.positional}, path)
        torch.load(path)
    except (pickle.PicklingError, pickle.UnpicklingError, AttributeError) as error:
        kinds = "tensors, numbers, texts, lists, tuples and dicts"
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


def drawn_values(inputs: Mapping[str, Any], module: nn.Module, *, seed: int) -> dict[str, Any]:
    """Return the inputs with random numbers instead of zeros.

    Floating-point numbers are drawn from the normal distribution, token ids (names that end in `input_ids`)
    from the vocabulary. Nonzero numbers mean something (placeholder tokens, masks) and stay, as do masks and
    other whole numbers.
    """
    generator = torch.Generator().manual_seed(seed)
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
    """Return the vocabulary size: of the model's input embedding, else the smallest embedding."""
    own = getattr(module, "get_input_embeddings", None)
    try:
        embedding = own() if callable(own) else None
    except NotImplementedError:  # transformers declares it for models that have none
        embedding = None
    if isinstance(embedding, nn.Embedding):
        return embedding.num_embeddings
    found = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    return min(found, default=0)


_Place = tuple[str, int]


def in_other_sizes(
    inputs: Mapping[str, Any], dynamic: DynamicDims, works: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any] | None:
    """Change as many of the sizes as the model lets vary, one after the other.

    Dimensions of one size change together where the model takes that: the length of `attention_mask` is that
    of `input_ids`. Else those that are declared change alone, and with `auto` each for itself.

    Returns:
        Inputs of other sizes; None if the model accepts no others.
    """
    found = dict(inputs)
    for places in _together(inputs, dynamic):
        for subset in _subsets(places, dynamic):
            resized = next((made for made in _candidates(found, subset, dynamic) if works(made)), None)
            if resized is not None:
                found = resized
                if subset == places:
                    break  # Else the other subsets are of other dimensions.
    shapes = [value.shape for value in inputs.values() if isinstance(value, torch.Tensor)]
    others = [value.shape for value in found.values() if isinstance(value, torch.Tensor)]
    return found if shapes != others else None


def _together(inputs: Mapping[str, Any], dynamic: DynamicDims) -> list[tuple[_Place, ...]]:
    """Return the dimensions that may vary, those of one size in one group."""
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
    """Return the tensor cut off, or extended by repeating its beginning, so that values stay valid."""
    for place, dim in places:
        if place == name:
            old = value.shape[dim]
            value = value.index_select(dim, torch.arange(size) % old)
    return value
