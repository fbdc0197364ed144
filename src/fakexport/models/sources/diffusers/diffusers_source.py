"""Sources from diffusers: `diffusers:CLASS`, `diffusers:CONFIG.json`, `diffusers:FOLDER[/COMPONENT]`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport.error import type_and_line
from fakexport.models.sources.diffusers.diffusers_config import (
    VAE_HALVES,
    DiffusersModel,
    Pipeline,
    described,
    model_of,
)
from fakexport.models.sources.diffusers.diffusers_halves import HALVES, half_class, half_inputs, has_halves
from fakexport.models.sources.diffusers.diffusers_inputs import derive_inputs
from fakexport.models.sources.python.python_factory import no_inputs
from fakexport.models.sources.quantized.quantization import Quantization
from fakexport.models.sources.source import Source
from fakexport.models.sources.source_error import SourceError, import_library, note_default_config
from fakexport.models.sources.transformers.config_limits import within_limits
from fakexport.models.sources.transformers.transformers_config import read_settings
from fakexport.models.sources.transformers.transformers_source import raised_anyway, transformers_source


def diffusers_source(spec: str, name: str) -> Source:
    """Return the source of a diffusers model with untrained weights, or of a part of a pipeline.

    Args:
        name: A class, a `config.json`, its folder, or the folder of a pipeline; and `/COMPONENT`, if any.
    """
    import_library("diffusers", spec)
    found, part = described(name)
    whole = _pipeline(spec, found) if isinstance(found, Pipeline) else _model(spec, found)
    if part is None:
        return whole
    if whole.parts is None:
        raise SourceError(
            f"{spec}: {name.rpartition('/')[0]} is a single program and has no component {part!r}"
        )
    return whole.parts(spec, part)


def _model(spec: str, found: DiffusersModel, half: str | None = None) -> Source:
    check_usable(spec, found)
    has_both = has_halves(found.model_class)
    model_class = found.model_class if half is None else half_class(found.model_class, half)
    settings = found.settings
    quantization = _quantization(settings.get("quantization_config"))

    def construct() -> nn.Module:
        def build() -> nn.Module:
            built: nn.Module = model_class.from_config(dict(settings))
            return built

        with within_limits(spec):
            check_packages(found)
            try:
                module = build()
            except Exception as error:
                is_default = not settings and hasattr(model_class, "from_config")
                if is_default and raised_anyway(build) == type_and_line(error):
                    note_default_config(error, "diffusers", model_class.__name__)
                raise
        _keep_in_float32(module)
        if quantization is not None:
            quantization.leave_out(module, "fakexport does not support the quantizers of diffusers")
        return module.eval()

    def parts(text: str, name: str) -> Source:
        if name not in HALVES:
            raise SourceError(f"{spec} has no component {name!r}: it has {' and '.join(HALVES)}")
        return _model(text, found, name)

    needs_half = has_both and half is None
    neither = _refusing(
        f"{model_class.__name__} needs two programs: export one with --component encoder and "
        "one with --component decoder"
    )
    inputs = derive_inputs if half is None else half_inputs
    return Source(
        spec=spec,
        kind="diffusers",
        factory=construct,
        example_inputs=neither if needs_half else inputs,
        assumptions=found.notes,
        component=half,
        parts=parts if needs_half else None,
        quantization=quantization,
        published=None if settings else PUBLISHED,
    )


def _quantization(settings: object) -> Quantization | None:
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    return Quantization(str(method or "no method"), None)


def _refusing(message: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise SourceError(message)

    return refuse


def _pipeline(spec: str, pipeline: Pipeline) -> Source:
    names = pipeline.names

    refuse = _refusing(f"{spec} is a pipeline: select one of its models with --component {' | '.join(names)}")

    def parts(text: str, name: str) -> Source:
        component, _, half = name.partition("_") if name in VAE_HALVES else (name, "", "")
        if name == "vae" and name in pipeline.components:
            raise SourceError(f"{text}: the vae is two programs, vae_encoder and vae_decoder: select one")
        if name not in names:
            raise SourceError(f"{spec} has no model {name!r}: it has {', '.join(names)}")
        library, class_name = pipeline.components[component]
        if library == "transformers":
            name = f"{pipeline.spec(component)}:{class_name}"
            return transformers_source(text, name, returns_hidden_states=True)
        if library != "diffusers":
            raise SourceError(
                f"{text}: {class_name} is custom code in the pipeline ({library}), not a class of "
                "diffusers or transformers"
            )
        path = pipeline.config(component)
        found = model_of(read_settings(path, str(path)), str(path))
        return _model(text, replace(found, notes=(*pipeline.notes, *found.notes)), half or None)

    return Source(spec=spec, kind="diffusers", factory=refuse, example_inputs=no_inputs(spec), parts=parts)


def _keep_in_float32(module: nn.Module) -> None:
    """Convert the weights in `_keep_in_fp32_modules` to float32, as `from_pretrained` does for any dtype."""
    kept = getattr(module, "_keep_in_fp32_modules", None) or ()
    kept = {kept} if isinstance(kept, str) else set(kept)
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and kept.intersection(name.split(".")):
            parameter.data = parameter.data.to(torch.float32)
    converted: dict[int, torch.Tensor] = {}
    for name, buffer in list(module.named_buffers(remove_duplicate=False)):
        if buffer.is_floating_point() and kept.intersection(name.split(".")):
            # Create a new tensor, because a view would keep the dtype that its base had before the
            # conversion.
            owner, _, last = name.rpartition(".")
            made = converted.setdefault(id(buffer), buffer.to(torch.float32))
            setattr(module.get_submodule(owner), last, made)


PUBLISHED = (
    "pass the config of a published model: `diffusers:ORG/NAME`, or `diffusers:FOLDER` with its config.json"
)
"""What to pass instead of a default configuration, as an imperative clause."""

# Classes that only contain weights for another model -> the class of that model.
_PARTS: Mapping[str, str] = MappingProxyType(
    {"MotionAdapter": "UNetMotionModel", "ControlNetXSAdapter": "UNetControlNetXSModel"}
)
# Classes that are built from other models and have no weights or config of their own.
_OF_OTHERS = ("MultiControlNetModel", "MultiAdapter")
# In these classes, `forward` resizes a padding mask with torchvision, which diffusers only imports if it is
# installed. Without torchvision, `forward` raises a `NameError`. The first class has a setting that disables
# resizing.
_WITH_TORCHVISION: Mapping[str, str | None] = MappingProxyType(
    {"CosmosTransformer3DModel": "concat_padding_mask", "CosmosControlNetModel": None}
)


def check_usable(spec: str, found: DiffusersModel) -> None:
    """Reject a class that is a part of a model, consists of several models, or has no default config."""
    name = found.model_class.__name__
    what = spec if name in spec else f"{spec}: {name}"
    if (whole := _PARTS.get(name)) is not None:
        raise SourceError(f"{what} has no forward because it is a part of {whole}: check {whole} instead")
    if name.endswith(_OF_OTHERS):
        raise SourceError(f"{what} consists of other models and has no config: check each of them")
    if not found.settings and (missing := _required(found.model_class)):
        raise SourceError(
            f"{what} has no default configuration because it requires {', '.join(missing)}: {PUBLISHED}"
        )


def check_packages(found: DiffusersModel) -> None:
    """Import a package that the `forward` of a class needs, and that diffusers does not look for."""
    name = found.model_class.__name__
    if name not in _WITH_TORCHVISION:
        return
    setting = _WITH_TORCHVISION[name]
    if setting is None or found.settings.get(setting, True):
        import_module("torchvision")


def _required(model_class: Any) -> list[str]:
    _, *parameters = inspect.signature(model_class.__init__).parameters.values()
    return [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
