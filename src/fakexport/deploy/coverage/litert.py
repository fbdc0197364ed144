"""Ask litert-torch whether it takes a program that has no weights."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.pytree import tree_leaves
from fakexport.error import type_and_line
from fakexport.exporting.program import (
    copied_graph,
    derived_program,
    operator_name,
    stand_in_inputs,
    user_inputs,
    written_state,
)
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

from ..artifact import CompileFailure
from ..unsupported import arguments_text, assertion_notes, finding_at, findings_of_objects
from .converter import Converter
from .covered import Covered, has_large_weights, on_the_cpu, with_example_values

_LITERT = Converter(
    "litert-torch",
    "FE806",
    "lowering in litert-torch's registry",
    "run_node",
    "use operators that litert-torch converts, or run this part of the model outside of LiteRT",
    "register a lowering for {name} with `litert_torch.backend.lowerings.lower`",
    "export with `--dtype float32`",
)
# Operations that LiteRT does not run, and the operators that litert-torch lowers to them.
_OPERATIONS = {
    "STABLEHLO_SORT": re.compile(r"aten\.(?:sort|topk|argsort)\."),
    "STABLEHLO_SCATTER": re.compile(r"aten\.(?:_unsafe_)?(?:scatter|index_put|index_add)"),
}
_POOLS_WITH_INDICES = re.compile(r"aten\.max_pool\dd_with_indices\.default")
_NARROWED = (torch.int64, torch.float64)


def cover_litert(program: ExportedProgram) -> Covered:
    """Convert a program with litert-torch's defaults, and call it once with zeros in LiteRT if it is small.

    All operators that litert-torch does not know are reported at once (FE806).
    """
    moved, rewrites = on_the_cpu(program, "litert-torch")
    if held := (*findings_of_objects(moved, _LITERT.code, "LiteRT"), *_state(moved)):
        raise CompileFailure(held)
    is_small = not has_large_weights(moved)
    moved = with_example_values(moved)
    inputs = {
        spec.name: value
        for (spec, _), value in zip(
            user_inputs(moved), tree_leaves(stand_in_inputs(moved, device="cpu")), strict=True
        )
    }
    notes = list(assertion_notes(moved, "LiteRT"))
    if any(isinstance(value, torch.Tensor) and value.dtype in _NARROWED for value in inputs.values()):
        notes.append("inputs of 64 bits become inputs of 32 bits")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            plain = _decomposed(moved)
        except Exception as error:  # Its passes raise whatever their checks raise.
            raise CompileFailure((_failure(moved, error),)) from error
        if found := (*_LITERT.unknown(plain, _is_known), *_indices(plain)):
            raise CompileFailure(found)
        content = _converted(plain, list(inputs))
        if is_small:
            _call(content, inputs, plain)
        else:
            notes.append("the program was not called, because its weights are large")
    return Covered(rewrites, notes=tuple(notes))


def _state(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Yield a finding if a call changes weights: litert-torch drops these changes without an error."""
    if written := sorted(written_state(program)):
        more = f" and {len(written) - 1} more" if len(written) > 1 else ""
        yield rule(_LITERT.code).diagnostic(
            notes=(f"a call changes the buffer {written[0]}{more}, but litert-torch drops the new values",),
            fix=Fix("pass the state to `forward` as an input, and return its new value"),
        )


def _indices(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Yield a finding for each pool whose indices are used: litert-torch computes wrong ones (0.10.0)."""
    for node in program.graph.nodes:
        if _POOLS_WITH_INDICES.fullmatch(operator_name(node)) and any(user.args[1] for user in node.users):
            note = f"litert-torch computes wrong indices for {operator_name(node)}"
            fix = Fix(_LITERT.fix)
            yield finding_at(_LITERT.code, node, "the indices of this pool are used", notes=(note,), fix=fix)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """Return the program as litert-torch converts it, after the passes of its `convert`."""
    from litert_torch import fx_infra
    from litert_torch._convert import core

    first, last = fx_infra.decomp.pre_convert_decomp(), fx_infra.decomp.pre_lower_decomp()
    held = {"state_dict": program.state_dict, "constants": program.constants}
    own = derived_program(program, **held, graph_module=copied_graph(program))  # litert-torch changes it.
    with torch.no_grad():
        plain = fx_infra.safe_run_decompositions(own, first, can_skip=False)
        plain.example_inputs = stand_in_inputs(program, device="cpu")
        plain = fx_infra.safe_run_decompositions(core._run_convert_passes(plain), last, can_skip=False)
    return cast(ExportedProgram, plain)


def _is_known(node: Node) -> bool:
    from litert_torch.backend import lowerings

    return not isinstance(node.target, OpOverload) or lowerings.lookup(node.target) is not None


def _converted(program: ExportedProgram, names: list[str]) -> bytes:
    from litert_torch._convert import litert_converter, signature

    wanted = signature.Signature("serving_default", torch.nn.Module(), (), dict.fromkeys(names))
    try:
        content: bytes = litert_converter.exported_programs_to_flatbuffer([program], [wanted]).to_bytes()
    except Exception as error:  # Its functions raise whatever their checks raise.
        raise CompileFailure((_failure(program, error),)) from error
    return content


def _failure(program: ExportedProgram, error: Exception) -> Diagnostic:
    return _LITERT.failure(program, error, getattr(torch, str(error).removeprefix("torch."), None))


def _call(content: bytes, inputs: Mapping[str, Any], program: ExportedProgram) -> None:
    from ai_edge_litert.interpreter import Interpreter

    try:
        runner = Interpreter(model_content=content).get_signature_runner()
        details = runner.get_input_details()
        runner(**{name: inputs[name].numpy().astype(found["dtype"]) for name, found in details.items()})
    except (RuntimeError, ValueError) as error:
        said = f"LiteRT does not run the converted model: {type_and_line(error)}"
        for operation, pattern in _OPERATIONS.items():
            for node in program.graph.nodes if operation in str(error) else ():
                if pattern.match(name := operator_name(node)):
                    notes = (said, f"the arguments of {name}: {arguments_text(node)}")
                    found = finding_at(
                        _LITERT.code, node, f"LiteRT does not run {name}", notes=notes, fix=Fix(_LITERT.fix)
                    )
                    raise CompileFailure((found,)) from error
        raise CompileFailure((rule(_LITERT.code).diagnostic(notes=(said,)),)) from error
