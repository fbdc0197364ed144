"""Ask coremltools whether it takes a program that has no weights."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operators.real_execution import real_execution
from fakexport.error import type_and_line
from fakexport.exporting.program import operator_name, plain_name, unbound_names
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

from ..aoti.stand_ins import with_stand_ins, with_tensors
from ..artifact import CompileFailure
from ..unsupported import arguments_text, finding_at, findings_of_objects, operator_finding
from .covered import Covered, has_large_weights, on_the_cpu

_CODE = "FE805"
_FIX = "use operators that coremltools converts, or run this part of the model outside of Core ML"


def cover_coreml(program: ExportedProgram) -> Covered:
    """Convert a program with coremltools' defaults. Nothing is run: Core ML exists only on Apple devices.

    Raises:
        CompileFailure: coremltools does not convert the program (FE805). All operators that it does not know
            are reported at once.
    """
    moved, rewrites = on_the_cpu(program, "coremltools")
    if held := tuple(findings_of_objects(moved, _CODE, "Core ML")):
        raise CompileFailure(held)
    is_small = not has_large_weights(moved)
    if unbound_names(moved):
        # The passes of coremltools remove additions of zeros, which real weights would not be.
        moved = with_tensors(moved, _random) if is_small else with_stand_ins(moved)
    plain = _decomposed(moved)
    if found := tuple(_unknown(plain)):
        raise CompileFailure(found)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        _convert(plain, "mlprogram" if is_small else "milinternal")
    notes = ["coremltools converted it for its default deployment target; Core ML did not run it"]
    if not is_small:
        notes.append("the weights are large, so the last passes, which write the model, were not run")
    return Covered(rewrites, notes=tuple(notes))


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """Return the program in the form that coremltools' documentation asks for."""
    with torch.no_grad():
        return cast(ExportedProgram, program.run_decompositions({}))


def _random(tensor: torch.Tensor) -> torch.Tensor:
    with real_execution():
        made = torch.zeros(tensor.shape, dtype=tensor.dtype)
        return made.normal_() if made.is_floating_point() else made


def _unknown(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Yield a finding for each operator that has no function in coremltools' registry."""
    from coremltools.converters.mil.frontend.torch import is_torch_fx_node_supported

    nodes: dict[str, list[Node]] = {}
    for node in program.graph.nodes:
        with suppress(AssertionError):  # Raised for `operator.and_`, which the conversion decides.
            if node.op == "call_function" and not is_torch_fx_node_supported(node):
                nodes.setdefault(operator_name(node), []).append(node)
    for name, found in nodes.items():
        yield operator_finding(
            _CODE,
            found,
            name,
            "is not an operator that coremltools converts",
            (f"{name} at node {found[0].name} has no function in coremltools' registry",),
            _FIX,
            f"register a function for {name} with coremltools' `register_torch_op`",
        )


def _convert(program: ExportedProgram, form: str) -> None:
    import coremltools

    try:
        more = {} if form == "milinternal" else {"skip_model_load": True}
        coremltools.convert(program, convert_to=form, **more)
    except Exception as error:  # Its functions raise whatever their checks raise.
        raise CompileFailure((_failure(program, error),)) from error


def _failure(program: ExportedProgram, error: Exception) -> Diagnostic:
    said = f"coremltools: {type_and_line(error)}"
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], torch.dtype):
        return _dtype(program, error.args[0])
    name = _converted_node(error)
    node = next((each for each in program.graph.nodes if each.name == name), None)
    if node is None:
        return rule(_CODE).diagnostic(notes=(said,))
    operator = operator_name(node)
    return finding_at(
        _CODE,
        node,
        f"coremltools does not convert {operator} with these arguments",
        notes=(said, f"the arguments of {operator}: {arguments_text(node)}"),
        fix=Fix(_FIX),
    )


def _dtype(program: ExportedProgram, dtype: torch.dtype) -> Diagnostic:
    """Return the finding for a dtype that coremltools does not have, at the first call that returns it."""
    values = ((node, node.meta.get("val")) for node in program.graph.nodes)
    held = [node for node, value in values if isinstance(value, torch.Tensor) and value.dtype == dtype]
    calls = [node for node in held if node.op == "call_function"]
    name = plain_name(dtype)
    return finding_at(
        _CODE,
        (calls or held)[0],
        f"this tensor is {name}",
        notes=(f"coremltools has no dtype {name}, which {len(held)} tensors of the program have",),
        fix=Fix("export with `--dtype float32`: coremltools converts it to float16 by default"),
        count=len(held),
    )


def _converted_node(error: Exception) -> str | None:
    """Return the name of the node that coremltools was converting, read from the error's traceback."""
    found: str | None = None
    link = error.__traceback__
    while link is not None:
        if link.tb_frame.f_code.co_name == "convert_single_node":
            node: Any = link.tb_frame.f_locals.get("node")
            found = getattr(node, "name", None)
        link = link.tb_next
    return found
