"""Choose the transformers class for a config."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from fakexport.models.sources.source_error import SourceError, did_you_mean

# From the most specific to the most general. For a model type, the first auto class that supports it is used.
# Types that support both a masked and a causal head are encoders. Other types that support a causal head are
# decoders.
AUTO_CLASSES = (
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageTextToText",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMultimodalLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForCTC",
    "AutoModelForRNNT",
    "AutoModelForTDT",
    "AutoModelForZeroShotImageClassification",
    "AutoModelForZeroShotObjectDetection",
    "AutoModelForImageClassification",
    "AutoModelForObjectDetection",
    "AutoModelForUniversalSegmentation",
    "AutoModelForDepthEstimation",
    "AutoModelForSemanticSegmentation",
    "AutoModelForVideoClassification",
    "AutoModelForAudioClassification",
    "AutoModelForMaskGeneration",
    "AutoModelForTokenClassification",
    "AutoModelForVisualQuestionAnswering",
    "AutoModelForTextToSpectrogram",
    "AutoModelForTextToWaveform",
    "AutoModelForTimeSeriesPrediction",
    "AutoModelForPreTraining",
    "AutoModel",
    "AutoModelForImageMatting",
    "AutoModelForKeypointDetection",
    "AutoModelForKeypointMatching",
    "AutoModelForPoseEstimation",
    "AutoModelForTableRecognition",
    "AutoModelForNormalEstimation",
    "AutoModelForDecision",
    "AutoBackbone",
)


_MODEL_NAME = re.compile(r"(For[A-Z]\w+|Model|HeadModel)$")


def model_class_for(config: Any, class_name: str | None, place: str) -> tuple[Any, str | None]:
    """Return the model class for a config, and a sentence for the report if the class is an assumption.

    Args:
        class_name: An auto class or a model class. None means the first of the config's `architectures` that
            transformers has. If it has none of them, the first of `AUTO_CLASSES` that supports this type is
            used, preferably with a class for exactly this type.
    Raises:
        SourceError: transformers has no class with that name, no class for this config, or the class requires
            a different config.
    """
    if class_name is not None:
        return _named_class(config, class_name, place), None
    architectures = getattr(config, "architectures", None) or []
    for name in architectures:
        if takes_class(str(name), config):
            return _class(str(name)), None
    found = _assumed_class(config)
    if found is None:
        raise SourceError(f"{place}: no class of transformers accepts {config.model_type!r}")
    missing = (
        f"transformers has no {architectures[0]}" if architectures else f"{place} does not specify a class"
    )
    return found, f"{missing}: assuming {found.__name__}"


def _assumed_class(config: Any) -> Any:
    names = [name for name in AUTO_CLASSES if name != "AutoModelForCTC" or _has_vocabulary(config)]
    names = names if _has_head(config) else ["AutoModel"]
    autos = [auto for name in names if (auto := _from_auto(name, config)) is not None]
    # For a composite type, the registered class may accept only a part of the type, or a related type.
    found = next((auto for auto in autos if _is_for(auto, config)), None) or _own_class(config)
    return found or next(iter(autos), None)


def _has_vocabulary(config: Any) -> bool:
    """Return whether `vocab_size` is set. It is None for a speech encoder without a trained head."""
    return getattr(config, "vocab_size", 0) is not None


def _has_head(config: Any) -> bool:
    """Return whether the head has a config. Sapiens 2 models without a task have an empty one."""
    return getattr(getattr(config, "head_config", None), "upsample_out_channels", ()) is not None


def takes_class(name: str, config: Any) -> bool:
    """Return whether transformers has a class with this name that accepts the config."""
    found = _class(name)
    return found is not None and _takes(found, config)


def text_part(config: Any, model_class: Any) -> Any:
    """Return the config that a class uses: the nested text config for a text-only class, else the config."""
    part = config.sub_configs.get("text_config")
    return config.get_text_config() if part is not None and model_class.config_class is part else config


def _named_class(config: Any, name: str, place: str) -> Any:
    if (registered := _from_auto(name, config)) is not None:
        return registered  # Some types use the class of a different type: internlm3 uses LlamaForCausalLM.
    model_class = _class(name)
    if model_class is None:
        if name not in _class_names():
            raise SourceError(
                f"{place}: transformers has no class {name!r}{did_you_mean(name, _class_names())}"
            )
        taken = ", ".join(dict.fromkeys(_fitting(config)))
        raise SourceError(
            f"{place}: {name} does not accept the model type {config.model_type!r}; classes that do: "
            f"{taken or 'none'}"
        )
    if not _takes(model_class, config):
        wanted = model_class.config_class.__name__
        raise SourceError(f"{place}: {name} expects a {wanted}, not a {type(config).__name__}")
    return model_class


def _class(name: str) -> Any:
    """Return the model class with this name, or None if the name is unknown or names an auto class."""
    import transformers

    found = getattr(transformers, name, None)
    try:
        return (
            found if getattr(found, "config_class", None) is not None and hasattr(found, "forward") else None
        )
    except ImportError as error:  # A stand-in for a class whose dependency is missing.
        raise SourceError(f"{name} cannot be imported: {error}") from error


def _from_auto(name: str, config: Any) -> Any:
    import transformers

    mapping = getattr(getattr(transformers, name, None), "_model_mapping", None)
    if mapping is None or type(config) not in mapping:
        return None
    try:
        found = mapping[type(config)]
    except (ImportError, ValueError):  # The class does not exist, or needs a missing package.
        return None
    return found[0] if isinstance(found, (list, tuple)) else found


def _own_class(config: Any) -> Any:
    """Return the class in the config's modeling file whose `config_class` is the config's class, or None."""
    models = _modeling_file(config)
    public = (models.get(name) for name in models.get("__all__", ()))
    found = next((model_class for model_class in public if _is_for(model_class, config)), None)
    if found is not None:
        return found
    # If there are several private classes, the last one contains the others.
    return next((each for each in reversed(models.values()) if _is_for(each, config)), None)


def _modeling_file(config: Any) -> dict[str, Any]:
    """Return the global names in the modeling file that belongs to a config, with their values, in order."""
    try:
        return vars(importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_")))
    except ImportError:
        return {}


def _is_for(model_class: Any, config: Any) -> bool:
    try:
        is_fitting = getattr(model_class, "config_class", None) is type(config)
    except ImportError:  # A stand-in for a class whose dependency is missing.
        return False
    return is_fitting and not model_class.__name__.endswith("PreTrainedModel")


def _fitting(config: Any) -> Iterator[str]:
    for name in AUTO_CLASSES:
        if _from_auto(name, config) is not None:
            yield name


def _class_names() -> list[str]:
    import transformers

    return [name for name in dir(transformers) if name.startswith("AutoModel") or _MODEL_NAME.search(name)]


def _takes(model_class: Any, config: Any) -> bool:
    return isinstance(config, model_class.config_class) or text_part(config, model_class) is not config
