"""A case as an ONNX file: what ONNX Runtime, called without fakexport, returns next to eager."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
from safetensors.numpy import load_file

import fakexport as fe

from .reference import write_case

__all__ = ["difference", "is_equal", "outcome_of", "read_translations_once", "session_of"]


def read_translations_once() -> None:
    """Let all conversions of this process share torch's table of translations, which takes long to read."""
    from torch.onnx._internal.exporter import _registration

    apis = _registration.onnxscript_apis
    apis.get_torchlib_ops = functools.cache(apis.get_torchlib_ops)


_TOLERANCE = 1e-4
_NOISES = (0.02, 0.3)


def outcome_of(spec: str, folder: Path) -> dict[str, Any]:
    """Return what became of a model as an ONNX file.

    If values differ, they are compared again with larger weights. With small ones, all scores of a detector
    are almost equal, and the best of them are in a different order if they are rounded differently.
    """
    found: dict[str, Any] = {}
    for noise in _NOISES:
        own = folder / str(noise)
        own.mkdir()
        found = _outcome(spec, own, noise=noise)
        if is_equal(found) or "error" in found:
            break
    return found


def is_equal(outcome: Mapping[str, Any]) -> bool:
    """Whether values differ by at most 1e-4: of the largest value, if that is above 1."""
    if "error" in outcome:
        return False
    return bool(outcome["max_difference"] <= _TOLERANCE * max(1.0, outcome["largest"]))


def _outcome(spec: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Export, save, load, bind and compile a model; run the file at other sizes than those of the export.

    Returns:
        `class`, `sizes`, `inputs`, and of the worst run `max_difference` and `largest` (of eager's
        values); or `error`.
    """
    write_case(spec, folder, targets=("cpu",), is_float32=True, **options)
    case = json.loads((folder / "case.json").read_text())
    if not case["dynamic"]:
        return {"error": next(iter(case["failures"].values()))}
    file = folder / "model.onnx"
    try:
        fe.compile(folder / "cpu.pt2", file, folder / "checkpoint", to="onnx")
    except fe.CompileFailure as error:
        notes = "; ".join(note for found in error.diagnostics for note in found.notes[:1])
        return {"class": case["class"], "error": f"CompileFailure: {notes or error}"}
    session = session_of(file)
    runs = []
    for number in range(1, len(case["sizes"]) + 1):
        found = session.run(None, load_file(folder / f"inputs-{number}.safetensors"))
        expected = load_file(folder / f"outputs-{number}.safetensors")
        runs.append(difference(found, [expected[name] for name in sorted(expected)]))
    worst = max(runs, key=lambda run: run[0])
    return {
        "class": case["class"],
        "sizes": len([shapes for shapes in case["sizes"] if shapes != case["example"]]),
        "inputs": [value.name for value in session.get_inputs()],
        "max_difference": worst[0],
        "largest": worst[1],
    }


def session_of(file: Path) -> onnxruntime.InferenceSession:
    """Open a file as users of ONNX Runtime do."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def difference(found: list[Any], expected: list[Any]) -> tuple[float, float]:
    """The largest difference, and the largest finite value of `expected`. Infinities and NaN must agree."""
    shapes = [(value.shape, value.dtype) for value in expected]
    assert [(value.shape, value.dtype) for value in found] == shapes, (shapes, [v.shape for v in found])
    largest, most = 0.0, 0.0
    for one, other in zip(found, expected, strict=True):
        if not other.size:
            continue
        a, b = one.astype(numpy.float64), other.astype(numpy.float64)
        is_finite = numpy.isfinite(b)
        if not numpy.array_equal(a[~is_finite], b[~is_finite], equal_nan=True):
            return float("inf"), largest
        if is_finite.any():
            most = max(most, float(numpy.abs(a - b)[is_finite].max()))
            largest = max(largest, float(numpy.abs(b[is_finite]).max()))
    return most, largest
