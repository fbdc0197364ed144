"""Load the config of a transformers model: the default config of a model type, or a `config.json`."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fakexport.files import read_file
from fakexport.files.documents import parse_config
from fakexport.models.sources.quantized.quantization import Quantization
from fakexport.models.sources.source_error import SourceError, did_you_mean, first_line, how_to_install
from fakexport.models.sources.transformers.config_limits import check_settings, nothing_downloaded

_MOST_BYTES = 16 << 20
_PLACEHOLDERS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
)


_IDS = ("_id", "_ids", "_index")


def default_config(model_type: str) -> tuple[Any, tuple[str, ...]]:
    """Return the default config of a model type, and a sentence for each placeholder token that was set."""
    place = f"hf:{model_type}"
    config_class = _config_class(model_type, place)
    try:
        config = _config(config_class, {}, place)
        return config, _name_placeholders(config)
    except SourceError as error:
        cause = error.__cause__
        how = None if cause is None else how_to_install(cause) or published_config(config_class)
        raise (error if how is None else SourceError(f"{error}: {how}")) from cause


def published_config(config_class: Any) -> str:
    """Return what to pass instead of a default config, as an imperative clause.

    It names the model that transformers documents for this config, or for another in the same file.
    """
    texts = (inspect.getsource(each) for each in (config_class, sys.modules[config_class.__module__]))
    named = next((found[1] for text in texts if (found := _DOCUMENTED.search(text))), None)
    how = "`hf:ORG/NAME`" if named is None else f"`hf:{named}`, which transformers documents"
    return f"pass the config of a published model: {how}, or `hf:FOLDER` with its config.json in the folder"


_LONGEST_REASON = 200  # Some messages list all existing model types.
# Matches the argument `checkpoint` of transformers' decorator `auto_docstring`.
_DOCUMENTED = re.compile(r"\bcheckpoint=[\"']([\w.-]+/[\w.-]+)[\"']")


def config_of(
    settings: Mapping[str, Any], place: str, class_name: str | None = None, config_class: Any = None
) -> Any:
    """Return the config that the content of a `config.json` describes.

    Args:
        class_name: The class that the user specified. If transformers lacks the model type, the config class
            of this class is used.
        config_class: Config class to use instead of the class in transformers.
    """
    fields = {name: value for name, value in settings.items() if name not in ("auto_map", "model_type")}
    model_type, architectures = settings.get("model_type"), settings.get("architectures")
    if model_type is None and not architectures:
        raise SourceError(f"{place} is not a model config: it has neither model_type nor architectures")
    config_class = config_class or known_config_class(settings)
    if config_class is None:
        found = _class_with_config(architectures or () if model_type is None else (class_name,))
        if found is None:
            raise SourceError(f"{place}{_unknown(model_type, architectures or (), own_code(settings))}")
        config_class = found.config_class
    config = _config(config_class, fields, place)
    _check_sizes_read(config, fields, place)
    return config


def known_config_class(settings: Mapping[str, Any]) -> Any:
    """Return the config class of transformers for a config's model type, or None."""
    from transformers import CONFIG_MAPPING

    model_type = str(settings.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        return None
    return CONFIG_MAPPING[model_type]  # `CONFIG_MAPPING.get` does not import the class.


def own_code(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the repository's own class for each auto class: `{"AutoModel": "modeling.Own"}`."""
    named = settings.get("auto_map")
    fields = named.items() if isinstance(named, dict) else ()
    return {key: str(value) for key, value in fields if key.startswith(("AutoModel", "AutoConfig"))}


def about_own_code(own: Mapping[str, str]) -> str:
    """Return a clause that says where the code of a model is, and how to use it."""
    return (
        f"the model is code of the repository (auto_map refers to {next(iter(own.values()))}): read that "
        "code, then run it with --trust-remote-code, an option of check, export, plan, inspect, compare and "
        "verify-weights, or write a factory"
    )


def generic_config(settings: Mapping[str, Any], place: str) -> Any:
    """Return a config with only those settings that do not depend on the type of the model."""
    from transformers import PreTrainedConfig

    config = _config(PreTrainedConfig, {name: settings[name] for name in _GENERIC if name in settings}, place)
    config.model_type = str(settings.get("model_type"))
    return config


_GENERIC = ("dtype", "torch_dtype", "quantization_config", "architectures", "tie_word_embeddings")


def _unknown(model_type: Any, architectures: Sequence[Any], own: Mapping[str, str]) -> str:
    """Return why transformers has no class for a config, and what to do, as the end of a message."""
    import transformers

    if model_type is None:
        return f" has no model_type, and transformers has no class {architectures[0]!r}"
    lacks = f"transformers {transformers.__version__} has no model type {str(model_type)!r}"
    if (known := _class_with_config(architectures)) is not None:
        return (
            f": {lacks}; its architectures contain {known.__name__}, which transformers has: "
            f"append :{known.__name__} to the source to check that class"
        )
    if own:
        return f": {lacks}; {about_own_code(own)}"
    return f": {lacks}: install a version that has it, or write a factory"


def _check_sizes_read(config: Any, settings: Mapping[str, Any], place: str) -> None:
    """Reject a config with sizes at the top level that transformers reads from a nested config.

    The original LLaVA repositories have such configs. transformers uses defaults for the missing nested
    config.
    """
    inner = config.get_text_config()
    if inner is config or any(getattr(config, name, None) is inner for name in settings):
        return
    for name, value in settings.items():
        read = getattr(inner, name, value)
        if type(value) is int and not name.endswith(_IDS) and type(read) is int and read != value:
            raise SourceError(
                f"{place}: {type(config).__name__} of transformers ignores {name}={value:,}: it "
                "reads the sizes of the text model from a text_config, which is missing, and "
                f"would use the default {read:,}. Pass the repository that was converted for "
                "transformers (its name often ends in -hf)"
            )


def read_settings(path: Path, place: str) -> dict[str, Any]:
    """Read a `config.json` whose size and values are within the limits."""
    try:
        settings = parse_config(read_file(path, most_bytes=_MOST_BYTES))
    except FileNotFoundError as error:
        near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.json")))
        raise SourceError(f"no such file: {path}{near}") from error
    except json.JSONDecodeError as error:
        raise SourceError(
            f"{place} is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from error
    except OSError as error:
        raise SourceError(f"{place}: {error.strerror or error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{place} cannot be read: {first_line(error)}") from error
    if not isinstance(settings, dict):
        raise SourceError(
            f"{place} is not a model config: it contains a {type(settings).__name__}, not an object"
        )
    check_settings(settings, place)
    return settings


def _name_placeholders(config: Any) -> tuple[str, ...]:
    """Set those placeholder tokens of a config that are None, and return a sentence for each.

    Some model types have no default for such a token, because it depends on the tokenizer. The value does not
    affect the program.
    """
    empty = [name for name in _PLACEHOLDERS if getattr(config, name, 0) is None]
    tokens = itertools.count(config.get_text_config().vocab_size - 1, -1) if empty else itertools.count()
    named: list[str] = []
    for name in empty:
        if getattr(config, name) is None:  # Some configs have two names for one setting.
            setattr(config, name, next(tokens))
            token = getattr(config, name)
            named.append(f"{config.model_type}'s default configuration has no {name}: assuming {token}")
    return tuple(named)


def take_quantization(config: Any) -> Quantization | None:
    """Remove the quantization settings from a config and its nested configs, and return the outermost.

    Return None if there are none, or if they include `"dequantize": true`.
    """
    inner = [value for name in config.sub_configs if (value := getattr(config, name, None)) is not None]
    found = [take_quantization(each) for each in inner if hasattr(each, "sub_configs")]
    if (settings := getattr(config, "quantization_config", None)) is not None:
        known = settings if isinstance(settings, dict) else {}
        if known.get("dequantize") is not True:
            method = " ".join(str(known[name]) for name in ("quant_method", "quant_algo") if known.get(name))
            found.append(Quantization(method or "no method", known))
        del config.quantization_config
    return next((each for each in reversed(found) if each), None)


def set_use_cache(config: Any, use_cache: bool) -> None:
    """Set `use_cache` in a config and its nested configs, if they have this field."""
    if hasattr(config, "use_cache"):
        config.use_cache = use_cache
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None and not isinstance(part, dict):
            set_use_cache(part, use_cache)


def _config_class(model_type: str, place: str) -> Any:
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        near = did_you_mean(model_type, CONFIG_MAPPING.keys())
        raise SourceError(f"{place}: transformers has no model type {model_type!r}{near}")
    return CONFIG_MAPPING[model_type]


def _class_with_config(names: Iterable[Any]) -> Any:
    """Return the first model class of transformers that has one of these names, or None."""
    import transformers

    classes = (getattr(transformers, str(name), None) for name in names)
    return next((each for each in classes if getattr(each, "config_class", None) is not None), None)


def _config(config_class: Any, settings: dict[str, Any], place: str) -> Any:
    try:
        with nothing_downloaded():
            return config_class.from_dict(settings)
    except Exception as error:  # Each config validates in its own way.
        said = first_line(error)
        said = said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]} ..."
        raise SourceError(f"{place}: {config_class.__name__} rejects this config: {said}") from error
