"""Which class of transformers a config becomes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from fakexport.sources.source_error import SourceError, did_you_mean

# From the most telling to the most general: a type that is in several is taken by the first.
# Types with a masked and a causal head are encoders; the others of the causal ones are decoders.
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
    """Return the model class for a config, and a sentence if no one named it.

    Args:
        class_name: An auto class or a model class; None: the first of the config's `architectures` that
            transformers has, else the first of `AUTO_CLASSES` that takes this type, if there is one that
            takes no other.
    Raises:
        SourceError: transformers has no class of that name, or none for this config, or it takes another.
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
    missing = f"transformers has no {architectures[0]}" if architectures else f"{place} names no class"
    return found, f"{missing}: {found.__name__} assumed"


def _assumed_class(config: Any) -> Any:
    names = [name for name in AUTO_CLASSES if name != "AutoModelForCTC" or _has_vocabulary(config)]
    names = names if _has_head(config) else ["AutoModel"]
    autos = [auto for name in names if (auto := _from_auto(name, config)) is not None]
    # Of a composite type a class may be registered that takes but a part of it, or one of a related type.
    found = next((auto for auto in autos if _is_for(auto, config)), None) or _own_class(config)
    return found or next(iter(autos), None)


def _has_vocabulary(config: Any) -> bool:
    """Return False where `vocab_size` is None: speech encoders that are not trained to write yet."""
    return getattr(config, "vocab_size", 0) is not None


def _has_head(config: Any) -> bool:
    """Return False where the config of a head is empty: Sapiens 2 before it is trained for a task."""
    return getattr(getattr(config, "head_config", None), "upsample_out_channels", ()) is not None


def takes_class(name: str, config: Any) -> bool:
    """Return whether transformers has a class of this name that takes this config."""
    found = _class(name)
    return found is not None and _takes(found, config)


def text_part(config: Any, model_class: Any) -> Any:
    """Return the config that the class is built from: a text-only class of a multimodal type takes a part."""
    part = config.sub_configs.get("text_config")
    return config.get_text_config() if part is not None and model_class.config_class is part else config


def _named_class(config: Any, name: str, place: str) -> Any:
    if (registered := _from_auto(name, config)) is not None:
        return registered  # Some types share the class of another: LlamaForCausalLM is internlm3's.
    model_class = _class(name)
    if model_class is None:
        if name not in _class_names():
            raise SourceError(
                f"{place}: transformers has no class {name!r}{did_you_mean(name, _class_names())}"
            )
        taken = ", ".join(dict.fromkeys(_fitting(config)))
        raise SourceError(
            f"{place}: {name} does not accept {config.model_type!r}; these do: {taken or 'none'}"
        )
    if not _takes(model_class, config):
        wanted = model_class.config_class.__name__
        raise SourceError(f"{place}: {name} expects a {wanted}, not a {type(config).__name__}")
    return model_class


def _class(name: str) -> Any:
    """Return the model class of a name, or None for an auto class and for what is not a model."""
    import transformers

    found = getattr(transformers, name, None)
    try:
        return (
            found if getattr(found, "config_class", None) is not None and hasattr(found, "forward") else None
        )
    except ImportError as error:  # a stand-in for a class whose dependency is missing
        raise SourceError(f"{name} cannot be imported: {error}") from error


def _from_auto(name: str, config: Any) -> Any:
    import transformers

    mapping = getattr(getattr(transformers, name, None), "_model_mapping", None)
    if mapping is None or type(config) not in mapping:
        return None
    try:
        found = mapping[type(config)]
    except (ImportError, ValueError):  # listed, and not there, or not without another package
        return None
    return found[0] if isinstance(found, (list, tuple)) else found


def _own_class(config: Any) -> Any:
    """Return the first class for just this config in the file that is next to the config's own."""
    models = _modeling_file(config)
    public = (models.get(name) for name in models.get("__all__", ()))
    found = next((model_class for model_class in public if _is_for(model_class, config)), None)
    if found is not None:
        return found
    # Of those that are not public, the one that is made of the others comes last.
    return next((each for each in reversed(models.values()) if _is_for(each, config)), None)


def _modeling_file(config: Any) -> dict[str, Any]:
    """Return what is in the file next to the config's own, in order."""
    try:
        return vars(importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_")))
    except ImportError:
        return {}


def _is_for(model_class: Any, config: Any) -> bool:
    try:
        is_fitting = getattr(model_class, "config_class", None) is type(config)
    except ImportError:  # a stand-in for a class whose dependency is missing
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
