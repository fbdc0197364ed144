"""Ask coremltools whether it takes a program that has no weights."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport.exporting.program import operator_name
from fakexport.rules.diagnostics import Diagnostic

from ..artifact import CompileFailure
from ..unsupported import findings_of_objects
from .converter import Converter
from .covered import Covered, has_large_weights, on_the_cpu, with_example_values

_COREMLTOOLS = Converter(
    "coremltools",
    "FE805",
    "function in coremltools' registry",
    "convert_single_node",
    "use operators that coremltools converts, or run this part of the model outside of Core ML",
    "register a function for {name} with coremltools' `register_torch_op`",
    "export with `--dtype float32`: coremltools converts it to float16 by default",
)
_REWRITE = (
    "coremltools needs `program.run_decompositions({**torch.export.default_decompositions(), "
    "torch.ops.aten.alias.default: torch.clone})`"
)


def cover_coreml(program: ExportedProgram) -> Covered:
    """Convert a program with coremltools' defaults. Nothing is run: Core ML exists only on Apple devices.

    All operators that coremltools does not know are reported at once (FE805).
    """
    moved, rewrites = on_the_cpu(program, "coremltools")
    if held := tuple(findings_of_objects(moved, _COREMLTOOLS.code, "Core ML")):
        raise CompileFailure(held)
    is_small = not has_large_weights(moved)
    moved = with_example_values(moved)
    plain = _decomposed(moved, {})
    unknown = tuple(_COREMLTOOLS.unknown(plain, _is_known))
    if refused := unknown or _failure_of_conversion(plain, is_small):
        nodes = {found.node for found in refused}
        names = {operator_name(node) for node in plain.graph.nodes if node.name in nodes}
        try:
            plain = _decomposed(moved, more_decompositions())
        except Exception as error:  # Such as a `view` of attention whose decomposition has other strides.
            raise CompileFailure(refused) from error
        if found := tuple(_COREMLTOOLS.unknown(plain, _is_known)) or _failure_of_conversion(plain, is_small):
            raise CompileFailure(found if unknown else refused)
        rewrites += (f"{_REWRITE} (for {', '.join(sorted(names)) or 'a part of the program'})",)
    notes = ["coremltools converted it for its default deployment target; Core ML did not run it"]
    if not is_small:
        notes.append("the weights are large, so the last passes, which write the model, were not run")
    return Covered(rewrites, notes=tuple(notes))


def more_decompositions() -> dict[Any, Any]:
    """Return the decompositions of `_REWRITE`, for operators that coremltools does not have."""
    return {**torch.export.default_decompositions(), torch.ops.aten.alias.default: torch.clone}


def _decomposed(program: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    """Return the program in the form that coremltools' documentation asks for if the table is empty."""
    with torch.no_grad():
        return cast(ExportedProgram, program.run_decompositions(table))


def _is_known(node: Node) -> bool:
    from coremltools.converters.mil.frontend.torch import is_torch_fx_node_supported

    try:
        return bool(is_torch_fx_node_supported(node))
    except AssertionError:  # Raised for `operator.and_`, which the conversion decides.
        return True


def _failure_of_conversion(program: ExportedProgram, is_small: bool) -> tuple[Diagnostic, ...]:
    """Return why coremltools does not convert a program; nothing if it does."""
    import coremltools

    more = {"skip_model_load": True} if is_small else {"convert_to": "milinternal"}
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            coremltools.convert(program, **more)
    except Exception as error:  # Its functions raise whatever their checks raise.
        missing = error.args[0] if isinstance(error, KeyError) and error.args else None
        return (_COREMLTOOLS.failure(program, error, missing),)
    return ()
