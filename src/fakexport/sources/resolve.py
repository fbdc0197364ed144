"""From the text that names a model to its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fakexport._libraries import FORMS
from fakexport.error import InvalidType
from fakexport.hub import HUB_ID
from fakexport.sources.diffusers_source import diffusers_source
from fakexport.sources.python_factory import check_arguments, checked, no_inputs, python_source
from fakexport.sources.source import Source
from fakexport.sources.source_error import SourceError
from fakexport.sources.timm_models import timm_source
from fakexport.sources.transformers_source import transformers_source
from fakexport.sources.workload import FORWARD, Workload

# A row for each of `fakexport._libraries.LIBRARIES`.
_OF_PREFIX: Mapping[str, Callable[[str, str, bool, Workload], Source]] = {
    "hf": lambda spec, name, use_cache, workload: transformers_source(
        spec, name, use_cache=use_cache, workload=workload
    ),
    "diffusers": lambda spec, name, use_cache, workload: diffusers_source(spec, name),
    "timm": lambda spec, name, use_cache, workload: timm_source(spec, name),
}


def resolve(
    spec: str | nn.Module | Callable[[], Any] | Source,
    *,
    use_cache: bool = False,
    workload: Workload = FORWARD,
) -> Source:
    """Return the source that a spec names, or that a factory or a module is; nothing is constructed yet.

    Configs are read here, outside any fake mode, so that every error of the spec shows before a device is
    emulated. A Python file is imported by `Source.prepare`, since it may ask for devices. Configuration files
    and headers of a repository on the hub are downloaded.

    Args:
        spec: One of `FORMS`. A factory is any callable without arguments, an `nn.Module` class included. Or
            such a factory, or a module, whose weights are not read; its name is the spec then. A source
            stands for itself.
        use_cache: Whether a language model returns a key-value cache; it takes none. For `hf:` only.
        workload: The call that the example inputs are of. Of `hf:` models only; the inputs of others are what
            they are.
    Returns:
        The source. Resolving one spec twice imports a Python file twice.
    Raises:
        SourceError: Prefill or decode, of a source that is not `hf:`. An unknown form, a missing
            file or package, a file that raises on import, an attribute that is missing or not callable,
            broken JSON, an unknown model type or class; a factory that needs arguments.
        TypeError: it is neither a text, a factory nor a module.

    Example:
        >>> resolve("hf:gpt2").assumptions[-1]
        'hf:gpt2 names no class: GPT2LMHeadModel assumed'
    """
    if isinstance(spec, Source):
        if workload.is_generated:
            raise SourceError(f"{spec.spec} is resolved already: pass the text that names it")
        return spec
    form, colon, name = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if workload.name in ("prefill", "decode") and form != "hf":
        raise SourceError(
            f"--workload {workload.name} applies to hf: sources; the inputs of others say what they do"
        )
    if not isinstance(spec, str):
        return callable_source(spec)
    if not colon:
        raise SourceError(_without_form(spec))
    if form in _OF_PREFIX:
        return _OF_PREFIX[form](spec, name, use_cache, workload)
    if form.isidentifier() and not name.replace(".", "").isidentifier():
        raise SourceError(f"{spec!r} is not a source: write {' | '.join(FORMS)}")
    return python_source(spec)


def _without_form(spec: str) -> str:
    if (Path(spec) / "config.json").is_file():
        return f"{spec!r} is not a source: write hf:{spec} for the model of its config.json"
    if HUB_ID.fullmatch(spec) and not spec.endswith((".py", ".json")) and not Path(spec).exists():
        return f"{spec!r} is not a source: write hf:{spec} for the repository of the Hugging Face hub"
    return f"{spec!r} is not a source: write {' | '.join(FORMS)}"


def callable_source(factory: Callable[[], Any] | nn.Module) -> Source:
    """Return the source of a factory, or of a module whose weights are not read.

    Raises:
        TypeError: neither a module nor an ExportedProgram.
        SourceError: it cannot be called without arguments.
    """
    if not callable(factory):
        raise InvalidType(f"a source must be a string, a factory or a module, not {type(factory).__name__}")
    name = getattr(factory, "__name__", type(factory).__name__)
    if not isinstance(factory, nn.Module):
        check_arguments(factory, name)

    is_made = isinstance(factory, nn.Module)
    return Source(
        spec=name,
        kind="python",
        factory=factory if is_made else lambda: checked(factory(), name),
        example_inputs=no_inputs(name),
    )
