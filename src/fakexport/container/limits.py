"""Resource limits for reading a file."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a file may use. The defaults keep any hostile file below 1 GiB of memory and 20 s.

    The largest honest file they were measured against is a program of DeepSeek-V3, with 46,000 tensors.

    Args:
        entries: Records of an archive. A stock archive has one per tensor.
        directory_bytes: The central directory, which is read in one piece.
        name_bytes: One record's name with its folder, in bytes.
        record_bytes: One record that is read into memory, after inflating. Larger ones can be mapped.
        inflated_bytes: All compressed records together, after inflating.
        ratio: How many times larger a record may become by inflating, from 1 MiB on.
        json_bytes: The text of one JSON record, and of all payload configurations together.
        json_memory_bytes: What the values of one JSON record may take in memory, by estimate.
        state_bytes: The text of the states of all C++ objects of a program, tensors not counted.
    """

    entries: int = 100_000
    directory_bytes: int = 64 * MIB
    name_bytes: int = 512
    record_bytes: int = 256 * MIB
    inflated_bytes: int = 512 * MIB
    ratio: int = 256
    json_bytes: int = 128 * MIB
    json_memory_bytes: int = 512 * MIB
    state_bytes: int = 4 * MIB
