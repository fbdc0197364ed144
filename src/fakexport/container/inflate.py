"""Inflate in bounded steps."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from fakexport.container.limits import MIB
from fakexport.error import FakexportError


class InflateError(FakexportError, ValueError):
    """The packed bytes are not one deflate stream of the declared size."""


def inflate(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the content of a raw deflate stream, in pieces of at most 1 MiB.

    Args:
        pieces: The packed bytes, not empty.
        size: Bytes of the content. No more are ever produced.
    Raises:
        InflateError: Not deflate, another size, bytes after the stream, or unused bits that are not 0.
    """
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    left = size
    for content in _steps(stream, pieces):
        left -= len(content)
        if left < 0:
            raise InflateError(f"inflates to more than the {size} bytes that it declares")
        yield content
    if left:
        raise InflateError(f"inflates to {size - left} bytes and declares {size}")


def _steps(stream: zlib._Decompress, pieces: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for piece in pieces:
        # The last byte waits until it is known to be the last: it is read on its own.
        yield from _drain(stream, held + piece[:-1])
        if stream.eof:
            raise InflateError("its compressed bytes are followed by other data")
        held = piece[-1:]
    before = stream.copy()
    ending = list(_drain(stream, held))
    if not stream.eof:
        raise InflateError("its compressed bytes are truncated")
    if stream.unused_data or _has_idle_bit(before, held, ending):
        raise InflateError("its compressed bytes are followed by other data")
    yield from ending


def _drain(stream: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """Yield the output of these bytes, in pieces of at most 1 MiB."""
    while True:
        try:
            content = stream.decompress(packed, MIB)
        except zlib.error as error:
            raise InflateError(f"its compressed bytes are damaged: {error}") from None
        if content:
            yield content
        if stream.eof or (len(content) < MIB and not stream.unconsumed_tail):
            return
        packed = stream.unconsumed_tail


def _has_idle_bit(before: zlib._Decompress, last: bytes, ending: list[bytes]) -> bool:
    """Return whether the stream would end in the same way without the highest bit of its last byte.

    The bits after the end of the stream are 0 in what any compressor writes; no checksum covers them.
    """
    value = last[0]
    if not value:
        return False
    cleared = bytes([value & ~(1 << (value.bit_length() - 1))])
    try:
        return list(_drain(before, cleared)) == ending and before.eof
    except InflateError:
        return False
