"""Detect a program that is not the whole model: an input or the quantization is missing."""

from __future__ import annotations

from torch import nn
from torch.export import ExportedProgram

from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import UnusedParameters, unused_parameters
from fakexport.rules import rule
from fakexport.sources import ExampleInputs, InputSpec, Source

_MOST_MODULES = 4


def diagnose_omitted_inputs(
    program: ExportedProgram | None, module: nn.Module, inputs: ExampleInputs
) -> tuple[Diagnostic, ...]:
    """Return whether the program lacks a part of the model, as an input of it was not derived.

    An input without which the program still uses every parameter is not missed.

    Args:
        program: Exported from the module; None where that failed, which may come of the omitted input.
        module: Module of fake tensors.
        inputs: What it was exported with.
    Reports:
        FE104, at most once.
    """
    if not inputs.omitted:
        return ()
    unused = None if program is None else unused_parameters(program, module)
    if unused is not None and not unused.modules:
        return ()
    notes = [f"{name} was not provided: {reason}" for name, reason in inputs.omitted.items()]
    names = ", ".join(inputs.omitted)
    lacks = f"the model may fail because it lacks {names}" if unused is None else _sentence(unused)
    fix = "write a factory that returns the model and all of its inputs"
    if unused is not None:
        fix += f"; to check the model without {names}, pass {_options(inputs)}"
    found = rule("FE104").diagnostic(
        notes=(*notes, lacks), fix=Fix(fix), module_path=unused.modules[0] if unused else None
    )
    return (found,)


def diagnose_quantization(source: Source) -> tuple[Diagnostic, ...]:
    """Report that the model is built unquantized although its config says how it is quantized.

    Reports:
        FE105, at most once.
    """
    if source.quantization is None:
        return ()
    note = f"the published weights are quantized ({source.quantization}); those here have the model's dtype"
    fix = (
        "write a factory that builds the quantized model; to check the unquantized one, remove "
        "quantization_config from a copy of the config"
    )
    return (rule("FE105").diagnostic(notes=(note,), fix=Fix(fix)),)


def unused_note(program: ExportedProgram, module: nn.Module) -> tuple[str, ...]:
    """Return a sentence about the parameters that the program does not use, where there are any."""
    unused = unused_parameters(program, module)
    return (_sentence(unused),) if unused.modules else ()


def _sentence(unused: UnusedParameters) -> str:
    named = ", ".join(unused.modules[:_MOST_MODULES])
    more = len(unused.modules) - _MOST_MODULES
    return (
        f"the program does not use {unused.elements:,} of {unused.total_elements:,} parameters: {named}"
        + (f" and {more:,} more modules" if more > 0 else "")
    )


def _options(inputs: ExampleInputs) -> str:
    """Return the inputs that there are, as options of the command line."""
    specs = (InputSpec.of(name, tensor) for name, tensor in inputs.kwargs.items())
    return " ".join(f"--input '{spec}'" for spec in specs)
