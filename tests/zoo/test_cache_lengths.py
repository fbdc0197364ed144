"""A decode program takes other lengths than its example: of what an encoder read, and past a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import fakexport as fe
from fakexport.sources.cache_slots import CacheLayout
from tests.generation.agreement import prompt
from tests.generation.families import FAMILIES, Family

pytestmark = [pytest.mark.zoo, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OF_NAME = {family.name: family for family in FAMILIES}
# The example has 16 tokens.
ENCODED = (3, 16, 29)


def stepped(family: Family, folder: Path, **options: Any) -> tuple[Any, Any]:
    """The real model, and its decode program with real weights."""
    model = family.saved(folder)
    exported = fe.export(f"hf:{folder}", workload="decode", **options)
    return model.eval(), fe.bind(exported, folder).module()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_number_of_encoded_tokens_is_free(name: str, tmp_path: Path) -> None:
    model, program = stepped(OF_NAME[name], tmp_path)

    for encoded in ENCODED:
        ids, start, token = prompt(encoded), prompt(4), prompt(1)
        mask = torch.ones_like(ids)
        with torch.no_grad():
            read = model(input_ids=ids, attention_mask=mask, decoder_input_ids=start, use_cache=True)
            given = {"attention_mask": mask, "encoder_outputs": (read.encoder_last_hidden_state,)}
            _, tensors = CacheLayout.of(read.past_key_values)
            found = program(decoder_input_ids=token, **given, past_key_values=dict(tensors))
            expected = model(decoder_input_ids=token, **given, past_key_values=read.past_key_values)
        torch.testing.assert_close(found["logits"], expected.logits)
        crossed = "cross_attention_cache_layers_1_values"
        assert torch.equal(found["past_key_values"][crossed], tensors[crossed])
        grown = found["past_key_values"]["self_attention_cache_layers_1_keys"]
        torch.testing.assert_close(grown, expected.past_key_values.self_attention_cache.layers[1].keys)


@pytest.mark.parametrize("length", [5, 30])
def test_a_window_is_that_of_the_model_at_any_length(length: int, mistral: Any) -> None:
    """The window is of 8 tokens, and eager mode reads all of them at once, without a cache."""
    model, program = mistral
    ids = prompt(length)
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=ids[:, :-1], past_key_values=cache)
        _, tensors = CacheLayout.of(cache)
        expected = model(input_ids=ids, use_cache=False).logits[:, -1:]
        found = program(
            input_ids=ids[:, -1:],
            attention_mask=torch.ones_like(ids),
            position_ids=torch.tensor([[length - 1]]),
            past_key_values=dict(tensors),
        )

    assert tensors["layers_0_keys"].shape[2] == length - 1
    torch.testing.assert_close(found["logits"], expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return stepped(OF_NAME["mistral"], tmp_path_factory.mktemp("mistral"))
