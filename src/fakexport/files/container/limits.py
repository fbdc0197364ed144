"""Resource limits for reading a file."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the memory and time that reading a file may take.

    With the default limits, no hostile file takes more than 1 GiB of memory or 20 s. The limits were tested
    with real files; the largest one is a program of DeepSeek-V3 with 46,000 tensors.

    Args:
        entries: Number of records. An archive of `torch.export.save` has one per tensor.
        directory_bytes: Size of the central directory, which is read as a whole.
        name_bytes: Length of a record's name with its folder.
        record_bytes: Inflated size of a record that is read into memory. Larger records can be memory-mapped.
        inflated_bytes: Total inflated size of all compressed records.
        ratio: Compression ratio of a record, if its inflated size is above 1 MiB.
        json_bytes: Size of one JSON record, and total size of all payload configs.
        json_memory_bytes: Estimated memory for the values of one JSON record.
        state_bytes: Total size of the states of a program's C++ objects, without tensors.
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
