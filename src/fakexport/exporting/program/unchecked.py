"""Disable named checks of a program's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch.export import ExportedProgram

from fakexport._torch.tracing.program_assembly import guards_code, set_guards
from fakexport.error import InvalidValue

from .derived_program import derived_program
from .program_facts import facts_of
from .stand_in_inputs import give_stand_in_inputs
from .weightless import WeightlessProgram, example_inputs_of

_SIGNS: Mapping[str, tuple[str, ...]] = {
    "dtype": (".dtype ==",),
    "rank": (".ndim ==",),
    "layout": (".layout ==",),
    "device": (".device.type ==",),
    "type": ("type(L", "str(L"),
    "identity": ("len({id(",),
    "strides": (".stride()[", ".is_contiguous("),
    "storage": (".storage_offset()", ".untyped_storage()"),
    "gradients": (".requires_grad ==", ".is_leaf =="),
    "views": ("._is_view()",),
    "inference": (".is_inference()", "is_inference_mode_enabled()"),
    "conjugation": (".is_conj()", ".is_neg()"),
}


def without_checks(program: ExportedProgram, *names: str) -> ExportedProgram:
    """Return a program that does not check some properties of its inputs. Its archive records this.

    If the inputs of a call differ from the example inputs in such a property, the results may be wrong.

    Args:
        program: The program. It is not changed.
        names: The disabled checks: `dtype`, `rank`, `layout`, `device`, `type` of constants, `identity`,
            `strides`, `storage`, `gradients`, `views`, `inference`, `conjugation`. `run` always checks dtypes
            and ranks.
    Raises:
        ValueError: a name is unknown.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> bound = bind(program, {"weight": torch.ones(2, 4), "bias": torch.zeros(2)})
        >>> without_checks(bound, "dtype").module().__class__.__name__
        'GraphModule'
    """
    if unknown := [name for name in names if name not in _SIGNS]:
        raise InvalidValue(f"unknown check {unknown[0]!r}; expected {', '.join(_SIGNS)}")
    signs = tuple(sign for name in names for sign in _SIGNS[name])
    facts = facts_of(program)
    skipped = tuple(f"inputs are not checked for {name}" for name in names)
    made = derived_program(
        program,
        state_dict=program.state_dict,
        constants=program.constants,
        example_inputs=example_inputs_of(program),
        facts=replace(facts, skipped_checks=tuple(dict.fromkeys((*facts.skipped_checks, *skipped)))),
    )
    set_guards(made, [guard for guard in guards_code(made) if not any(sign in guard for sign in signs)])
    made = WeightlessProgram.of(made)
    give_stand_in_inputs(made)
    return made
