"""Read the `adapter_config.json` of a PEFT adapter, and reject unsupported settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakexport.files import escaped, read_file
from fakexport.files.documents import (
    DocumentError,
    decimal,
    field,
    integer,
    items,
    mapping,
    parse_json,
    search_pattern,
)
from fakexport.models.hub import HUB_ID
from fakexport.models.sources.source_error import SourceError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE_PREFIX = "base_model.model."
"""The prefix that peft adds to module paths."""

_MOST_BYTES = 1 << 20
_KEPT = frozenset(
    {"alpha_pattern", "bias", "exclude_modules", "fan_in_fan_out", "layers_pattern", "layers_to_transform"}
    | {"lora_alpha", "lora_bias", "modules_to_save", "r", "rank_pattern", "target_modules", "task_type"}
    | {"use_dora", "use_rslora"}
)
# Settings that do not affect a model in eval mode after loading its weights.
_WITHOUT_EFFECT = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "inference_mode"}
    | {"init_lora_weights", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type"}
    | {"peft_version", "qalora_group_size", "revision", "runtime_config"}
)
# Values of `init_lora_weights` that do not change the base model's weights. Other values do.
_HARMLESS_INITS = (True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class AdapterFolder:
    """A folder that peft's `save_pretrained` wrote, and the relevant settings of its config."""

    path: Path
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> AdapterFolder:
        """Read the LoRA adapter in a folder.

        Raises:
            SourceError: the folder has no adapter, or its adapter has a different type or unsupported
                settings. The message is a single line.
        """
        folder = Path(path)
        try:
            content = read_file(folder / CONFIG, most_bytes=_MOST_BYTES)
        except OSError as error:
            raise SourceError(f"{folder} is not a PEFT adapter: no {CONFIG}{_of_the_hub(folder)}") from error
        try:
            found = mapping(parse_json(content, most_bytes=_MOST_BYTES))
            _check_types(found)
        except DocumentError as error:
            raise SourceError(f"{folder / CONFIG}: {error}") from error
        if (kind := found.get("peft_type")) != "LORA":
            raise SourceError(
                f"{folder} is an adapter of type {escaped(str(kind))}: only LORA adapters are supported"
            )
        start = found.get("init_lora_weights", True)
        if start not in _HARMLESS_INITS:
            raise SourceError(
                f"{folder}: init_lora_weights={start!r} also changes the base model's weights: "
                "save the adapter with peft's path_initial_model_for_weight_conversion, and use "
                "the result"
            )
        for name, value in found.items():
            if name not in _KEPT | _WITHOUT_EFFECT and value:
                raise SourceError(f"{folder / CONFIG}: the setting {escaped(name)} is not supported")
        return cls(folder, {name: value for name, value in found.items() if name in _KEPT})

    @property
    def weights(self) -> Path:
        """The path of the file with the adapter's tensors. The file may not exist."""
        return self.path / WEIGHTS


def _check_types(found: dict[str, Any]) -> None:
    """Check the types of the fields that peft or fakexport uses, because the file is untrusted."""
    for name in found.keys() & _READERS.keys():
        if found[name] is not None:
            field(found, name, _READERS[name])


def _rank(value: Any) -> int:
    return integer(value, 1, 1 << 20)


def _patterns(value: Any) -> object:
    return items(value, search_pattern) if isinstance(value, list) else search_pattern(value)


def _by_pattern(read: Callable[[Any], object]) -> Callable[[Any], object]:
    def reading(value: Any) -> object:
        by_pattern = mapping(value)
        return {search_pattern(name): field(by_pattern, name, read) for name in by_pattern}

    return reading


_READERS: Mapping[str, Callable[[Any], object]] = {
    "alpha_pattern": _by_pattern(decimal),
    "exclude_modules": _patterns,
    "layers_pattern": _patterns,
    "lora_alpha": decimal,
    "r": _rank,
    "rank_pattern": _by_pattern(_rank),
    "target_modules": _patterns,
}


def _of_the_hub(folder: Path) -> str:
    """Return how to download an adapter if the path looks like a hub repository, else ""."""
    name = folder.as_posix().removeprefix("hf:")
    if folder.exists() or HUB_ID.fullmatch(name) is None:
        return ""
    return f"; for an adapter on the hub, run `hf download {name} --local-dir FOLDER` and pass the folder"
