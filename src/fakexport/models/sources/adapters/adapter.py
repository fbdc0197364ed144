"""Sources for a transformers model with a PEFT LoRA adapter: `--adapter DIR`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fakexport.error import InvalidValue
from fakexport.files.documents import ADAPTER_MODES, AdapterMode, AdapterRecord
from fakexport.models.sources.adapters.adapted_model import (
    AdaptedModel,
    Shapes,
    adapt,
    import_peft,
    lora_layers,
)
from fakexport.models.sources.adapters.adapter_config import AdapterFolder
from fakexport.models.sources.adapters.adapter_inputs import adapter_tracing, with_adapter_inputs
from fakexport.models.sources.source import ExampleInputs, Source
from fakexport.models.sources.source_error import SourceError, first_line


@dataclass(frozen=True)
class Adapter:
    """An adapter. It records the weight names of each model that is built with it.

    Args:
        folder: The folder of the adapter.
        mode: How the program receives the adapter's tensors.
        name: Prefix of the adapter's tensor names, or "" if the program has only one adapter.
    """

    folder: AdapterFolder
    mode: AdapterMode
    name: str = ""
    _made: WeakKeyDictionary[nn.Module, AdaptedModel] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def made(self, module: nn.Module) -> AdaptedModel:
        """Return the recorded weight names of a model that `built` returned."""
        return self._made[module]

    def built(self, source: Source) -> nn.Module:
        """Build the model of a source with the adapter, in the form that is exported."""
        module: nn.Module = source.factory()
        made = adapt(module, self.folder, file_shapes(self.folder))
        if self.mode != "separate":
            check_mergeable(module, made, self.mode)
        if self.mode == "merged":
            module, made = source.factory(), AdaptedModel()
        self._made[module] = made
        return module

    def record(self, module: nn.Module, inputs: ExampleInputs) -> AdapterRecord:
        """Return the record of the adapter that an archive stores.

        For each weight, it contains the name in the checkpoint or in the adapter's file.
        """
        made = self._made.get(module, AdaptedModel())
        own = {name: f"{self.name}.{key}" if self.name else key for name, key in made.adapter.items()}
        weights = {**made.base, **own} if self.mode == "separate" else made.base
        return AdapterRecord(self.mode, self.name, weights, inputs.adapter)


def adapter_source(
    source: Source,
    adapter: str | Path | None,
    mode: str = "separate",
    workload: str = "forward",
    *,
    has_inputs: bool = False,
) -> Source:
    """Return the source of a model with an adapter.

    Args:
        adapter: `DIR`, or `NAME=DIR` to prefix the adapter's tensor names with NAME. None means no adapter.
        mode: `separate`, `merged` or `inputs`.
    Raises:
        SourceError: the source is not a transformers model, the adapter is not a LoRA adapter, or options
            conflict.
        ValueError: the mode does not exist.
    """
    if mode not in ADAPTER_MODES:
        raise InvalidValue(f"unknown adapter mode {mode!r}; expected one of {', '.join(ADAPTER_MODES)}")
    if adapter is None:
        if mode != "separate":
            raise SourceError("--adapter-mode requires --adapter")
        return source
    _refuse(source, mode, has_inputs)
    if mode == "inputs" and workload != "forward":
        raise SourceError(f"--adapter-mode inputs supports --workload forward, not {workload}")
    name, path = split_name(adapter)
    if name and mode != "separate":
        raise SourceError(f"the adapter name {name} requires --adapter-mode separate")
    import_peft()
    made = Adapter(AdapterFolder.read(path), cast(AdapterMode, mode), name)
    spec = f"{source.spec} --adapter {Path(path).name}"
    adapted = replace(
        source,
        spec=spec if mode == "separate" else f"{spec} --adapter-mode {mode}",
        factory=lambda: made.built(source),
        adapter=made,
        assumptions=(*source.assumptions, *_assumptions(made)),
    )
    return _with_inputs(adapted, made) if mode == "inputs" else adapted


def _with_inputs(source: Source, adapter: Adapter) -> Source:
    def inputs(module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
        own = source.example_inputs(module, device, dtype)
        return with_adapter_inputs(own, module, adapter.made(module).adapter)

    @contextmanager
    def tracing(module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
        with source.tracing(module, inputs), adapter_tracing(module, adapter.made(module).adapter):
            yield

    return replace(source, example_inputs=inputs, tracing=tracing)


def split_name(adapter: str | Path) -> tuple[str, str]:
    """Return the name and the folder of `NAME=DIR`; for `DIR`, the name is empty."""
    name, equals, path = str(adapter).partition("=")
    return (name, path) if equals and name.isidentifier() else ("", str(adapter))


def _refuse(source: Source, mode: str, has_inputs: bool) -> None:
    if source.kind != "transformers":
        raise SourceError(f"--adapter supports hf: models, not {source.spec}")
    if source.quantization is not None:
        method = source.quantization.method
        raise SourceError(f"--adapter does not support quantized models, such as {source.spec} ({method})")
    if mode == "inputs" and has_inputs:
        raise SourceError("with --adapter-mode inputs, fakexport derives the inputs: do not pass any")


def _assumptions(adapter: Adapter) -> Iterator[str]:
    if not adapter.folder.weights.is_file():
        yield (
            f"{adapter.folder.weights.name} does not exist: names and shapes of the adapter were not checked"
        )
    if adapter.mode == "merged":
        yield "the program has no adapter weights: `fakexport bind --adapter` merges them into the weights"


def check_mergeable(module: nn.Module, made: AdaptedModel, mode: AdapterMode = "merged") -> None:
    """Reject an adapter that changes a tied weight: merging it would also change the weight's other uses."""
    changed = set(made.replaced)
    for path, _ in lora_layers(module) if mode == "merged" else ():
        changed |= {old for name, old in made.base.items() if name.startswith(f"{path}.base_layer.")}
    for names in made.tied:
        if touched := changed.intersection(names):
            name = min(touched)
            other = next(other for other in names if other != name)
            why = (
                "merging the adapter would change both"
                if mode == "merged"
                else "a tied weight cannot be a separate input"
            )
            raise SourceError(
                f"the adapter changes {name}, which is tied to {other}: {why}; use --adapter-mode separate"
            )


def file_shapes(folder: AdapterFolder) -> Shapes | None:
    """Return the tensor shapes from the header of an adapter's file, or None if the file does not exist."""
    if not folder.weights.is_file():
        return None
    safetensors = importlib.import_module("safetensors")
    try:
        with safetensors.safe_open(folder.weights, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # An error of safetensors or of the operating system.
        raise SourceError(f"{folder.weights}: {first_line(error)}") from error
