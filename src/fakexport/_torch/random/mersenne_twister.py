"""Advance the state of torch's CPU generator by any number of words without drawing, and attach data to it.

`torch.Generator.get_state()` returns the seed, the 624 words of a Mersenne Twister, the position of the
next word, and a cached normal number (normals are computed in pairs). This module runs no operators, so
active dispatch modes do not affect it. Seen on torch 2.11 to 2.13.

A recurrence that is linear over GF(2) can be advanced by n steps with the polynomial t^n modulo its
characteristic polynomial: the state after n steps is the sum of those among the next 19937 states that the
polynomial selects. Python integers represent polynomials (bit i is the coefficient of t^i) and vectors of
32-bit words (word i is bits 32*i to 32*i + 31). They are fast enough and do not require numpy.

Source: `aten/src/ATen/CPUGeneratorImpl.cpp:CPUGeneratorImplState`, `ATen/core/MT19937RNGEngine.h`; M.
Matsumoto and T. Nishimura, "Mersenne Twister" (ACM TOMACS 8, 1998), for the characteristic polynomial; H.
Haramoto et al., "Efficient jump ahead for F2-linear random number generators" (INFORMS JoC 20, 2008).
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache

import torch

STATE_BYTES = 5056
"""Size of a state, which is a uint8 tensor of this length."""

_WORDS = 624
_OTHER = 397  # A new word combines the oldest word, the next one, and the one at this offset.
_TWIST = 0x9908B0DF
_DEGREE = 19937  # Bits of a state: only the top bit of the oldest word is part of the state.

_SEED = struct.Struct("=Q")
# Words left in the block plus one, whether it was seeded, position of the next word.
_PLACE = struct.Struct("=iiQ")
_PLACE_AT = 8
_BLOCK = struct.Struct(f"={_WORDS}Q")  # 32 significant bits each
_BLOCK_AT = _PLACE_AT + _PLACE.size
# The cached second normal of a pair as a double, an unused field, and whether a normal is cached. A field for
# a cached float follows, but no torch operator fills it.
_NORMAL = struct.Struct("=ddi")
_NORMAL_AT = _BLOCK_AT + _BLOCK.size + 8
_PACKED_BLOCK = struct.Struct(f"<{_WORDS}I")

_MARK_BYTES = 32
_MARK_WORDS = struct.Struct(f"<{_MARK_BYTES // 4}I")
# The position fields say that the block is used up, so that the next draw generates a new block. Then follow
# two magic words.
_MARK_HEAD = struct.pack("=iiQQQ", 1, 1, 0, 0x66616B65, 0x6D61726B)
_HEAD = struct.Struct(f"={len(_MARK_HEAD)}s")
_MARK = struct.Struct(f"={len(_MARK_HEAD)}sQ{_MARK_BYTES // 4}Q")  # Length of the payload, and its words.

_Memory = ctypes.c_char * STATE_BYTES

# `get_state` of this generator creates state tensors without calling operators. Nothing is drawn from it.
_blank = torch.Generator("cpu")


def seed_of(state: torch.Tensor) -> int:
    """Return the seed, like `torch.Generator.initial_seed()`. Drawing does not change it."""
    seed: int
    (seed,) = _SEED.unpack_from(_memory_of(state))
    return seed


def drawn_since_seeded(state: torch.Tensor) -> int:
    """Return how many words were drawn since seeding. The result is only correct for up to 624 words."""
    left: int
    left, _, place = _PLACE.unpack_from(_memory_of(state), _PLACE_AT)
    return 0 if (left, place) == (1, 0) else _WORDS + 1 - left


def is_as_far(before: torch.Tensor, after: torch.Tensor, words: int) -> bool:
    """Return whether `after` can be `words` words after `before`, judging by their positions in a block.

    This check is cheap, but one of 624 wrong counts passes it.
    """
    lefts = [_PLACE.unpack_from(_memory_of(state), _PLACE_AT)[0] for state in (before, after)]
    return bool((lefts[0] - lefts[1] - words) % _WORDS == 0)


def cached_normal(state: torch.Tensor) -> float | None:
    """Return the cached standard normal number that the next single draw uses, or None if there is none.

    Single normal numbers are generated in pairs. The next call uses the second number, regardless of the
    dtype. Long contiguous tensors are filled without the cache.
    """
    value, _, is_there = _NORMAL.unpack_from(_memory_of(state), _NORMAL_AT)
    return float(value) if is_there else None


def with_cached_normal(state: torch.Tensor, value: float | None) -> torch.Tensor:
    """Return a copy of the state with `value` as its cached normal number. None means no cached number."""
    result = _copy(state)
    _NORMAL.pack_into(_memory_of(result), _NORMAL_AT, value or 0.0, 0.0, value is not None)
    return result


def marked(state: torch.Tensor, payload: bytes) -> torch.Tensor:
    """Return a copy of the state that carries a payload until the first number is drawn from it.

    The copy has the same seed. If a generator is set to it, `mark_of(generator.get_state())` returns the
    payload. Numbers that are then drawn are random, but differ from those of `state`. A cached normal is
    dropped, because drawing it would not change the payload.

    Raises:
        ValueError: The payload has more than 32 bytes.
    """
    if len(payload) > _MARK_BYTES:
        raise ValueError(f"a mark has at most {_MARK_BYTES} bytes, got {len(payload)}")
    result = _copy(state, _NORMAL_AT)  # The normals and everything after them stay empty.
    words = _MARK_WORDS.unpack(payload.ljust(_MARK_BYTES, b"\0"))
    _MARK.pack_into(_memory_of(result), _PLACE_AT, _MARK_HEAD, len(payload), *words)
    return result


class MarkedState:
    """A marked state whose payload can be replaced in place.

    This is fast enough to be done on every recorded draw. New payloads must have the same length.
    """

    def __init__(self, state: torch.Tensor, payload: bytes) -> None:
        self.state = marked(state, payload)
        self._length = len(payload)
        self._memory = _memory_of(self.state)

    def mark(self, payload: bytes) -> bytes:
        """Replace the payload. Return the `raw_mark` of the state, to compare with a generator's state."""
        words = _MARK_WORDS.unpack(payload.ljust(_MARK_BYTES, b"\0"))
        _MARK.pack_into(self._memory, _PLACE_AT, _MARK_HEAD, self._length, *words)
        return raw_mark(self.state)


def raw_mark(state: torch.Tensor) -> bytes:
    """Return the bytes of a state that a mark occupies. They change as soon as a generator draws."""
    return ctypes.string_at(state.data_ptr() + _PLACE_AT, _MARK.size)


def mark_of(state: torch.Tensor) -> bytes | None:
    """Return the payload of a marked state, or None if it has no mark or a number was drawn since."""
    memory = _memory_of(state)
    if _HEAD.unpack_from(memory, _PLACE_AT) != (_MARK_HEAD,):
        return None
    _, length, *words = _MARK.unpack_from(memory, _PLACE_AT)
    return _MARK_WORDS.pack(*words)[:length]


def advanced(state: torch.Tensor, words: int) -> torch.Tensor:
    """Return the exact state that drawing `words` 32-bit numbers would leave, without drawing them.

    This takes about 12 ns per word, and 7 to 15 ms for any number of words above half a million. A cached
    normal is kept.

    Raises:
        ValueError: `state` is not the state of a CPU generator, or `words` is negative.
    """
    if words < 0:
        raise ValueError(
            f"a generator cannot advance by {words} 32-bit words: the number must not be negative"
        )
    result = _copy(state)
    memory = _memory_of(result)
    left, seeded, place = _PLACE.unpack_from(memory, _PLACE_AT)
    if words < left:
        _PLACE.pack_into(memory, _PLACE_AT, left - words, seeded, place + words)
        return result
    # The word that brings `left` to zero is the first of a new block.
    blocks, place = divmod(words - left, _WORDS)
    block = _PACKED_BLOCK.pack(*_BLOCK.unpack_from(memory, _BLOCK_AT))
    window = _moved(int.from_bytes(block, "little"), (blocks + 1) * _WORDS)
    block = window.to_bytes(_PACKED_BLOCK.size, "little")
    _PLACE.pack_into(memory, _PLACE_AT, _WORDS - place, seeded, place + 1)
    _BLOCK.pack_into(memory, _BLOCK_AT, *_PACKED_BLOCK.unpack(block))
    return result


def _copy(state: torch.Tensor, size: int = STATE_BYTES) -> torch.Tensor:
    """Return a copy of a state, in which bytes after the first `size` bytes are 0 (no cached normal)."""
    result = _blank.get_state()
    ctypes.memmove(result.data_ptr(), _address_of(state), size)
    return result


def _memory_of(state: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """Return the tensor's memory, which is valid as long as the tensor is alive."""
    return _Memory.from_address(_address_of(state))


def _address_of(state: torch.Tensor) -> int:
    # The data pointer of a fake or meta tensor is 0, and reading there would crash the process.
    is_real = type(state) is torch.Tensor and state.nbytes == STATE_BYTES
    if not is_real or not (address := state.data_ptr()):
        raise ValueError(f"not the state of a CPU generator: {state.nbytes} bytes on {state.device}")
    return address


# In the functions below, a window is 624 consecutive words as one integer, with the oldest word in the lowest
# bits.

_AHEAD = _WORDS - _OTHER  # This many new words do not depend on each other.
_WINDOW_MASK = (1 << 32 * _WORDS) - 1
_LOW_BITS = ((1 << 32 * _AHEAD) - 1) // 0xFFFFFFFF  # The lowest bit of each of these words.
_TOP_BITS = _LOW_BITS << 31
_OTHER_BITS = _LOW_BITS * 0x7FFFFFFF

# Up to this length, walking is faster than the shortest jump. Measured: 12 ns per word, and 6.5 ms.
_LONGEST_WALK = 1 << 19


def _moved(window: int, steps: int) -> int:
    """Return the window that starts `steps` words later. `steps` is at least 1."""
    if steps <= _LONGEST_WALK:
        return _walked(window, steps)
    # Only the top bit of the first word is part of the recurrence, but all bits of later words are.
    # Therefore, the jump starts at the second word.
    return _selected_sum(_power(steps - 1), _walked(window, 1))


def _walked(window: int, steps: int) -> int:
    while steps > 0:
        count = min(steps, _AHEAD)
        window = (_lengthened(window) >> 32 * count) & _WINDOW_MASK
        steps -= count
    return window


def _lengthened(window: int) -> int:
    """Return the window with the next 227 words appended."""
    mixed = (window & _TOP_BITS) | (window >> 32 & _OTHER_BITS)
    new = (window >> 32 * _OTHER) ^ (mixed >> 1 & _OTHER_BITS) ^ ((mixed & _LOW_BITS) * _TWIST)
    return window | new << 32 * _WORDS


def _selected_sum(polynomial: int, window: int) -> int:
    """For each term t^i of the polynomial, take the window i words later. Return the sum of these windows."""
    total = 0
    while polynomial:
        longer = _lengthened(window)
        # Sums for each subset of four consecutive windows, looked up per hexadecimal digit.
        sums = [0]
        for i in range(4):
            sums += [other ^ longer >> 32 * i for other in sums]
        for i, digit in enumerate(reversed(f"{polynomial & _CHUNK_MASK:x}")):
            total ^= sums[int(digit, 16)] >> 32 * 4 * i
        polynomial >>= _CHUNK
        window = (longer >> 32 * _CHUNK) & _WINDOW_MASK
    return total & _WINDOW_MASK


_CHUNK = _AHEAD // 4 * 4
_CHUNK_MASK = (1 << _CHUNK) - 1


def _power(exponent: int) -> int:
    """Return t^exponent modulo the characteristic polynomial."""
    result = 1
    for bit in f"{exponent:b}":
        square = int(f"{result:b}", 4)  # Over GF(2), squaring spaces the coefficients twice as far apart.
        result = _remainder(square << 1 if bit == "1" else square)
    return result


def _remainder(polynomial: int) -> int:
    """Return the polynomial modulo the characteristic polynomial t^19937 * c(1/t).

    The quotient is the upper part divided by c, which has only 135 terms: 1, and terms from s^623 on. The
    product c * c * c^2 * c^4 * ... is 1 plus terms of arbitrarily high degree, so multiplying by c, c^2, c^4
    and so on is the same as dividing by c. c^2 has the terms of c, spaced twice as far apart.
    """
    quotient = polynomial >> _DEGREE
    terms = _characteristic_terms()
    spread = 1
    while terms[1] * spread < quotient.bit_length():
        product = quotient
        for term in terms[1:]:
            if term * spread >= quotient.bit_length():
                break
            product ^= quotient >> term * spread
        quotient = product
        spread *= 2
    for term in terms:
        polynomial ^= quotient << _DEGREE - term
    return polynomial


@cache
def _characteristic_terms() -> tuple[int, ...]:
    """Return the exponents of c(s) in ascending order; t^19937 * c(1/t) is the characteristic polynomial.

    With y = 1 + s^227, and a_k the bits of the twist constant, c is y^32 + a_0 s^623 y^31 + a_1 s^(2*623)
    y^30 + ... + a_30 s^(31*623) y + a_31 s^19937 (Matsumoto and Nishimura).
    """
    terms = set(_powers_of_y(32))
    for k in range(31):
        if _TWIST >> k & 1:
            terms ^= {623 * (k + 1) + exponent for exponent in _powers_of_y(31 - k)}
    terms ^= {_DEGREE}
    return tuple(sorted(terms))


def _powers_of_y(power: int) -> list[int]:
    """Return the exponents of (1 + s^227)^power, whose binomial coefficients are odd."""
    return [_AHEAD * j for j in range(power + 1) if j & ~power == 0]
