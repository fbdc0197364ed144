"""Ask torch's ONNX exporter and ONNX Runtime whether they take a program that has no weights."""

from __future__ import annotations

import re
from typing import Any

from torch.export import ExportedProgram

from fakexport._torch.kernels.grouped_products import TORCHS, TRANSFORMERS
from fakexport.exporting.program import devices_of_program, operator_name, walk
from fakexport.rules import rule
from fakexport.rules.diagnostics import Fix

from ..artifact import CompileFailure
from ..coverage.covered import Covered, replacements
from .compilation import COMPOSITIONS, checked_model, finding_at_node, prepared_program, without_weights

_NO_KERNEL = re.compile(
    r"Could not find an implementation for (?P<operator>\w+\(\d+\)) node with name '(?P<node>[^']*)'"
)
_BESIDE = "weights.safetensors"


def cover_onnx(program: ExportedProgram) -> Covered:
    """Convert a program to ONNX without writing it, and load it in ONNX Runtime if it is for the CPU.

    Raises as `compile_onnx` does, and a `CompileFailure` if ONNX Runtime has no kernel for an operator.
    """
    prepared, notes = prepared_program(program)
    model, _, converted = checked_model(prepared, lambda _: _BESIDE)
    elsewhere = [device for device in devices_of_program(program) if device not in ("cpu", "meta")]
    if elsewhere:
        notes += (f"the kernels of ONNX Runtime for {elsewhere[0]} were not checked",)
    else:
        _load(model)
    grouped = {operator_name(visit.node) for visit in walk(program)} & {TORCHS, TRANSFORMERS}
    rewrites = (f"{name} becomes one MatMul for each group" for name in sorted(grouped))
    return Covered((*replacements(program, COMPOSITIONS), *rewrites), notes=(*converted.notes, *notes))


def _load(model: Any) -> None:
    """Load a model in ONNX Runtime. The weights are inputs, because they have no values."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = without_weights(model).SerializeToString()
    try:
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # Its errors have no common base class.
        version, said = onnxruntime.__version__, " ".join(str(error).split())
        found = _NO_KERNEL.search(said)
        if found is None:
            note = f"ONNX Runtime {version} does not load the converted model: {said}"
            raise CompileFailure((rule("FE802").diagnostic(notes=(note,)),)) from error
        where = f"ONNX Runtime {version} has no kernel for the CPU for {found['operator']} at node"
        raise CompileFailure(
            (
                finding_at_node(
                    model,
                    found["node"],
                    f"ONNX Runtime has no CPU kernel for {found['operator']} with these dtypes",
                    f"{where} {found['node']}; it reports one operator at a time",
                    Fix("compute in float32, or run the file with a provider that has the kernel"),
                ),
            )
        ) from error
