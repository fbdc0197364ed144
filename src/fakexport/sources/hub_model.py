"""A published model: its config, and what other files of the repository or folder say about its weights.

Only `config.json`, `hf_quant_config.json`, the index of the weights and headers of safetensors files are
read. Code of the repository is never run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fakexport.documents import (
    DocumentError,
    integer,
    mapping,
    matching,
    optional,
    parse_json,
    sequence,
    text,
)
from fakexport.files import read_file
from fakexport.hub import HubError, HubName, LocalFolder, RemoteHeader, Repository, weight_files
from fakexport.sources.dtype_text import dtype_text
from fakexport.sources.source_error import SourceError
from fakexport.sources.transformers_class import takes_class
from fakexport.sources.transformers_config import config_of, own_code, read_settings

_QUANTIZATION = "hf_quant_config.json"
_LIBRARY_FILES = {
    "adapter_config.json": "it is a PEFT adapter: pass its base model",
    "model_index.json": "it is a pipeline of diffusers: write diffusers: and name a model with --component",
    "params.json": "its weights are not in the format of transformers",
}


@dataclass(frozen=True)
class HubModel:
    """A model as it was published.

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
        unknown = () if _is_quantized(settings) else tuple(_add_quantization_of(repository, settings))
        for file in files:
            repository.file(file)
    except HubError as error:
        raise SourceError(str(error)) from error
    config = config_of(settings, str(name), class_name)
    if class_name is None:
        _check_class(config, own_code(settings), name)
    notes = (f"{name} is commit {repository.commit} of the hub", *_class_notes(settings, config), *unknown)
    said = StoredDtypes() if _is_quantized(settings) else stored_dtypes(repository)
    return _described(config, notes, said, repository.config.parent)


def folder_model(path: Path, class_name: str | None) -> HubModel:
    """Return the model that a folder, or a file of the form of `config.json`, describes.

    Args:
        path: A folder with a `config.json`, or a file with any name. Headers of weights are read in a folder.
        class_name: The class that the user named.
    Raises:
        SourceError: as `read_settings` and `config_of`; the code that an `auto_map` names is not loaded.
    """
    file = path / "config.json" if path.is_dir() else path
    settings = read_settings(file, str(file))
    beside = file.with_name(file.name.removesuffix("config.json") + _QUANTIZATION)
    _add_quantization(settings, beside if file.name.endswith("config.json") and beside.is_file() else None)
    config = config_of(settings, str(file), class_name)
    notes = _class_notes(settings, config)
    said, folder = StoredDtypes(), LocalFolder(file.parent)
    if file.name == "config.json" and not _is_quantized(settings) and _has_weights(folder):
        said = stored_dtypes(folder)
    return _described(config, notes, said, file.parent)


def _add_quantization_of(repository: Repository, settings: dict[str, Any]) -> Iterator[str]:
    """Add the quantization of a repository; yield a sentence if it cannot be known whether it has one."""
    try:
        path = repository.file(_QUANTIZATION)
    except HubError as error:
        yield f"whether it is quantized by {_QUANTIZATION} is not known: {error}"
    else:
        _add_quantization(settings, path)


def _add_quantization(settings: dict[str, Any], path: Path | None) -> None:
    """Add what NVIDIA's ModelOpt writes next to a config to a config that says nothing of a quantization.

    Source: ModelOpt's `hf_quant_config.json`, which vLLM and TensorRT-LLM read beside `config.json`.

    Raises:
        SourceError: the file is not of that form.
    """
    if path is None or _is_quantized(settings):
        return
    try:
        fields = mapping(parse_json(read_file(path, most_bytes=_MOST_BYTES)))
        found = mapping(fields.get("quantization"))
        if optional(found.get("quant_algo"), text) is not None:
            settings["quantization_config"] = {**found, "quant_method": "modelopt"}
    except (DocumentError, OSError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def _has_weights(folder: LocalFolder) -> bool:
    return any(name.endswith(".safetensors") for name in folder.names())


def _class_notes(settings: Mapping[str, Any], config: Any) -> Iterator[str]:
    """Yield what was taken of transformers although the config names something else."""
    if own_code(settings):
        yield "the repository's own code (auto_map) was not run: the class is that of transformers"
    if (named := settings.get("model_type", config.model_type)) != config.model_type:
        yield f"its type {named!r} is unknown to transformers: read as {config.model_type!r}, as you asked"


def _described(config: Any, notes: Iterable[str], said: StoredDtypes, folder: Path) -> HubModel:
    """Return the model with its dtype: that of the config, of the weights, or of a config inside of it."""
    own, inner = config.dtype, _inner_dtype(config)
    dtype, found = said.dtype or (None if own else inner[1] if inner else None), list(notes)
    if said.fault is not None:
        found.append(f"the dtypes of its weights are not known: {said.fault}")
    elif own is not None and said.dtype not in (None, own):
        found.append(f"its config names {dtype_text(own)}, its weights are {dtype_text(said.dtype)}")
    if own is None and said.dtype is not None:
        found.append(f"its config names no dtype: {dtype_text(said.dtype)} as its weights")
    elif own is None and inner is not None:
        found.append(f"its config names no dtype: {dtype_text(inner[1])} as its {inner[0]}")
    return HubModel(config, tuple(found), dtype, said.packed, folder)


def _inner_dtype(config: Any) -> tuple[str, torch.dtype] | None:
    """Return the first config inside of a config that names a dtype, and that dtype; the text's first."""
    names = sorted(config.sub_configs, key=lambda name: name != "text_config")
    found = ((name, getattr(getattr(config, name, None), "dtype", None)) for name in names)
    return next(((name, dtype) for name, dtype in found if isinstance(dtype, torch.dtype)), None)


def _without_config(repository: Repository) -> str:
    names = repository.names()
    hint = next((hint for file, hint in _LIBRARY_FILES.items() if file in names), None)
    if hint is None and any(name.endswith(".gguf") for name in names):
        hint = "its weights are GGUF files: pass the repository that they were made from"
    return f"{repository.name} has no config.json" + (f"; {hint}" if hint else "")


def _check_class(config: Any, own: Mapping[str, str], name: HubName) -> None:
    """Refuse to take another class than the one that the repository names."""
    classes = [str(each) for each in getattr(config, "architectures", None) or ()]
    classes = classes or [value.rpartition(".")[2] for key, value in own.items() if key != "AutoConfig"]
    if not classes or any(takes_class(each, config) for each in classes):
        return
    if own:
        raise SourceError(
            f"{name}: the class {classes[0]} is code of the repository (auto_map names "
            f"{next(iter(own.values()))}), which fakexport does not run: write a factory, or name a class of "
            f"transformers, {name}:CLASS"
        )
    raise SourceError(
        f"{name}: transformers has no class {classes[0]} for {config.model_type!r}: install a version that "
        f"has it, write a factory, or name another class, {name}:CLASS"
    )


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


def stored_dtypes(repository: Repository | LocalFolder) -> StoredDtypes:
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


def _files(repository: Repository | LocalFolder) -> list[str]:
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
