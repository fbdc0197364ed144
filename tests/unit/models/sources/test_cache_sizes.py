"""Which sizes of a cache are one size."""

from __future__ import annotations

import pytest
import torch

from fakexport.models.sources.generation.cache_slots import cache_sizes

KEYS, VALUES = torch.ones(2, 4, 7, 16), torch.ones(2, 4, 7, 8)


def grown(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor[:, :, :1]], 2)


def labels(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], is_batch_dynamic: bool = False):
    return cache_sizes(before, after, is_batch_dynamic=is_batch_dynamic)


def test_lengths_of_all_layers_are_one_size() -> None:
    before = {"layers_0_keys": KEYS, "layers_0_values": VALUES, "layers_1_keys": KEYS}

    found = labels(before, {name: grown(tensor) for name, tensor in before.items()}, is_batch_dynamic=True)

    assert len({*found.values()}) == 1
    batch, heads, length, width = found["layers_0_keys"]
    assert None not in (batch, length)
    assert batch != length
    assert heads is None
    assert width is None


def test_a_batch_of_one_is_constant() -> None:
    assert labels({"layers_0_keys": KEYS}, {"layers_0_keys": grown(KEYS)})["layers_0_keys"][0] is None


@pytest.mark.parametrize("is_static", [False, True])
def test_the_length_of_what_an_encoder_computed_is_one_size_and_not_constant(is_static: bool) -> None:
    own, others = "self_attention_cache_layers_0_keys", "cross_attention_cache_layers_{}_keys"
    before = {own: KEYS, others.format(0): KEYS, others.format(1): KEYS}
    after = {**before, own: KEYS if is_static else grown(KEYS)}

    found = cache_sizes(before, after, is_batch_dynamic=True, is_static=is_static)

    lengths = [found[name][2] for name in before]
    assert lengths[1] == lengths[2]
    assert lengths[1] is not None
    assert lengths[0] != lengths[1], "the decoder has read as many tokens by chance"
    assert (lengths[0] is None) == is_static


def test_layers_whose_encoders_read_other_lengths_are_left_out() -> None:
    name = "cross_attention_cache_layers_{}_keys"
    before = {name.format(0): KEYS, name.format(1): KEYS[:, :, :3]}

    assert labels(before, before) == {}


def test_the_length_of_a_static_cache_is_constant() -> None:
    before = {"layers_0_keys": KEYS}

    found = cache_sizes(before, before, is_batch_dynamic=True, is_static=True)

    assert found["layers_0_keys"][2] is None


def test_layers_of_other_lengths_are_other_sizes() -> None:
    before = {"layers_0_keys": KEYS, "layers_1_keys": KEYS[:, :, :3]}

    found = labels(before, {name: grown(tensor) for name, tensor in before.items()})

    assert found["layers_0_keys"][2] != found["layers_1_keys"][2]


def test_what_is_not_known_to_be_keys_or_values_is_left_out() -> None:
    before = {
        "layers_0_conv_states": torch.ones(2, 4, 3, 8),
        "layers_1_keys": torch.ones(2, 7, 4),
        "layers_2_keys": KEYS,
    }
    after = {**before, "layers_2_keys": torch.ones(2, 4, 11, 16)}

    assert labels(before, after) == {}, "a state, keys of three dimensions, four tokens more"
