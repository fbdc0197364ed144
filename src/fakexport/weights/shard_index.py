"""The index of a sharded checkpoint: which file holds which tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakexport.documents import DocumentError, mapping, parse_json
from fakexport.files import read_file
from fakexport.weights.checkpoint import CheckpointError

MAX_INDEX_BYTES = 100_000_000


def read_index(path: Path, *, suffixes: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the shards of an index, in order of first mention, each with the names it should contain.

    Args:
        path: The index, in the folder of its shards.
        suffixes: How the name of a shard may end. An index is never a shard, whatever it is called.
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
            _check_shard(path, shard, suffixes)
        shards.setdefault(shard, []).append(name)
    return shards


def _check_shard(index: Path, shard: Any, suffixes: tuple[str, ...]) -> None:
    if not isinstance(shard, str) or not shard.isprintable() or not shard.endswith(suffixes):
        raise _refused(index, f"{str(shard)[:80]!r} is not a valid shard name ({', '.join(suffixes)})")
    if Path(shard).name != shard or "\\" in shard or ":" in shard or shard.startswith("."):
        raise _refused(index, f"the shard {shard[:80]!r} is not in the folder of the index")
    if not (index.parent / shard).is_file():
        raise _refused(index, f"the shard {shard[:80]!r} is missing")


def _refused(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a valid shard index: {reason}")
