"""Deployment formats: how to write each format, and how to open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport.archive import save
from fakexport.deploy import CompileFailure, DeployError, Form, compile, open_program
from fakexport.exporting.capture import capture
from fakexport.models import parse_dynamic
from fakexport.models.sources import SEED, ExampleInputs
from fakexport.report.diagnose import diagnose_failure

from .model import Call, Inputs, Model, Request, call_of


@dataclass(frozen=True)
class Mode:
    """One deployment format.

    `make` writes the files to deploy into a folder. It is None if only the model's code is deployed. `open`
    opens these files. It may construct the model only if `has_code` is true.
    """

    name: str
    make: Callable[[Request, Model, Inputs, Path], None] | None
    open: Callable[[Request, Path], Call]
    has_code: bool = False


def _open_eager(request: Request, folder: Path) -> Call:
    return call_of(Model.of(request).module)


def _write_weights(request: Request, model: Model, inputs: Inputs, folder: Path) -> None:
    torch.save(model.module.state_dict(), folder / "weights.pth")


def _open_weights(request: Request, folder: Path) -> Call:
    # Use a different seed, so that the outputs change if a weight is missing from the file.
    module = Model.of(request, seed=SEED + 1).module
    module.load_state_dict(torch.load(folder / "weights.pth"))
    return call_of(module)


def _trace(request: Request, model: Model, inputs: Inputs, folder: Path) -> None:
    # `strict=False` allows models that return a dict. Checking the trace would take more time.
    given: dict[str, Any] = {"example_inputs": inputs.args} if inputs.args else {}
    if inputs.kwargs:
        given["example_kwarg_inputs"] = inputs.kwargs
    with torch.no_grad():
        traced: Any = torch.jit.trace(model.module, strict=False, check_trace=False, **given)
    torch.jit.save(traced, str(folder / "traced.pt"))


def _script(request: Request, model: Model, inputs: Inputs, folder: Path) -> None:
    torch.jit.save(torch.jit.script(model.module), str(folder / "scripted.pt"))


def _open_torchscript(request: Request, folder: Path) -> Call:
    (path,) = folder.iterdir()
    module: Any = torch.jit.load(str(path))
    return call_of(module)


def _export(request: Request, model: Model, inputs: Inputs, folder: Path) -> None:
    save(_program(request, model, inputs), folder / "program.pt2")


def _compiled(form: Form, name: str, **options: Any) -> Callable[[Request, Model, Inputs, Path], None]:
    def make(request: Request, model: Model, inputs: Inputs, folder: Path) -> None:
        compile(_program(request, model, inputs), folder / name, to=form, **options)

    return make


def _opened(name: str, **options: Any) -> Callable[[Request, Path], Call]:
    """Return a function that opens a file as a `Call`, which takes inputs in flat order."""

    def opened(request: Request, folder: Path) -> Call:
        artifact = open_program(folder / name, **options)
        names = [tensor.name for tensor in artifact.signature.inputs]

        def call(inputs: Inputs) -> list[torch.Tensor]:
            return list(artifact(dict(zip(names, inputs.tensors, strict=True))).values())

        return call

    return opened


def _program(request: Request, model: Model, inputs: Inputs) -> ExportedProgram:
    """Export the model with its weights."""
    captured = capture(
        model.module,
        inputs.args,
        inputs.kwargs,
        dynamic=parse_dynamic(request.dynamic),
        tracing=lambda: model.source.tracing(model.module, ExampleInputs(inputs.args, inputs.kwargs)),
    )
    if captured.program is None:
        assert captured.failure is not None
        raise CompileFailure(diagnose_failure(captured.failure))
    if captured.recovered is not None and captured.recovered.unbound:
        codes = sorted({f"{constant.code} {constant.name}" for constant in captured.recovered.unbound})
        raise DeployError(f"constants without a value: {', '.join(codes)}")
    return captured.program


MODES = {
    mode.name: mode
    for mode in (
        Mode("eager", None, _open_eager, has_code=True),
        Mode("weights", _write_weights, _open_weights, has_code=True),
        Mode("torchscript-trace", _trace, _open_torchscript),
        Mode("torchscript-script", _script, _open_torchscript),
        Mode("export", _export, _opened("program.pt2")),
        Mode("export+compile", _export, _opened("program.pt2", is_compiled=True)),
        Mode("aoti", _compiled("aoti", "model.aoti.pt2"), _opened("model.aoti.pt2", trust=True)),
        Mode("onnx", _compiled("onnx", "model.onnx"), _opened("model.onnx")),
        Mode("executorch", _compiled("executorch", "model.pte", backend="xnnpack"), _opened("model.pte")),
    )
}
"""Modes by name, in display order."""
