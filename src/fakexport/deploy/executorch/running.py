"""Run a .pte file with ExecuTorch's runtime in this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import torch

from fakexport.archive.weights import CheckpointSource
from fakexport.files import open_regular

from ..artifact import Artifact, DeployError
from ..loaded_program import named_outputs
from ..signature import Signature
from .description import Description, described
from .native_log import NativeLog, native_log

_FORWARD = "forward"


def open_executorch(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> Artifact:
    """Open a file that `compile_executorch` wrote. The file is checked before ExecuTorch loads it.

    Mutable buffers keep their values between calls. Opening the file again resets them. The file must not
    change while the artifact is used.

    Raises:
        DeployError: A checkpoint was passed (the weights are in the file), the file is damaged or was not
            written by fakexport, or the installed ExecuTorch lacks a kernel or backend.
        OSError: The file cannot be read.
    """
    if checkpoint is not None:
        raise DeployError(f"{path} contains its weights and does not accept a checkpoint")
    file = open_regular(path)
    description = described(file)
    with native_log():  # Importing other packages may log unrelated messages.
        from executorch.runtime import Runtime

        runtime = Runtime.get()
    if description.backend == "xnnpack" and not runtime.backend_registry.is_available("XnnpackBackend"):
        raise DeployError(f"{path} needs the XNNPACK backend, which the installed ExecuTorch does not have")
    with native_log() as log:
        try:
            program = runtime.load_program(file.same_file)
            method = program.load_method(_FORWARD)
        except RuntimeError as error:
            failure: RuntimeError | None = error
        else:
            failure = None
    if failure is not None:
        raise DeployError(f"{path}: {_line(failure, log.reasons)}")
    return _Opened(str(path), description, program, method)


class _Opened:
    def __init__(self, path: str, description: Description, program: Any, method: Any) -> None:
        self._path, self._description = path, description
        self._program, self._method = program, method  # A method needs its program.
        self._is_new = True

    @property
    def signature(self) -> Signature:
        return self._description.signature

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.signature.check(inputs)
        # ExecuTorch would reject tensors with a different layout, or read them in the wrong order.
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in inputs.items()}
        arguments = [
            tensors[argument["input"]] if "input" in argument else argument.get("value")
            for argument in self._description.arguments
        ]
        results = self._results(arguments)
        written = self._description.written
        if len(results) != len(written) + len(self.signature.outputs):
            raise DeployError(
                f"{self._path}: the program returned {len(results)} results, but the file's metadata lists "
                f"{len(written) + len(self.signature.outputs)}"
            )
        with torch.no_grad():
            for name, value in zip(written, results, strict=False):
                inputs[name].copy_(value)
        return named_outputs(self.signature, results[len(written) :])

    def _results(self, arguments: list[Any]) -> list[Any]:
        # The first call starts the runtime's threads, and logs processor features that it cannot detect.
        log = native_log() if self._is_new else contextlib.nullcontext(NativeLog())
        self._is_new = False
        failure: RuntimeError | None = None
        with log as lines:
            try:
                return list(self._method.execute(arguments))
            except RuntimeError as error:
                failure = error
        raise DeployError(f"{self._path}: {_line(failure, lines.reasons)}")


def _line(error: RuntimeError, reasons: tuple[str, ...]) -> str:
    return f"ExecuTorch: {'; '.join(reasons) or error}"
