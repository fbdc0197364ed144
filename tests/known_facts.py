"""Programs of which other things are known than where they were captured."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from torch.export import ExportedProgram

from fakexport.exporting.program.program_facts import facts_of, keep_facts

__all__ = ["with_facts"]


def with_facts(program: ExportedProgram, **facts: Any) -> ExportedProgram:
    """A copy of a program with these facts; the tensors are the same."""
    copied = copy.copy(program)
    if "topology" in facts:
        facts = {"profiles": None, **facts}
    keep_facts(copied, replace(facts_of(program), **facts))
    return copied
