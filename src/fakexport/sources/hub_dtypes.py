"""The dtypes in which a repository stores its weights, from a few headers of its safetensors files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from fakexport.documents import DocumentError, integer, mapping, matching, parse_json, sequence, text
from fakexport.files import read_file
from fakexport.hub import HubError, RemoteHeader, Repository, weight_files

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
