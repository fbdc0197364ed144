"""A program that refuses to run, and to be compiled, until it has its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport.error import FakexportError
from fakexport.fake import is_fake
from fakexport.history import known_value
from fakexport.program.calling import CheckedProgram

_SHOWN = 5


class UnboundProgram(FakexportError, RuntimeError):
    """A program was asked to run, or for a module that runs, and has no weights.

    Args:
        names: Names of the weights and constants that are missing.
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
    """The class of a loaded program whose weights or constants are fakes.

    An `ExportedProgram` in everything but this: what a runtime, a compiler or `torch.export.save` asks for
    first is refused with the list of what is missing. Copies refuse as well. Once no fake is left in the
    state dict and among the constants, nothing is refused any more.

    A class, since `example_inputs` is a property, which an instance cannot replace, and since torch copies
    a program by its class. The class of a finished program is exchanged (`of`), because only then it is known
    whether it has all its weights, and a new object would not be the one that others hold.
    """

    @classmethod
    def of(cls, program: ExportedProgram) -> ExportedProgram:
        """Return the same program, which refuses from now on if it has to."""
        if unbound_names(program):
            program.__class__ = cls
        return program

    def module(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse; so do `run_decompositions`, `torch.onnx.export` and ExecuTorch, which begin with it."""
        self._refuse()
        return super().module(*args, **kwargs)

    @property
    def example_inputs(self) -> Any:
        """Refuses: AOTInductor, `torch.export.save` and torch's passes ask for them first."""
        self._refuse()
        return super().example_inputs

    @example_inputs.setter
    def example_inputs(self, value: Any) -> None:
        ExportedProgram.example_inputs.fset(self, value)  # type: ignore[attr-defined]

    def _refuse(self) -> None:
        if names := unbound_names(self):
            raise UnboundProgram(names)


def example_inputs_of(program: ExportedProgram) -> Any:
    """Return the example inputs of a program, `(args, kwargs)`; None where it has none or no weights."""
    is_unbound = isinstance(program, WeightlessProgram) and unbound_names(program)
    return None if is_unbound else program.example_inputs


def unbound_names(program: ExportedProgram) -> tuple[str, ...]:
    """Return the weights that are fakes and the constants without a value, in program order.

    Where these are there and constants are fakes whose value is known, for a device that is not here, the
    names of those: binding makes them real.
    """
    fake = [name for name, constant in program.constants.items() if _is_fake(constant)]
    weights = (name for name, weight in program.state_dict.items() if is_fake(weight))
    lost = (name for name in fake if not has_value(program.constants[name]))
    return (*weights, *lost) or tuple(fake)


def has_value(constant: torch.Tensor) -> bool:
    """Return whether a constant is real, or a fake whose value is known."""
    return known_value(constant) is not None if is_fake(constant) else not constant.is_meta


def _is_fake(constant: Any) -> bool:
    return isinstance(constant, torch.Tensor) and is_fake(constant)
