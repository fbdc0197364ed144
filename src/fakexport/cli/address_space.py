"""Room for torch: without it, libraries end the process or fail in ways that say nothing."""

from __future__ import annotations

__all__ = ["LittleMemoryError", "check_address_space"]

_MIB = 1 << 20
# torch and transformers map some 750 MiB, and each further processor some more.
_NEEDED_MIB = 1024


class LittleMemoryError(MemoryError):
    """The system allows this process less memory than torch needs to be imported. One line."""


def check_address_space() -> None:
    """Refuses to begin where importing torch could not succeed (`ulimit -v`).

    Raises:
        LittleMemoryError: says what the limit is, and what it must be.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _NEEDED_MIB * _MIB:
        raise LittleMemoryError(
            f"out of memory: the address space is limited to {limit // _MIB} MiB, and torch needs "
            f"{_NEEDED_MIB} MiB to be imported: run `ulimit -v {_NEEDED_MIB * 1024}` or more first"
        )
