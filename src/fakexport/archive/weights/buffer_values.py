"""Compute the values that a model's code assigns to tensors that checkpoints omit."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import is_fake_tensor
from fakexport.archive.weights.layout import is_transformers_model
from fakexport.emulation.fake import Held, build, held_tensors
from fakexport.emulation.history import Provenance
from fakexport.error import InvalidValue, type_and_line
from fakexport.exporting.capture import UnboundConstant, value_or_reason
from fakexport.models.sources import Source, SourceError, resolve

Reference = str | nn.Module | Callable[[], Any] | Source
Outcome = torch.Tensor | UnboundConstant


@dataclass(frozen=True)
class BuiltAgain:
    """The tensors of a model that was built a second time.

    `values` has a mapping for each dtype that the model was built in: the value of each tensor by name, or
    why it is unknown.
    """

    origin: str
    values: tuple[Mapping[str, Outcome], ...]

    def outcomes(self, name: str) -> list[Outcome]:
        return [values[name] for values in self.values if name in values]


def unsaved_tensors(model: nn.Module) -> dict[str, Held]:
    """Return tensors that checkpoints omit, by name: non-persistent buffers and tensor attributes.

    The result excludes tensors that are also a parameter or persistent buffer under a different name, and
    views of such tensors.
    """
    saved = {
        f"{path}.{name}" if path else name
        for path, owner in model.named_modules(remove_duplicate=False)
        for name in owner._buffers.keys() - owner._non_persistent_buffers_set
    }
    found = list(held_tensors(model))
    kept = {_memory(h.tensor) for h in found if h.is_parameter or h.path in saved or _is_weight(h.tensor)}
    return {
        held.path: held
        for held in found
        if not (held.is_parameter or held.path in saved or _is_weight(held.tensor))
        and (_memory(held.tensor) not in kept or _memory(held.tensor) is None)
    }


def _is_weight(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def _memory(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage, or None if it has no storage."""
    is_here = tensor.layout is torch.strided and not tensor.is_meta and not is_fake_tensor(tensor)
    if not is_here or tensor.numel() == 0:
        return None
    return tensor.untyped_storage().data_ptr() or None


def built_again(model: nn.Module, reference: Reference | None) -> BuiltAgain:
    """Construct a model again, without data, and return the values that its code computes.

    Without a reference, its class is called with its config, or with attributes named like the constructor's
    parameters.
    """
    if isinstance(reference, nn.Module):
        held = unsaved_tensors(reference)
        return BuiltAgain("the model that was passed", ({n: h.tensor for n, h in held.items()},))
    if reference is None:
        factory, origin = _own_factory(model)
    else:
        source = resolve(reference)
        factory, origin = source.factory, source.spec
    return BuiltAgain(origin, tuple(_values(factory, dtype, origin) for dtype in _dtypes(model)))


def _dtypes(model: nn.Module) -> list[torch.dtype]:
    """Return the dtypes that the model may have been built in: torch's default, and its weights' dtype."""
    floats = [p.dtype for p in model.parameters() if p.is_floating_point() and p.itemsize > 1]
    return list(dict.fromkeys([torch.get_default_dtype(), *floats[:1]]))


def _values(factory: Callable[[], Any], dtype: torch.dtype, origin: str) -> dict[str, Outcome]:
    try:
        # This seed does not count as set by the user, so draws count as random even after
        # `torch.manual_seed`.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_UNCHOSEN_SEED)
            module = build(factory, dtype=dtype, default_device="cpu").module
    except InvalidValue:
        raise
    except Exception as error:
        raise InvalidValue(f"{origin}: the model cannot be built again: {type_and_line(error)}") from error
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor) and name not in parameters
    }
    provenance = Provenance(parameters, buffers)
    return {name: value_or_reason(held.tensor, provenance) for name, held in unsaved_tensors(module).items()}


def _own_factory(model: Any) -> tuple[Callable[[], Any], str]:
    cls = type(model)
    if is_transformers_model(model):
        config = copy.deepcopy(model.config)
        if getattr(config, "quantization_config", None) is not None:
            del config.quantization_config
        return (
            lambda: cls._from_config(copy.deepcopy(config), dtype=torch.get_default_dtype()),
            f"{cls.__name__}, built from its config",
        )
    kept = _kept_arguments(model)
    if kept is None:
        raise InvalidValue(f"{cls.__name__} does not store the arguments of its constructor: {_PASS}")
    names = ", ".join(kept)
    return (
        lambda: _of_arguments(cls, kept),
        f"{cls.__name__}({names}), built again with the model's attributes as arguments"
        if names
        else f"{cls.__name__}()",
    )


def _of_arguments(cls: type[nn.Module], kept: Mapping[str, Any]) -> nn.Module:
    """Build a model from constructor arguments, and check that it stores the same values as attributes."""
    model = cls(**{name: copy.deepcopy(value) for name, value in kept.items()})
    for name, value in kept.items():
        if isinstance(value, int | float | str) and getattr(model, name, _MISSING) != value:
            raise InvalidValue(
                f"{cls.__name__} does not store its constructor argument {name} unchanged: {_PASS}"
            )
    return model


def _kept_arguments(model: nn.Module) -> dict[str, Any] | None:
    """Read constructor arguments from attributes that are named like the constructor's parameters.

    Return None if an argument cannot be read.
    """
    parameters = list(inspect.signature(type(model).__init__).parameters.values())[1:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in parameters):
        return None
    kept = {p.name: getattr(model, p.name, _MISSING) for p in parameters}
    is_usable = not any(
        value is _MISSING or isinstance(value, nn.Module | torch.Tensor) for value in kept.values()
    )
    return kept if is_usable else None


_PASS = "pass a factory: `verify_buffers(model, factory)` or `fakexport verify-buffers FACTORY REFERENCE`"
_MISSING = object()
_UNCHOSEN_SEED = 2**62 + 1


def loaded_model(spec: str) -> nn.Module:
    """Call a Python factory, such as `file.py:factory`, and return its model with real tensors."""
    source = resolve(spec)
    if source.kind != "python":
        raise SourceError(f"{spec} has no weights: write a factory that loads them, and pass file.py:FACTORY")
    try:
        made = source.factory()
    except SourceError:
        raise
    except Exception as error:
        raise InvalidValue(f"{spec} raised {type_and_line(error)}") from error
    module: nn.Module = made[0] if isinstance(made, tuple | list) else made
    return module
