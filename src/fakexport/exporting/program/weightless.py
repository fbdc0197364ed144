"""Programs that cannot run or be compiled until their weights are bound."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import known_value
from fakexport.error import FakexportError
from fakexport.exporting.program.calling import CheckedProgram

_SHOWN = 5


class WeightsNotBoundError(FakexportError, RuntimeError):
    """A program without weights was run, compiled or converted to a module.

    Args:
        names: Names of the missing weights and constants.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        shown = ", ".join(names[:_SHOWN]) + (
            f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        )
        super().__init__(
            f"this program has no weights; bind them first: `fakexport.bind(program, checkpoint)`; "
            f"{len(names)} missing: {shown}"
        )
        self.names = names


class WeightlessProgram(CheckedProgram):
    """The class of a loaded program whose weights or constants are fake.

    While weights are missing, `module()` and `example_inputs` raise an error that lists them. Runtimes,
    compilers and `torch.export.save` all access one of the two first. Otherwise, the program behaves like any
    `ExportedProgram`, and copies of it have this class too.

    A subclass is necessary because `example_inputs` is a property, which an instance cannot override, and
    because torch copies a program by its class. `of` replaces the class of a finished program, because only
    then is it known whether weights are missing. References to the program stay valid.
    """

    @classmethod
    def of(cls, program: ExportedProgram) -> ExportedProgram:
        """Give a program this class if weights are missing. Return the same object."""
        if unbound_names(program):
            program.__class__ = cls
        return program

    def module(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error if weights are missing. Decompositions, ONNX and ExecuTorch call this first."""
        self._refuse()
        return super().module(*args, **kwargs)

    @property
    def example_inputs(self) -> Any:
        """Raise an error if weights are missing: AOTInductor and `torch.export.save` read this first."""
        self._refuse()
        return super().example_inputs

    @example_inputs.setter
    def example_inputs(self, value: Any) -> None:
        ExportedProgram.example_inputs.fset(self, value)  # type: ignore[attr-defined]

    def _refuse(self) -> None:
        if names := unbound_names(self):
            raise WeightsNotBoundError(names)


def example_inputs_of(program: ExportedProgram) -> Any:
    """Return a program's example inputs as `(args, kwargs)`, or None if they or the weights are missing."""
    is_unbound = isinstance(program, WeightlessProgram) and unbound_names(program)
    return None if is_unbound else program.example_inputs


def unbound_names(program: ExportedProgram) -> tuple[str, ...]:
    """Return the names of fake weights and of constants without a value, in program order.

    If there are none, return the names of fake constants with known values. These are on a device that does
    not exist on this machine, and binding makes them real.
    """
    fake = [name for name, constant in program.constants.items() if is_fake(constant)]
    weights = (name for name, weight in program.state_dict.items() if is_fake(weight))
    lost = (name for name in fake if not has_value(program.constants[name]))
    return (*weights, *lost) or tuple(fake)


def has_value(constant: torch.Tensor) -> bool:
    """Return whether a constant is real, or a fake tensor with a known value."""
    return known_value(constant) is not None if is_fake(constant) else not constant.is_meta
