"""What `mersenne_twister` relies on: layout and arithmetic of torch's CPU generator."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.random import mersenne_twister
from fakexport._torch.random.mersenne_twister import (
    STATE_BYTES,
    MarkedState,
    advanced,
    cached_normal,
    drawn_since_seeded,
    is_as_far,
    mark_of,
    marked,
    raw_mark,
    seed_of,
    with_cached_normal,
)

BLOCK = 624
SHORT = (0, 1, 2, 623, 624, 625, 1000, 1247, 1248, 1249, 20_000)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def generator_in(state):
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def drawn(state, words):
    """The state after drawing, by torch itself: a float takes one word."""
    generator = generator_in(state)
    torch.empty(words, dtype=torch.float32).uniform_(generator=generator)
    return generator.get_state()


def fresh(seed=5):
    return torch.Generator().manual_seed(seed).get_state()


def with_normal():
    generator = torch.Generator().manual_seed(6)
    torch.empty(1).normal_(generator=generator)
    return generator.get_state()


STATES = {
    "seeded with all bits": lambda: fresh(-1),
    "one drawn": lambda: drawn(fresh(), 1),
    "within a block": lambda: drawn(fresh(), 300),
    "before the last of a block": lambda: drawn(fresh(), BLOCK - 1),
    "end of a block": lambda: drawn(fresh(), BLOCK),
    "second block": lambda: drawn(fresh(), BLOCK + 1),
    "keeps a normal": with_normal,
    "marked": lambda: marked(fresh(), b"x" * 32),
}
state_of_each_kind = pytest.mark.parametrize("make", STATES.values(), ids=STATES.keys())


@pytest.fixture(params=["walk", "jump"])
def way(request, monkeypatch):
    """Makes `advanced` take one of its two ways, whatever the distance."""
    limits = {"walk": 1 << 60, "jump": 0}
    monkeypatch.setattr(mersenne_twister, "_LONGEST_WALK", limits[request.param])


@pytest.mark.usefixtures("way")
@state_of_each_kind
def test_advancing_is_drawing_under_any_mode(make):
    state = make()

    with new_fake_mode(), torch.device("meta"), torch.inference_mode():
        found = {n: advanced(state, n) for n in (*SHORT, 2_000_003)}

    assert [n for n, after in found.items() if not torch.equal(after, drawn(state, n))] == []


@pytest.mark.usefixtures("way")
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**64 - 1), before=st.integers(0, 2000), words=st.integers(0, 40_000))
def test_advancing_is_drawing_from_anywhere(seed, before, words):
    state = drawn(fresh(seed - 2**63), before)

    assert torch.equal(advanced(state, words), drawn(state, words))


def test_numpy_jumps_to_the_same_place():
    numpy = pytest.importorskip("numpy")
    twister = numpy.random.MT19937()
    twister._legacy_seeding(7)  # As torch seeds.
    # By 2^128 words, with a polynomial that numpy has as a constant. It leaves the words in a circle.
    inner = twister.jumped().state["state"]
    words = numpy.roll(inner["key"], -inner["pos"])
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 0}}

    # The seeded words count for numpy, but are never given out.
    state = advanced(torch.Generator().manual_seed(7).get_state(), 2**128 - BLOCK)

    numbers = torch.empty(2000, dtype=torch.float64).uniform_(generator=generator_in(state))
    words = twister.random_raw(4000)
    # A double of torch has the low 53 bits of two words, the first of them the upper half. Of the very first
    # word the low bits do not matter to the recurrence.
    expected = ((words[0::2] << 32 | words[1::2]) & (2**53 - 1)) / 2**53
    assert numbers[1:].tolist() == expected[1:].tolist()


def test_the_past_and_other_states_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot advance by -1 32-bit words"):
        advanced(fresh(), -1)
    with pytest.raises(ValueError, match="not the state of a CPU generator: 16 bytes"):
        advanced(torch.zeros(16, dtype=torch.uint8), 1)  # That is what a CUDA generator gives.
    with new_fake_mode():
        fake = torch.zeros(STATE_BYTES, dtype=torch.uint8)
    for state in (fake, torch.zeros(STATE_BYTES, dtype=torch.uint8, device="meta")):
        with pytest.raises(ValueError, match="not the state"):
            mark_of(state)


@pytest.mark.parametrize("seed", [0, 2**40, 2**63 - 1, -1, -(2**63)])
def test_the_seed_and_the_words_since_then_are_read(seed):
    generator = torch.Generator().manual_seed(seed)
    torch.empty(1000).uniform_(generator=generator)

    assert seed_of(generator.get_state()) == generator.initial_seed()
    for words in (0, 1, 300, 623, 624):
        assert drawn_since_seeded(drawn(fresh(seed), words)) == words


SERIAL = {
    "few": lambda dtype, generator: torch.empty(3, dtype=dtype).normal_(generator=generator),
    "strided": lambda dtype, generator: torch.empty(33, 2, dtype=dtype)[:, 0].normal_(generator=generator),
    "log": lambda dtype, generator: torch.empty(33, dtype=dtype).log_normal_(generator=generator),
}


@pytest.mark.parametrize("draw", SERIAL.values(), ids=SERIAL.keys())
@pytest.mark.parametrize("dtype", FLOATS)
def test_serial_normals_of_every_dtype_keep_the_second_of_a_pair_as_a_double(draw, dtype):
    generator = torch.Generator().manual_seed(8)
    torch.empty(33, dtype=dtype).normal_(generator=generator)  # Long and contiguous: keeps none.
    assert cached_normal(generator.get_state()) is None

    draw(dtype, generator)

    state = generator.get_state()
    kept = cached_normal(state)
    number = torch.empty(1, dtype=torch.float64).normal_(3.0, 2.0, generator=generator)
    assert kept is not None
    assert number.item() == kept * 2.0 + 3.0
    assert torch.equal(generator.get_state(), with_cached_normal(state, None))
    assert state[-8:].tolist() == [0] * 8  # The cache for floats, which nothing uses.


@pytest.mark.parametrize("value", [0.0, -0.25, 3.5e-310, float("inf")])
def test_a_kept_normal_can_be_set(value):
    result = with_cached_normal(fresh(), value)

    assert cached_normal(result) == value
    assert torch.empty(1, dtype=torch.float64).normal_(generator=generator_in(result)).item() == value
    assert torch.equal(with_cached_normal(result, None), fresh())


@settings(deadline=None, max_examples=30)
@given(payload=st.binary(max_size=32), seed=st.integers(-(2**63), 2**63 - 1))
def test_a_generator_carries_a_mark_and_its_seed(payload, seed):
    state = fresh(seed)
    before = state.clone()

    generator = generator_in(marked(state, payload))

    assert mark_of(generator.get_state()) == payload
    assert generator.initial_seed() == seed % 2**64
    assert torch.equal(state, before)
    assert mark_of(state) is None
    with pytest.raises(ValueError, match="at most 32 bytes, got 33"):
        marked(state, b"x" * 33)


CHANGES = {
    "uniform": lambda generator: torch.empty(1).uniform_(generator=generator),
    "normal": lambda generator: torch.empty(1).normal_(generator=generator),
    "normals": lambda generator: torch.empty(16).normal_(generator=generator),
    "integer": lambda generator: torch.randint(2, (1,), generator=generator),
    "permutation": lambda generator: torch.randperm(2, generator=generator),
    "bernoulli": lambda generator: torch.empty(1).bernoulli_(generator=generator),
    "exponential": lambda generator: torch.empty(1).exponential_(generator=generator),
    "multinomial": lambda generator: torch.multinomial(torch.ones(3), 1, generator=generator),
    "seed": lambda generator: generator.manual_seed(5),
    "state": lambda generator: generator.set_state(fresh()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_any_draw_or_seed_takes_the_mark_away(change):
    for make in STATES.values():
        generator = generator_in(marked(make(), b"here"))

        change(generator)

        assert mark_of(generator.get_state()) is None


def test_numbers_from_a_marked_state_are_random():
    numbers = torch.empty(10_000).uniform_(generator=generator_in(marked(fresh(), bytes(32))))

    assert len(numbers[:1000].unique()) > 990
    assert abs(numbers.mean().item() - 0.5) < 0.02  # Seven standard deviations.
    other = torch.empty(BLOCK).uniform_(generator=generator_in(marked(fresh(2), bytes(32))))
    assert not (numbers[:BLOCK] == other).any()  # The payload is not among them.


def test_a_payload_is_replaced_and_recognised_by_its_raw_bytes():
    state = MarkedState(fresh(), b"first")
    generator = generator_in(state.state)
    raw = state.mark(b"other")

    assert mark_of(generator.get_state()) == b"first"
    assert raw_mark(generator.get_state()) != raw
    generator.set_state(state.state)
    assert mark_of(generator.get_state()) == b"other"
    assert raw_mark(generator.get_state()) == raw
    torch.rand(1, generator=generator)
    assert raw_mark(generator.get_state()) != raw


@pytest.mark.parametrize("words", [0, 5, 623, 624, 5000])
@pytest.mark.parametrize("first", [0, 1, 600, 624])
def test_a_wrong_count_shows_in_the_place(first, words):
    before = advanced(fresh(), first)
    after = advanced(before, words)

    assert is_as_far(before, after, words)
    assert not is_as_far(before, after, words + 1)
    assert not is_as_far(before, after, words + 16)
