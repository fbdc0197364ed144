"""A LoRA adapter of peft on a model of transformers: `--adapter DIR`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fakexport.documents import ADAPTER_MODES, AdapterMode, AdapterRecord
from fakexport.error import InvalidValue
from fakexport.sources.adapted_model import AdaptedModel, Shapes, adapt, import_peft, lora_layers
from fakexport.sources.adapter_config import AdapterFolder
from fakexport.sources.adapter_inputs import adapter_tracing, with_adapter_inputs
from fakexport.sources.source import ExampleInputs, Source
from fakexport.sources.source_error import SourceError, first_line


@dataclass(frozen=True)
class Adapter:
    """An adapter, and what became of it in each model built.

    Args:
        folder: Where it is.
        mode: How the program gets it.
        name: What the names of its tensors begin with; empty for the only adapter of a program.
    """

    folder: AdapterFolder
    mode: AdapterMode
    name: str = ""
    _made: WeakKeyDictionary[nn.Module, AdaptedModel] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def made(self, module: nn.Module) -> AdaptedModel:
        """Return the names of the weights of a model that `built` returned."""
        return self._made[module]

    def built(self, source: Source) -> nn.Module:
        """Return the model that is exported.

        Raises:
            SourceError: The adapter does not fit it.
        """
        module: nn.Module = source.factory()
        made = adapt(module, self.folder, file_shapes(self.folder))
        if self.mode != "apart":
            check_mergeable(module, made, self.mode)
        if self.mode == "merged":
            module, made = source.factory(), AdaptedModel()
        self._made[module] = made
        return module

    def record(self, module: nn.Module, inputs: ExampleInputs) -> AdapterRecord:
        """Return what the archive says of it, with the names that the weights of a module have elsewhere."""
        made = self._made.get(module, AdaptedModel())
        own = {name: f"{self.name}.{key}" if self.name else key for name, key in made.adapter.items()}
        weights = {**made.base, **own} if self.mode == "apart" else made.base
        return AdapterRecord(self.mode, self.name, weights, inputs.adapter)


def adapter_source(
    source: Source,
    adapter: str | Path | None,
    mode: str = "apart",
    workload: str = "forward",
    *,
    has_inputs: bool = False,
) -> Source:
    """Return the source of a model with an adapter.

    Args:
        adapter: `DIR`, or `NAME=DIR` for tensors whose names begin with NAME; None: no adapter.
        mode: `apart`, `merged` or `inputs`.
    Raises:
        SourceError: No model of transformers, no LoRA adapter, or options that do not go together.
        ValueError: There is no such mode.
    """
    if mode not in ADAPTER_MODES:
        raise InvalidValue(f"no such adapter mode: {mode!r}; it is one of {', '.join(ADAPTER_MODES)}")
    if adapter is None:
        if mode != "apart":
            raise SourceError("--adapter-mode needs --adapter")
        return source
    _refuse(source, mode, has_inputs)
    if mode == "inputs" and workload != "forward":
        raise SourceError(f"--adapter-mode inputs applies to --workload forward, not {workload}")
    name, path = split_name(adapter)
    if name and mode != "apart":
        raise SourceError(f"a name of an adapter, {name}, applies to --adapter-mode apart")
    import_peft()
    made = Adapter(AdapterFolder.read(path), cast(AdapterMode, mode), name)
    spec = f"{source.spec} --adapter {Path(path).name}"
    adapted = replace(
        source,
        spec=spec if mode == "apart" else f"{spec} --adapter-mode {mode}",
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
    def both(module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
        with source.tracing(module, inputs), adapter_tracing(module, adapter.made(module).adapter):
            yield

    def tracing(module: nn.Module, inputs: ExampleInputs) -> AbstractContextManager[None]:
        return both(module, inputs)

    return replace(source, example_inputs=inputs, tracing=tracing)


def split_name(adapter: str | Path) -> tuple[str, str]:
    """Return the name and the folder of `NAME=DIR`; an empty name for `DIR`."""
    name, equals, path = str(adapter).partition("=")
    return (name, path) if equals and name.isidentifier() else ("", str(adapter))


def _refuse(source: Source, mode: str, has_inputs: bool) -> None:
    if source.kind != "transformers":
        raise SourceError(f"--adapter applies to hf: models, which {source.spec} is not")
    if source.quantization is not None:
        method = source.quantization.method
        raise SourceError(f"--adapter does not apply to a quantized model, and {source.spec} is ({method})")
    if mode == "inputs" and has_inputs:
        raise SourceError("--adapter-mode inputs derives the inputs of the program: pass none")


def _assumptions(adapter: Adapter) -> Iterator[str]:
    if not adapter.folder.weights.is_file():
        yield f"{adapter.folder.weights.name} is not there: names and shapes of the adapter were not checked"
    if adapter.mode == "merged":
        yield "the adapter is merged into the weights when these are bound (bind --adapter)"


def check_mergeable(module: nn.Module, made: AdaptedModel, mode: AdapterMode = "merged") -> None:
    """Refuse an adapter that changes one name of a tied weight: merged, it would change the others too.

    Raises:
        SourceError: It is one.
    """
    changed = set(made.replaced)
    for path, _ in lora_layers(module) if mode == "merged" else ():
        changed |= {old for name, old in made.base.items() if name.startswith(f"{path}.base_layer.")}
    for names in made.tied:
        if touched := changed.intersection(names):
            name = min(touched)
            other = next(other for other in names if other != name)
            why = "merged, it would change both" if mode == "merged" else "it cannot be an input alone"
            raise SourceError(
                f"the adapter changes {name}, which is tied to {other}: {why}; use --adapter-mode apart"
            )


def file_shapes(folder: AdapterFolder) -> Shapes | None:
    """Return the shapes in the header of an adapter's file; None where there is none.

    Raises:
        SourceError: The file is damaged.
    """
    if not folder.weights.is_file():
        return None
    safetensors = importlib.import_module("safetensors")
    try:
        with safetensors.safe_open(folder.weights, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # Its own exception, or that of the operating system.
        raise SourceError(f"{folder.weights}: {first_line(error)}") from error
