"""Describe a published model from its config and from files that describe its weights.

Only `config.json`, `hf_quant_config.json`, the index of the weights, the headers of safetensors files and, on
request, the model's code are read. This module does not run the code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fakexport.files import read_file
from fakexport.files.documents import (
    DocumentError,
    flat_settings,
    integer,
    mapping,
    matching,
    optional,
    parse_json,
    sequence,
    text,
)
from fakexport.models.hub import HubError, HubName, LocalFolder, RemoteHeader, Repository, weight_files
from fakexport.models.sources.dtype_text import dtype_text
from fakexport.models.sources.source_error import SourceError
from fakexport.models.sources.transformers.own_code import OwnCode
from fakexport.models.sources.transformers.transformers_class import takes_class
from fakexport.models.sources.transformers.transformers_config import (
    about_own_code,
    config_of,
    generic_config,
    own_code,
    read_settings,
)

_QUANTIZATION, _MODELOPT = "hf_quant_config.json", "modelopt"
_LIBRARY_FILES = {
    "adapter_config.json": "it is a PEFT adapter: pass its base model",
    "model_index.json": "it is a pipeline of diffusers: use diffusers: and select a model with --component",
    "params.json": "its weights are not in the format of transformers",
}


@dataclass(frozen=True)
class HubModel:
    """A published model.

    Args:
        config: The transformers config of the model. If `own` is set, it has only the settings that do not
            depend on the type of the model.
        notes: Sentences for the report about the commit and about skipped files.
        dtype: Dtype of most floating point weights, or None if the headers of the weights were not read.
        packed: Dtypes of quantized weights, if the config does not specify a quantization.
        folder: A local folder with the config and other requested configuration files.
        has_own_head: Whether the output embedding is a separate weight although the class ties it.
        is_unpacked: Whether the config specifies a quantization, but no weight in the folder is quantized.
        place: The repository, or the folder with a `config.json`. None for a config file with a different
            name.
        own: The repository's code, if it is to be run.
        settings: The settings in its `config.json`, from `flat_settings`.
    """

    config: Any
    notes: tuple[str, ...]
    dtype: torch.dtype | None = None
    packed: tuple[str, ...] = ()
    folder: Path | None = None
    has_own_head: bool = False
    is_unpacked: bool = False
    place: Repository | LocalFolder | None = None
    own: OwnCode | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def hub_model(
    name: HubName, class_name: str | None, *, files: Iterable[str] = (), trust_remote_code: bool = False
) -> HubModel:
    """Return the model that a repository describes.

    Args:
        class_name: The class that the user specified. None means the transformers class that `architectures`
            in the config names.
        trust_remote_code: Whether to use the repository's own code, if it has any.
    """
    try:
        repository = Repository.open(name)
        if repository.config is None:
            raise SourceError(_without_config(repository))
        settings = read_settings(repository.config, str(name))
        unknown = tuple(_add_quantization_of(repository, settings))
        for file in files:
            repository.file(file)
    except HubError as error:
        raise SourceError(str(error)) from error
    own = OwnCode.of(settings, repository, class_name) if trust_remote_code else None
    config = _config(settings, str(name), class_name, own)
    if class_name is None and own is None:
        _check_class(config, own_code(settings), name)
    commit = f"{name} is at commit {repository.commit} on the hub"
    notes = (commit, *_class_notes(settings, config, own), *unknown)
    said = StoredDtypes() if _is_quantized(settings) else stored_dtypes(repository)
    found = _described(config, settings, notes, said, repository.config.parent)
    return replace(found, place=repository, own=own)


def folder_model(path: Path, class_name: str | None, *, trust_remote_code: bool = False) -> HubModel:
    """Return the model that a folder, or a file in the format of `config.json`, describes.

    The headers of weight files are read only for a folder. The other arguments are as for `hub_model`.
    """
    file = path / "config.json" if path.is_dir() else path
    settings = read_settings(file, str(file))
    beside = file.with_name(file.name.removesuffix("config.json") + _QUANTIZATION)
    _add_quantization(settings, beside if file.name.endswith("config.json") and beside.is_file() else None)
    said, folder = StoredDtypes(), LocalFolder(file.parent)
    own = OwnCode.of(settings, folder, class_name) if trust_remote_code else None
    config = _config(settings, str(file), class_name, own)
    notes = _class_notes(settings, config, own)
    has_weights = file.name == "config.json" and _has_weights(folder)
    stored = stored_dtypes(folder) if has_weights else said
    is_unpacked = _is_quantized(settings) and stored.dtype is not None and not stored.packed
    found = _described(config, settings, notes, said if _is_quantized(settings) else stored, file.parent)
    place = folder if file.name == "config.json" else None
    return replace(found, place=place, is_unpacked=is_unpacked, own=own)


def _config(settings: Mapping[str, Any], place: str, class_name: str | None, own: OwnCode | None) -> Any:
    return generic_config(settings, place) if own is not None else config_of(settings, place, class_name)


def _add_quantization_of(repository: Repository, settings: dict[str, Any]) -> Iterator[str]:
    """Add a repository's quantization to its settings. Yield a sentence if it cannot be determined."""
    try:
        path = repository.file(_QUANTIZATION)
    except HubError as error:
        yield f"it is unknown whether {_QUANTIZATION} specifies a quantization: {error}"
    else:
        _add_quantization(settings, path)


def _add_quantization(settings: dict[str, Any], path: Path | None) -> None:
    """Add the quantization from `hf_quant_config.json`, which NVIDIA's ModelOpt writes.

    If the config names a different method, the file replaces it, because the config then describes only some
    of the weights. For example, `fp8` in the config of DeepSeek-V4-Flash-NVFP4 applies only to attention.
    vLLM and TensorRT-LLM also read the file, in addition to `config.json`.
    """
    own = settings.get("quantization_config")
    if path is None or (
        isinstance(own, dict) and (own.get("quant_method") == _MODELOPT or own.get("dequantize"))
    ):
        return
    try:
        fields = mapping(parse_json(read_file(path, most_bytes=_MOST_BYTES)))
        found = mapping(fields.get("quantization"))
        if optional(found.get("quant_algo"), text) is not None:
            settings["quantization_config"] = {**found, "quant_method": _MODELOPT}
    except (DocumentError, OSError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def _has_weights(folder: LocalFolder) -> bool:
    return any(name.endswith(".safetensors") for name in folder.names())


def _class_notes(settings: Mapping[str, Any], config: Any, own: OwnCode | None) -> Iterator[str]:
    """Yield sentences about classes in the repository's code, and about classes that replace those."""
    if own is not None:
        yield own.note
        return
    if own_code(settings):
        yield "the repository's own code (auto_map) was not run; using the class in transformers"
    if (named := settings.get("model_type", config.model_type)) != config.model_type:
        yield (
            f"the type {named!r} is unknown to transformers: reading the config as "
            f"{config.model_type!r}, as requested"
        )


def _described(
    config: Any, settings: Mapping[str, Any], notes: Iterable[str], said: StoredDtypes, folder: Path
) -> HubModel:
    """Return the model. Its dtype is that of the config, else of the weights, else of a nested config."""
    own, inner = config.dtype, _inner_dtype(config)
    dtype, found = said.dtype or (None if own else inner[1] if inner else None), list(notes)
    if said.fault is not None:
        found.append(f"the dtypes of the weights are unknown: {said.fault}")
    elif own is not None and said.dtype not in (None, own):
        found.append(f"the config specifies {dtype_text(own)}, but the weights are {dtype_text(said.dtype)}")
    if own is None and said.dtype is not None:
        found.append(f"the config specifies no dtype: using {dtype_text(said.dtype)} like the weights")
    elif own is None and inner is not None:
        found.append(f"the config specifies no dtype: using {dtype_text(inner[1])} like its {inner[0]}")
    if has_own_head := _has_own_head(config, settings):
        found.append(
            f"the config has tie_word_embeddings=false, which {type(config).__name__} ignores: the output "
            "embedding is a separate weight"
        )
    found.extend(
        f"the config has no {name}: using the default sizes of transformers' {type(part).__name__}, which "
        "may differ from the sizes of the published weights"
        for name, part in _missing_parts(config, settings)
    )
    return HubModel(
        config, tuple(found), dtype, said.packed, folder, has_own_head, settings=flat_settings(settings)
    )


def _missing_parts(config: Any, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of nested configs that the settings lack.

    Old configs have the text model's settings at the top level, so a missing text config is not reported
    here; see `config_of`.
    """
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if hasattr(part, "model_type") and name not in settings and part is not config.get_text_config():
            yield name, part


def _has_own_head(config: Any, settings: Mapping[str, Any]) -> bool:
    """Return whether a config unties the output embedding, although the model class always ties it (T5).

    `from_pretrained` unties it if the checkpoint has both weights, as T5 v1.1 checkpoints do. For a model
    with a nested text config, only the setting in the nested config counts, because the outer one may be a
    default.
    """
    says_untied = settings.get("tie_word_embeddings") is False
    return says_untied and config.tie_word_embeddings and config.get_text_config() is config


def _inner_dtype(config: Any) -> tuple[str, torch.dtype] | None:
    """Return the name and dtype of the first nested config with a dtype. Text configs come first."""
    names = sorted(config.sub_configs, key=lambda name: name != "text_config")
    found = ((name, getattr(getattr(config, name, None), "dtype", None)) for name in names)
    return next(((name, dtype) for name, dtype in found if isinstance(dtype, torch.dtype)), None)


def _without_config(repository: Repository) -> str:
    names = repository.names()
    hint = next((hint for file, hint in _LIBRARY_FILES.items() if file in names), None)
    if hint is None and any(name.endswith(".gguf") for name in names):
        hint = "its weights are GGUF files: pass the repository that they were converted from"
    return f"{repository.name} has no config.json" + (f"; {hint}" if hint else "")


def _check_class(config: Any, own: Mapping[str, str], name: HubName) -> None:
    """Raise an error if transformers would use a different class than the repository specifies."""
    classes = [str(each) for each in getattr(config, "architectures", None) or ()]
    classes = classes or [value.rpartition(".")[2] for key, value in own.items() if key != "AutoConfig"]
    if not classes or any(takes_class(each, config) for each in classes):
        return
    if own:
        raise SourceError(
            f"{name}: transformers has no class {classes[0]} for {config.model_type!r}; "
            f"{about_own_code(own)}, or specify a class of transformers, {name}:CLASS"
        )
    raise SourceError(
        f"{name}: transformers has no class {classes[0]} for {config.model_type!r}: install a "
        f"version that has it, write a factory, or specify another class, {name}:CLASS"
    )


def _is_quantized(settings: Mapping[str, Any]) -> bool:
    """Return whether the config or a nested config specifies how the weights are quantized."""
    inner = [value for key, value in settings.items() if key.endswith("_config") and isinstance(value, dict)]
    return settings.get("quantization_config") is not None or any(map(_is_quantized, inner))


_MOST_BYTES = 100_000_000
_SAMPLED = 4
_shard = matching(re.compile(r"\w[\w.-]*\.safetensors"), "shard in the folder of the index")
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class StoredDtypes:
    """The dtypes of a model's weights, read from the headers of the weight files.

    Args:
        dtype: The dtype of most floating point elements, or None if there are no such elements.
        packed: Integer dtypes of quantized weights, in the notation of safetensors: `I32`.
        fault: The reason why no header was read, or None.
    """

    dtype: torch.dtype | None = None
    packed: tuple[str, ...] = ()
    fault: str | None = None


def stored_dtypes(repository: Repository | LocalFolder) -> StoredDtypes:
    """Return the dtypes of the weights in the only file, or in a sample of the shards, if there are any."""
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
    """Yield the name, dtype and number of bytes of each tensor."""
    for header in headers:
        fields = {} if header is None else mapping(parse_json(header.header))
        for name, value in fields.items():
            if name != "__metadata__":
                entry = mapping(value)
                yield name, text(entry.get("dtype")), _nbytes(entry.get("data_offsets"))


def _nbytes(offsets: object) -> int:
    found = [integer(offset) for offset in sequence(offsets, 2)]
    return max(0, found[-1] - found[0]) if found else 0


def _is_weight(tensor: str) -> bool:
    """Return whether a tensor is a weight. Others, such as masks and positions, are always integers."""
    last = tensor.rpartition(".")[2]
    return "weight" in last or last.endswith("_blocks")
