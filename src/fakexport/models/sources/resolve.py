"""Find the source of a model from the text that names the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fakexport.error import InvalidType
from fakexport.files import plugins
from fakexport.models import FORMS
from fakexport.models.hub import HUB_ID
from fakexport.models.sources.diffusers.diffusers_source import diffusers_source
from fakexport.models.sources.python.python_factory import check_arguments, checked, no_inputs, python_source
from fakexport.models.sources.source import Source
from fakexport.models.sources.source_error import SourceError
from fakexport.models.sources.timm_models import timm_source
from fakexport.models.sources.torchvision_models import torchvision_source
from fakexport.models.sources.transformers.transformers_source import transformers_source
from fakexport.models.sources.workload import FORWARD, Workload

# One row for each of `fakexport.models.libraries.LIBRARIES`.
_OF_PREFIX: Mapping[str, Callable[..., Source]] = {
    "hf": transformers_source,
    "diffusers": lambda spec, name, **options: diffusers_source(spec, name),
    "timm": lambda spec, name, **options: timm_source(spec, name),
    "torchvision": lambda spec, name, **options: torchvision_source(spec, name),
}


def resolve(
    spec: str | nn.Module | Callable[[], Any] | Source,
    *,
    use_cache: bool = False,
    workload: Workload = FORWARD,
    trust_remote_code: bool = False,
) -> Source:
    """Return the source for a spec, a factory or a module, without constructing the model.

    Configs are read here, outside of any fake mode, so that all errors in the spec are raised before a device
    is emulated. Python files are imported only by `Source.prepare`, because they may query devices. For a hub
    repository, configuration files and headers are downloaded.

    Args:
        spec: A text in one of `FORMS`; a factory, which is any callable without arguments, including an
            `nn.Module` class; or a module, whose weights are not read. For a factory or a module, the `spec`
            of the source is the name of the function or class. A source is returned unchanged.
        use_cache: Whether a language model returns a key-value cache without taking one as an input. Only for
            `hf:`.
        workload: The kind of call to derive inputs for. Only for `hf:` models. Other sources define their own
            inputs.
        trust_remote_code: Whether the model's code in a repository or folder may be run. Only for `hf:`.
    Returns:
        The source. If the same spec is resolved twice, its Python file is imported twice.
    Raises:
        SourceError: prefill, decode or chunk is requested for a source other than `hf:`; the form of the text
            or the model type or class is unknown; a file or package is missing; a file raises an error when
            it is imported; an attribute is missing or not callable; JSON is invalid; or a factory requires
            arguments.
        TypeError: the spec is neither a string, a factory nor a module.

    Example:
        >>> resolve("hf:gpt2").assumptions[-1]
        'hf:gpt2 does not specify a class: assuming GPT2LMHeadModel'
    """
    if isinstance(spec, Source):
        if workload.is_generated:
            raise SourceError(
                f"{spec.spec} is already resolved: for --workload {workload.name}, pass the source as text"
            )
        return spec
    form, colon, name = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if workload.name in ("prefill", "decode", "chunk") and form != "hf":
        raise SourceError(
            f"--workload {workload.name} supports hf: sources only; for other sources, the inputs determine "
            "the call"
        )
    if not isinstance(spec, str):
        return callable_source(spec)
    if not colon:
        raise SourceError(_without_form(spec))
    if form in _OF_PREFIX:
        return _OF_PREFIX[form](
            spec, name, use_cache=use_cache, workload=workload, trust_remote_code=trust_remote_code
        )
    if form.isidentifier() and (entry := plugins("sources").get(form)) is not None:
        return python_source(spec, entry)
    if form.isidentifier() and not name.replace(".", "").isidentifier():
        raise SourceError(f"{spec!r} is not a source: write {' | '.join(FORMS)}")
    return python_source(spec)


def _without_form(spec: str) -> str:
    if (Path(spec) / "config.json").is_file():
        return f"{spec!r} is not a source: write hf:{spec} to use the config.json in this folder"
    if HUB_ID.fullmatch(spec) and not spec.endswith((".py", ".json")) and not Path(spec).exists():
        return f"{spec!r} is not a source: write hf:{spec} for the repository on the Hugging Face hub"
    return f"{spec!r} is not a source: write {' | '.join(FORMS)}"


def callable_source(factory: Callable[[], Any] | nn.Module) -> Source:
    """Return the source of a factory, or of a module whose weights are not read."""
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
