"""Compile a program with a runtime of an installed package, and open the file.

The entry point `fakexport.runtimes` names a class without arguments. Its `compile(program, path, signature)`
writes a file that also stores the text `signature`. Its `open(path)` returns that text, and a function from
input tensors by name, in order, to a sequence of output tensors. The name of the entry point is the form, and
the suffix of the files.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport.error import FakexportError, InvalidValue, first_line
from fakexport.exporting.program import unbound_names
from fakexport.files import load_plugin, plugin_fault, plugins

from .artifact import CompiledFile, DeployError
from .signature import Signature

Call = Callable[[dict[str, torch.Tensor]], Sequence[torch.Tensor]]


class PluginArtifact:
    """A file in a runtime of an installed package. Inputs are checked before each call."""

    def __init__(self, entry: EntryPoint, signature: Signature, call: Call) -> None:
        self._entry, self._call = entry, call
        self.signature = signature

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the file, and return its output tensors by name."""
        self.signature.check(inputs)
        try:
            values = tuple(self._call({tensor.name: inputs[tensor.name] for tensor in self.signature.inputs}))
        except Exception as error:
            raise plugin_fault(self._entry, f"raises {type(error).__name__}: {first_line(error)}") from error
        names = [output.name for output in self.signature.outputs if output.is_tensor]
        if len(values) != len(names):
            raise plugin_fault(self._entry, f"returned {len(values)} tensors, not {len(names)}")
        return dict(zip(names, values, strict=True))


def compile_with_plugin(program: ExportedProgram, path: str | os.PathLike[str], form: str) -> CompiledFile:
    """Compile a program that has its weights.

    Raises:
        ValueError: the file has a different suffix.
        PluginError: the runtime raises an error, or does not write the file.
    """
    if Path(path).suffix != f".{form}":
        raise InvalidValue(f"the name of the file must end in .{form}, not {Path(path).name!r}")
    if unbound_names(program):
        raise DeployError(f"{form} needs the weights: pass a checkpoint")
    entry, begun = plugins("runtimes")[form], time.monotonic()
    signature = json.dumps(Signature.of(program).to_dict())
    try:
        load_plugin(entry)().compile(program, Path(path), signature)
        return CompiledFile.of(Path(path), [Path(path)], begun)
    except FakexportError:
        raise
    except Exception as error:
        raise plugin_fault(entry, f"raises {type(error).__name__}: {first_line(error)}") from error


def open_with_plugin(path: str | os.PathLike[str], form: str) -> PluginArtifact:
    """Open a file that `compile_with_plugin` wrote."""
    entry = plugins("runtimes")[form]
    runtime = load_plugin(entry)
    try:
        signature, call = runtime().open(Path(path))
        return PluginArtifact(entry, Signature.from_dict(json.loads(signature)), call)
    except Exception as error:
        raise plugin_fault(entry, f"raises {type(error).__name__}: {first_line(error)}") from error
