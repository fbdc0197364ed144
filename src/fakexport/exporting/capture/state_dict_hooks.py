"""Determine which keys the `load_state_dict` hooks of a model rename, by running the hooks without data.

`bind` reads a checkpoint without building the model. The facts of a program therefore record the renamed
keys, and the hooks that compute values, which `bind` cannot run.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fakexport._torch.tracing.state_dict_hooks import load_steps, nothing_taken, other_loading
from fakexport.exporting.program import ProgramFacts
from fakexport.files.documents import Recipe

from .left_fakes import ModelState

log = logging.getLogger(__name__)

_MOST_ROUNDS = 8


@dataclass(frozen=True)
class LoadHooks:
    """The effects of `load_state_dict` other than copying each entry to the weight of the same name.

    Args:
        recipes: For each renamed weight, the checkpoint key from which the weight is loaded.
        others: Hooks and methods that do more than rename, such as ``"`scale` of layers.0"``. `bind` skips
            them.
    """

    recipes: tuple[Recipe, ...] = ()
    others: tuple[str, ...] = ()


def load_hooks_of(root: nn.Module) -> LoadHooks:
    """Run the `load_state_dict` hooks of a model, if it has any, and return their effects.

    The hooks run on a state dict with the keys of the model's `state_dict()`. If they look up other keys,
    such as `weight_g` of an older weight norm, they run again on state dicts that contain those keys.
    """
    parts = dict(root.named_modules())
    hooks = [(path, *step) for path, part in parts.items() for step in load_steps(part)]
    others = [_text(name, path) for path, part in parts.items() for name in other_loading(part)]
    if not hooks:
        return LoadHooks(others=tuple(others))
    try:
        saved = root.state_dict(keep_vars=True)
    except Exception as error:
        log.debug("state_dict() raised: %s", error)
        return LoadHooks(others=(*others, *(_text(name, path) for path, name, _ in hooks)))
    entries = {name: value for name, value in saved.items() if isinstance(value, torch.Tensor)}
    with _kept(root):
        own = _Run(entries, list(entries))
        own.load(root)
        names, asked = dict(own.names), dict.fromkeys(own.missed)
        for _ in range(_MOST_ROUNDS):
            before = len(asked)
            for given in ([*entries, *asked], list(asked)):
                run = _Run(entries, given)
                run.load(root)
                names |= run.names
                asked |= dict.fromkeys(run.missed)
            if len(asked) == before:
                break
    held = {name for name, _ in (*root.named_parameters(), *root.named_buffers())}
    if held & names.keys():  # An entry belongs to the weight of the same name, if there is one.
        return LoadHooks(others=(*others, *dict.fromkeys(_text(name, path) for path, name, _ in hooks)))
    recipes = (Recipe((entry,), (), ((weight, 0),)) for entry, weight in sorted(names.items()))
    return LoadHooks(tuple(recipes), tuple(dict.fromkeys((*others, *own.computing))))


def _text(name: str, path: str) -> str:
    return f"`{name}` of {path or 'the model'}"


class _Entries(dict[str, torch.Tensor]):
    """A state dict that records which missing keys hooks look up."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], missed: list[str]) -> None:
        super().__init__(tensors)
        self._missed = missed

    def _ask(self, name: object) -> None:
        if isinstance(name, str) and not super().__contains__(name):
            self._missed.append(name)

    def __contains__(self, name: object) -> bool:
        self._ask(name)
        return super().__contains__(name)

    def __getitem__(self, name: str) -> torch.Tensor:
        self._ask(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._ask(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self._ask(name)
        return super().pop(name, *default)


class _Run:
    """One run of the `load_state_dict` hooks, on tensors without data.

    Args:
        weights: The weights by name. Entries of the state dict with these names have the same shapes.
        given: Keys of the state dict.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], given: list[str]) -> None:
        self._made = {
            name: torch.empty(weights[name].shape, dtype=weights[name].dtype, device="meta")
            if name in weights
            else torch.empty((), device="meta")
            for name in given
        }
        self._entry = {id(tensor): name for name, tensor in self._made.items()}
        self.missed: list[str] = []
        self.names: dict[str, str] = {}
        self.computing: dict[str, None] = {}

    def load(self, module: nn.Module, tensors: _Entries | None = None, path: str = "") -> None:
        """Run the hooks of a module and then of its children, as torch does."""
        tensors = _Entries(self._made, self.missed) if tensors is None else tensors
        prefix = f"{path}." if path else ""
        loaded: dict[str, torch.Tensor] | None = tensors
        for name, step in load_steps(module):
            before, versions = dict(tensors), self._versions()
            try:
                loaded = step(tensors, prefix)
            except Exception as error:
                log.debug("`%s` of %s raised: %s", name, path or "the model", error)
                loaded = None
            new = [tensor for key, tensor in (loaded or {}).items() if before.get(key) is not tensor]
            if loaded is None or versions != self._versions() or not all(map(self._is_entry, new)):
                self.computing[_text(name, path)] = None
        for name in (*module._parameters, *module._buffers):
            tensor = dict.get(tensors if loaded is None else loaded, prefix + name)
            if tensor is not None and self._is_entry(tensor) and self._entry[id(tensor)] != prefix + name:
                self.names[self._entry[id(tensor)]] = prefix + name
        for name, child in module.named_children():
            inner = {key: value for key, value in tensors.items() if key.startswith(f"{prefix}{name}.")}
            self.load(child, _Entries(inner, self.missed), prefix + name)

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self._made.values()]

    def _is_entry(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._entry and not tensor._version


@contextmanager
def _kept(root: nn.Module) -> Iterator[None]:
    """Enter a context that restores the model's attributes on exit, in case a hook changes them."""
    state = ModelState(root)
    parts = [(part, dict(part._parameters), dict(part._buffers)) for part in root.modules()]
    try:
        with torch.no_grad(), nothing_taken():
            yield
    finally:
        for part, parameters, buffers in parts:
            part._parameters.clear()
            part._parameters.update(parameters)
            part._buffers.clear()
            part._buffers.update(buffers)
        state.put_back()


def with_load_hooks(facts: ProgramFacts, root: nn.Module) -> ProgramFacts:
    """Add the effects of the model's hooks to the facts of its program.

    The facts are returned unchanged for models from transformers, because transformers does not use
    `load_state_dict`, and for ranks and adapters, because they have their own weight names.
    """
    transformers = sys.modules.get("transformers")
    is_loaded_otherwise = transformers is not None and isinstance(root, transformers.PreTrainedModel)
    if is_loaded_otherwise or facts.parallel is not None or facts.adapter is not None:
        return facts
    hooks = load_hooks_of(root)
    recipes = hooks.recipes if facts.recipes is None and hooks.recipes else facts.recipes
    return replace(facts, recipes=recipes, load_hooks=hooks.others)
