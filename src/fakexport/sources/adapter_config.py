"""The `adapter_config.json` of a PEFT adapter: what it asks for, or why it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakexport.diagnostics import escaped
from fakexport.documents import (
    DocumentError,
    decimal,
    field,
    integer,
    items,
    mapping,
    parse_json,
    search_pattern,
)
from fakexport.files import read_file
from fakexport.hub import HUB_ID
from fakexport.sources.source_error import SourceError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE_PREFIX = "base_model.model."
"What peft writes before the path of a module."

_MOST_BYTES = 1 << 20
_KEPT = frozenset(
    {"alpha_pattern", "bias", "exclude_modules", "fan_in_fan_out", "layers_pattern", "layers_to_transform"}
    | {"lora_alpha", "lora_bias", "modules_to_save", "r", "rank_pattern", "target_modules", "task_type"}
    | {"use_dora", "use_rslora"}
)
# What says nothing about a model in eval mode that gets all of its weights.
_WITHOUT_EFFECT = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "inference_mode"}
    | {"init_lora_weights", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type"}
    | {"peft_version", "qalora_group_size", "revision", "runtime_config"}
)
# Others change the weights of the base model, which the adapter is then of.
_HARMLESS_INITS = (True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class AdapterFolder:
    """A folder that `save_pretrained` of peft wrote.

    Args:
        path: The folder.
        settings: Those of its `adapter_config.json` that make a difference.
    """

    path: Path
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> AdapterFolder:
        """Return the LoRA adapter of a folder.

        Raises:
            SourceError: There is none; it is of another kind, or asks for what is not supported. One line.
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
                f"{folder}: init_lora_weights={start!r} changes the base model's weights as well: save the "
                f"adapter with peft's path_initial_model_for_weight_conversion, and use the result"
            )
        for name, value in found.items():
            if name not in _KEPT | _WITHOUT_EFFECT and value:
                raise SourceError(f"{folder / CONFIG}: {escaped(name)} is not supported")
        return cls(folder, {name: value for name, value in found.items() if name in _KEPT})

    @property
    def weights(self) -> Path:
        """The file of its tensors, which need not be there."""
        return self.path / WEIGHTS


def _check_types(found: dict[str, Any]) -> None:
    """Check what peft or we compute with, and compile: a file may have anything in its fields."""
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
    """Return how to get an adapter of the hub, if a path that does not exist is a name of it."""
    name = folder.as_posix().removeprefix("hf:")
    if folder.exists() or HUB_ID.fullmatch(name) is None:
        return ""
    return f"; for one of the hub, run `hf download {name} --local-dir FOLDER` and pass the folder"
