"""Detect programs that cover only part of the model, because an input or the quantization is missing."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.exporting.program import UnusedParameters, unused_parameters
from fakexport.models.sources import ExampleInputs, InputSpec, Source
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

_MOST_MODULES = 4
_LEAST_SHARE = 0.01


def diagnose_left_out(
    source: Source, program: ExportedProgram | None, module: nn.Module, inputs: ExampleInputs
) -> tuple[Diagnostic, ...]:
    """Report parts of the requested model that are missing from the program: inputs, or the quantization.

    Reports:
        FE104 and FE105, at most one of each.
    """
    return (*_quantization(source, module), *_omitted_inputs(source, program, module, inputs))


def _omitted_inputs(
    source: Source, program: ExportedProgram | None, module: nn.Module, inputs: ExampleInputs
) -> tuple[Diagnostic, ...]:
    """Return FE104 if part of the model is missing from the program because an input could not be derived.

    Omitted inputs are ignored if the program uses every parameter. If the export failed, an omitted input may
    be the reason, so it is reported.
    """
    if not inputs.omitted:
        return ()
    unused = None if program is None else unused_parameters(program, module)
    if unused is not None and not unused.modules:
        return ()
    notes = [f"{name} was not provided: {reason}" for name, reason in inputs.omitted.items()]
    names = ", ".join(inputs.omitted)
    lacks = (
        f"the export may have failed because these inputs are missing: {names}"
        if unused is None
        else _sentence(unused)
    )
    is_of_config = any("eager mode fails" in reason for reason in inputs.omitted.values())
    if is_of_config:
        fix = source.published or "correct the config"
    else:
        of_default = "" if source.published is None else f"{source.published}, or "
        fix = f"{of_default}write a factory that returns the model and all its inputs"
    if unused is not None and all(isinstance(value, torch.Tensor) for value in inputs.kwargs.values()):
        fix += f"; to check the model without {names}, pass {_options(inputs)}"
    found = rule("FE104").diagnostic(
        notes=(*notes, lacks), fix=Fix(fix), module_path=unused.modules[0] if unused else None
    )
    return (found,)


def _quantization(source: Source, module: nn.Module) -> tuple[Diagnostic, ...]:
    """Return FE105 if the config specifies a quantization that was not applied to the model."""
    reason = None if source.quantization is None else source.quantization.left_out(module)
    if source.quantization is None or reason is None:
        return ()
    method = source.quantization.method
    notes = (
        f"the published weights are quantized ({method}), but the model was built without quantization",
        f"fakexport cannot build the quantized model on this machine: {reason}",
    )
    fix = (
        "install the package or use the device that is named above, or write a factory that "
        "builds the quantized model; to check the unquantized model, pass a folder with only a "
        "copy of config.json without quantization_config"
    )
    return (rule("FE105").diagnostic(notes=notes, fix=Fix(fix)),)


def unused_note(
    source: Source, program: ExportedProgram, module: nn.Module, inputs: ExampleInputs, *, is_chosen: bool
) -> tuple[str, ...]:
    """Return a sentence about the parameters of a library's model that the program does not use, if any.

    Args:
        source: The model. Unused parameters of a factory's model are assumed to be intended.
        program: The program exported from the module.
        module: The module that the source's factory returned.
        inputs: The inputs of the export. FE104 reports omitted inputs.
        is_chosen: Whether the caller chose the inputs. For derived inputs, unused parameters are reported
            only if they are a large share of a whole model: many models have an embedding that only training
            uses.
    """
    is_part = source.component is not None or inputs.is_partial
    if source.kind == "python" or (not is_chosen and (is_part or inputs.omitted)):
        return ()
    unused = unused_parameters(program, module)
    least = 0.0 if is_chosen else _LEAST_SHARE * unused.total_elements
    return (_sentence(unused),) if unused.modules and unused.elements >= least else ()


def _sentence(unused: UnusedParameters) -> str:
    named = ", ".join(unused.modules[:_MOST_MODULES])
    more = len(unused.modules) - _MOST_MODULES
    return (
        f"the program does not use {unused.elements:,} of {unused.total_elements:,} parameters: {named}"
        + (f" and {more:,} more modules" if more > 0 else "")
    )


def _options(inputs: ExampleInputs) -> str:
    """Return the inputs as `--input` options."""
    specs = (InputSpec.of(name, tensor) for name, tensor in inputs.kwargs.items())
    return " ".join(f"--input '{spec}'" for spec in specs)
