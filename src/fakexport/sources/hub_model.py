"""`hf:org/name[@revision]`: the config of a repository on the hub, and what its weights say about it.

Only `config.json`, the index of the weights and headers of safetensors files are read. Code of the repository
is never run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fakexport.documents import DocumentError, integer, mapping, matching, parse_json, sequence, text
from fakexport.files import read_file
from fakexport.hub import HubError, HubName, RemoteHeader, Repository, weight_files
from fakexport.sources.dtype_text import dtype_text
from fakexport.sources.source_error import SourceError
from fakexport.sources.transformers_class import takes_class
from fakexport.sources.transformers_config import config_of, read_settings

_LIBRARY_FILES = {
    "adapter_config.json": "it is a PEFT adapter: pass its base model",
    "model_index.json": "it is a pipeline of diffusers: write diffusers: and name a model with --component",
    "params.json": "its weights are not in the format of transformers",
}


@dataclass(frozen=True)
class HubModel:
    """A model of the hub.

    Args:
        config: Its config, of transformers.
        notes: Sentences for the report: the commit, and what was not done.
        dtype: Dtype of most of its floating-point weights; None where their headers were not read.
        packed: Dtypes of weights that are quantized although the config does not say so.
        folder: Where its config is, on disk, and other configuration files that were asked for.
    """

    config: Any
    notes: tuple[str, ...]
    dtype: torch.dtype | None = None
    packed: tuple[str, ...] = ()
    folder: Path | None = None


def hub_model(name: HubName, class_name: str | None, *, files: Iterable[str] = ()) -> HubModel:
    """Return the model that a repository describes.

    Args:
        class_name: The class that the user named; None: that of `architectures`, one of transformers.
    Raises:
        SourceError: the repository cannot be read; it has no config; its class is code of its own.
    """
    try:
        repository = Repository.open(name)
        if repository.config is None:
            raise SourceError(_without_config(repository))
        settings = read_settings(repository.config, str(name))
        for file in files:
            repository.file(file)
    except HubError as error:
        raise SourceError(str(error)) from error
    own_code = _own_code(settings)
    config = _config(settings, own_code, name)
    if class_name is None:
        _check_class(config, own_code, name)
    notes = [f"{name} is commit {repository.commit} of the hub"]
    if own_code:
        notes.append("the repository's own code (auto_map) was not run: the class is that of transformers")
    if _is_quantized(settings):
        return HubModel(config, tuple(notes), folder=repository.config.parent)
    said = stored_dtypes(repository)
    notes += _compared(config.dtype, said)
    return HubModel(config, tuple(notes), said.dtype, said.packed, repository.config.parent)


def _compared(named: torch.dtype | None, said: StoredDtypes) -> tuple[str, ...]:
    """Return what the dtype of a config, and of the weights, leave open."""
    if said.fault is not None:
        return (f"the dtypes of its weights are not known: {said.fault}",)
    if said.dtype is None or said.dtype == named:
        return ()
    if named is None:
        return (f"its config names no dtype: {dtype_text(said.dtype)} as its weights",)
    return (f"its config names {dtype_text(named)}, its weights are {dtype_text(said.dtype)}",)


def _without_config(repository: Repository) -> str:
    names = repository.names()
    hint = next((hint for file, hint in _LIBRARY_FILES.items() if file in names), None)
    if hint is None and any(name.endswith(".gguf") for name in names):
        hint = "its weights are GGUF files: pass the repository that they were made from"
    return f"{repository.name} has no config.json" + (f"; {hint}" if hint else "")


def _own_code(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the classes of config and model that the repository has code for: `AutoModel: modeling.Own`."""
    named = settings.get("auto_map")
    fields = named.items() if isinstance(named, dict) else ()
    return {key: str(value) for key, value in fields if key.startswith(("AutoModel", "AutoConfig"))}


def _config(settings: dict[str, Any], own_code: Mapping[str, str], name: HubName) -> Any:
    from transformers import CONFIG_MAPPING

    model_type = settings.get("model_type")
    if own_code and model_type not in CONFIG_MAPPING:
        raise SourceError(
            f"{name}: the model is code of the repository (auto_map names {_first(own_code)}), which "
            f"fakexport does not run, and transformers has no type {model_type!r}: write a factory for it"
        )
    return config_of(settings, str(name))


def _check_class(config: Any, own_code: Mapping[str, str], name: HubName) -> None:
    """Refuse to take another class than the one that the repository names."""
    classes = [str(each) for each in getattr(config, "architectures", None) or ()]
    classes = classes or [value.rpartition(".")[2] for key, value in own_code.items() if key != "AutoConfig"]
    if not classes or any(takes_class(each, config) for each in classes):
        return
    if own_code:
        raise SourceError(
            f"{name}: the class {classes[0]} is code of the repository (auto_map names {_first(own_code)}), "
            f"which fakexport does not run: write a factory, or name a class of transformers, {name}:CLASS"
        )
    raise SourceError(
        f"{name}: transformers has no class {classes[0]} for {config.model_type!r}: install a version that "
        f"has it, write a factory, or name another class, {name}:CLASS"
    )


def _first(own_code: Mapping[str, str]) -> str:
    return next(iter(own_code.values()))


def _is_quantized(settings: Mapping[str, Any]) -> bool:
    """Return whether the config, or one inside of it, says how the weights are quantized."""
    inner = [value for key, value in settings.items() if key.endswith("_config") and isinstance(value, dict)]
    return settings.get("quantization_config") is not None or any(map(_is_quantized, inner))


_MOST_BYTES = 100_000_000
_SAMPLED = 4
_shard = matching(re.compile(r"\w[\w.-]*\.safetensors"), "shard in the folder of the index")
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class StoredDtypes:
    """What headers say about the weights.

    Args:
        dtype: Of most of the floating-point elements; None where there are none.
        packed: Dtypes of the format, `I32`, of weights that are not floating-point: they are quantized.
        fault: Why no header was read; None if one was.
    """

    dtype: torch.dtype | None = None
    packed: tuple[str, ...] = ()
    fault: str | None = None


def stored_dtypes(repository: Repository) -> StoredDtypes:
    """Return the dtypes of the weights in the only file, or in some of the shards, from first to last.

    Raises nothing for a repository without such files: a model can be checked by its config alone.
    """
    try:
        found = list(_tensors(repository.headers(_files(repository))))
    except (HubError, DocumentError, OSError) as error:
        return StoredDtypes(fault=str(error))
    floats: Counter[torch.dtype] = Counter()
    for _, kind, nbytes in found:
        if kind in _FLOATS:
            floats[_FLOATS[kind]] += nbytes // _FLOATS[kind].itemsize
    packed = sorted({kind for name, kind, _ in found if kind not in _FLOATS and _is_weight(name)})
    return StoredDtypes(max(floats, key=floats.__getitem__, default=None), tuple(packed))


def _files(repository: Repository) -> list[str]:
    found = weight_files(repository)
    if found.index is None:
        return [found.file]
    fields = mapping(parse_json(read_file(found.index, most_bytes=_MOST_BYTES)))
    shards = sorted({_shard(name) for name in mapping(fields.get("weight_map")).values()})
    step = max(1, (len(shards) - 1) // (_SAMPLED - 1))
    return shards[::step][:_SAMPLED]


def _tensors(headers: Iterable[RemoteHeader | None]) -> Iterator[tuple[str, str, int]]:
    """Yield name, dtype and bytes of each tensor."""
    for header in headers:
        fields = {} if header is None else mapping(parse_json(header.header))
        for name, field in fields.items():
            if name != "__metadata__":
                entry = mapping(field)
                yield name, text(entry.get("dtype")), _nbytes(entry.get("data_offsets"))


def _nbytes(offsets: object) -> int:
    found = [integer(offset) for offset in sequence(offsets, 2)]
    return max(0, found[-1] - found[0]) if found else 0


def _is_weight(tensor: str) -> bool:
    """Return whether a tensor is a weight by its name: masks and positions are integers by right."""
    last = tensor.rpartition(".")[2]
    return "weight" in last or last.endswith("_blocks")
