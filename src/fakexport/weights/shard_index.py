"""The index of a checkpoint's shards, read as untrusted input."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fakexport.documents import DocumentError, mapping, parse_json
from fakexport.files import read_file
from fakexport.weights.checkpoint import CheckpointError

MAX_INDEX_BYTES = 100_000_000


def read_index(path: Path, *, suffixes: tuple[str, ...], is_local: bool = True) -> dict[str, list[str]]:
    """Return the shards of an index, in order of first mention, each with the names it should contain.

    Args:
        path: The index, in the folder of its shards.
        suffixes: How the name of a shard may end. An index is never a shard, whatever it is called.
        is_local: Whether the shards have to be in that folder; those of a repository on the hub are not.
    Raises:
        CheckpointError: the index is refused, or a shard is missing; one line.
        OSError: the index cannot be opened.
    """
    text = read_file(path, most_bytes=MAX_INDEX_BYTES)
    try:
        fields = mapping(parse_json(text))
    except DocumentError as error:
        raise _refused(path, str(error)) from error
    names = fields.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise _refused(path, "it has no weight_map")
    shards: dict[str, list[str]] = {}
    for name, shard in names.items():
        if not isinstance(shard, str) or shard not in shards:
            _check_name(path, shard, suffixes)
            if is_local and not (path.parent / shard).is_file():
                raise missing_shard(path, shard)
        shards.setdefault(shard, []).append(name)
    return shards


def check_shard(index: Path, shard: str, *, listed: Collection[str], held: Collection[str]) -> None:
    """Refuse a shard that does not contain exactly what the index lists for it.

    Raises:
        CheckpointError: names the first tensor.
    """
    if absent := set(listed) - set(held):
        raise CheckpointError(
            f"{index.name}: {min(absent)!r} is missing from {shard}, where the index lists it"
        )
    if extra := set(held) - set(listed):
        raise CheckpointError(
            f"{index.name}: {shard} contains {min(extra)!r}, which the index does not list there"
        )


def missing_shard(index: Path, shard: str) -> CheckpointError:
    """Return the error for a shard that is not there."""
    return _refused(index, f"the shard {shard[:80]!r} is missing")


def _check_name(index: Path, shard: Any, suffixes: tuple[str, ...]) -> None:
    if not isinstance(shard, str) or not shard.isprintable() or not shard.endswith(suffixes):
        raise _refused(index, f"{str(shard)[:80]!r} is not a valid shard name ({', '.join(suffixes)})")
    if Path(shard).name != shard or "\\" in shard or ":" in shard or shard.startswith("."):
        raise _refused(index, f"the shard {shard[:80]!r} is not in the folder of the index")


def _refused(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a valid shard index: {reason}")
