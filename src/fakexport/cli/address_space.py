"""Refuse a process that may not use the memory that importing torch takes."""

from __future__ import annotations

from fakexport.error import FakexportError

_MIB = 1 << 20
# torch and transformers map some 750 MiB, and each further processor some more.
_NEEDED_MIB = 1024


class LittleMemoryError(FakexportError, MemoryError):
    """The process may use less memory than importing torch needs. One line."""


def check_address_space() -> None:
    """Refuse to start if importing torch could not succeed (`ulimit -v`).

    Raises:
        LittleMemoryError: states the limit and what it must be.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _NEEDED_MIB * _MIB:
        raise LittleMemoryError(
            f"out of memory: the address space is limited to {limit // _MIB} MiB, and importing "
            f"torch needs {_NEEDED_MIB} MiB: run `ulimit -v {_NEEDED_MIB * 1024}` (or more) first"
        )
