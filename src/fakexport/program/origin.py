"""Where a program comes from, and what is known of it."""

from __future__ import annotations

import weakref

from torch import nn
from torch.export import ExportedProgram

from fakexport.documents.recipe import Recipe

from .program_facts import ProgramFacts

__all__ = [
    "facts_of",
    "inherit_origin",
    "origin_of",
    "remember_facts",
    "remember_origin",
    "remember_prefix",
    "remember_recipes",
    "remembered_prefix",
    "remembered_recipes",
]

_MODULES: weakref.WeakKeyDictionary[ExportedProgram, nn.Module] = weakref.WeakKeyDictionary()
_PREFIXES: weakref.WeakKeyDictionary[ExportedProgram, tuple[str, str]] = weakref.WeakKeyDictionary()
_FACTS: weakref.WeakKeyDictionary[ExportedProgram, ProgramFacts] = weakref.WeakKeyDictionary()
_RECIPES: weakref.WeakKeyDictionary[ExportedProgram, tuple[Recipe, ...]] = weakref.WeakKeyDictionary()


def remember_origin(program: ExportedProgram, module: nn.Module) -> None:
    """Notes that `program` was captured from `module`, as long as both live; nothing of either changes.

    A library's module knows more than its program: how its checkpoints are laid out, for one.
    """
    _MODULES[program] = module


def origin_of(program: ExportedProgram) -> nn.Module | None:
    """The module that the program was captured from; None after loading."""
    return _MODULES.get(program)


def remember_recipes(program: ExportedProgram, recipes: tuple[Recipe, ...]) -> None:
    """Notes the recipes that came with a program in its archive, as long as it lives."""
    _RECIPES[program] = recipes


def remembered_recipes(program: ExportedProgram) -> tuple[Recipe, ...] | None:
    """The recipes that came with a program; None if it is of no archive."""
    return _RECIPES.get(program)


def remember_prefix(program: ExportedProgram, prefix: tuple[str, str]) -> None:
    """Notes how the names of a program's weights begin in the checkpoint, and in the program, as it lives."""
    _PREFIXES[program] = prefix


def remembered_prefix(program: ExportedProgram) -> tuple[str, str] | None:
    """What came with a program in its archive; None where its names are those of the checkpoint."""
    return _PREFIXES.get(program)


def remember_facts(program: ExportedProgram, facts: ProgramFacts) -> None:
    """Notes what is known of a program besides its graph, as long as it lives."""
    _FACTS[program] = facts


def facts_of(program: ExportedProgram) -> ProgramFacts:
    """What was noted; nothing of a program that torch made."""
    return _FACTS.get(program) or ProgramFacts()


def inherit_origin(
    made: ExportedProgram, program: ExportedProgram, facts: ProgramFacts | None = None
) -> None:
    """Notes of `made`, which takes the same weights, what is known of `program`.

    Args:
        made, program: The new program, and the one that it was made from.
        facts: Those of the new one, where they are others.
    """
    if facts is not None or program in _FACTS:
        _FACTS[made] = facts or _FACTS[program]
    if (module := _MODULES.get(program)) is not None:
        _MODULES[made] = module
    if (recipes := _RECIPES.get(program)) is not None:
        _RECIPES[made] = recipes
    if (prefix := _PREFIXES.get(program)) is not None:
        _PREFIXES[made] = prefix
