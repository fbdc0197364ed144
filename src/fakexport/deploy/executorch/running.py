"""A .pte file, run by ExecuTorch's runtime in this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import torch

from fakexport.files import open_regular
from fakexport.weights import CheckpointSource

from ..artifact import Artifact, DeployError
from ..loaded_program import named_outputs
from ..signature import Signature
from .description import RUNTIME_NAMES, Description, described
from .native_log import NativeLog, native_log

_FORWARD = "forward"


def open_executorch(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> Artifact:
    """Open what `compile_executorch` wrote.

    The file is checked before ExecuTorch sees it. A program with mutable buffers keeps their
    values from one call to the next; opening the file again resets them.

    Args:
        path: The .pte file. It must not change while the artifact is used.
        checkpoint: Not for this form: the weights are in the file.
    Raises:
        DeployError: a checkpoint was passed; the file is damaged or was not written by fakexport; the
            installed ExecuTorch lacks kernels or the backend that it needs.
        OSError: the file cannot be read.
        ModuleNotFoundError: ExecuTorch is not installed.
    """
    if checkpoint is not None:
        raise DeployError(f"{path} contains its weights and takes no checkpoint")
    file = open_regular(path)
    description = described(file)
    with native_log():  # What other packages log when they are imported is no reason of a failure.
        from executorch.runtime import Runtime

        runtime = Runtime.get()
    _refuse_missing_backend(path, description, runtime)
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
    """A program that ExecuTorch loaded."""

    def __init__(self, path: str, description: Description, program: Any, method: Any) -> None:
        self._path, self._description = path, description
        self._program, self._method = program, method  # The method lives as long as its program.
        self._is_new = True

    @property
    def signature(self) -> Signature:
        return self._description.signature

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.signature.check(inputs)
        # A tensor of another layout would be refused, or read in the wrong order.
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in inputs.items()}
        arguments = [
            tensors[argument["input"]] if "input" in argument else argument.get("value")
            for argument in self._description.arguments
        ]
        results = self._results(arguments)
        written = self._description.written
        if len(results) != len(written) + len(self.signature.outputs):
            raise DeployError(f"{self._path}: it returned {len(results)} results, unlike its description")
        with torch.no_grad():
            for name, value in zip(written, results, strict=False):
                inputs[name].copy_(value)
        return named_outputs(self.signature, results[len(written) :])

    def _results(self, arguments: list[Any]) -> list[Any]:
        # The first call makes the runtime's threads, and logs what it could not learn of the processor.
        log = native_log() if self._is_new else contextlib.nullcontext(NativeLog())
        self._is_new = False
        failure: RuntimeError | None = None
        with log as lines:
            try:
                return list(self._method.execute(arguments))
            except RuntimeError as error:
                failure = error
        raise DeployError(f"{self._path}: {_line(failure, lines.reasons)}")


def _refuse_missing_backend(path: str | os.PathLike[str], description: Description, runtime: Any) -> None:
    for backend, name in RUNTIME_NAMES.items():
        if description.backend == backend and not runtime.backend_registry.is_available(name):
            raise DeployError(f"{path} is for {backend}, which the installed ExecuTorch does not have")


def _line(error: RuntimeError, reasons: tuple[str, ...]) -> str:
    return f"ExecuTorch: {'; '.join(reasons) or error}"
