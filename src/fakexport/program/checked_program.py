"""A program whose `module()` checks of a call what torch does not: the order of keys."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram

from .calling import Calling

FACTS = "_fakexport_facts"
"""The attribute of a program that holds its `ProgramFacts`."""


class CheckedProgram(ExportedProgram):
    """The class of a program with dicts of several keys, or several `**kwargs`, among its inputs.

    torch takes keys in any order, and `forward` may iterate over them. An `ExportedProgram` in everything
    else; the class of a finished program is exchanged, as for `WeightlessProgram`.
    """

    def module(self, check_guards: bool = True) -> Any:
        """Return the module, which also refuses keys in another order than the example's."""
        made = super().module(check_guards=check_guards)
        facts = vars(self).get(FACTS)
        calling = Calling(() if facts is None else facts.parameters, self.call_spec.in_spec)
        if check_guards and not calling.is_plain:
            made.register_forward_pre_hook(
                lambda _, args, kwargs: calling.canonical(args, kwargs), with_kwargs=True, prepend=True
            )
        return made
