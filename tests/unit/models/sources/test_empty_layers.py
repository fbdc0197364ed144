"""A layer of a cache begins as transformers begins it, and a prefill has no constant for each."""

from __future__ import annotations

import logging
import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

import fakexport as fe
from fakexport._torch.patching import Patches
from fakexport.models.sources.transformers.exporter_patches import empty_layers
from tests.identity import first_difference


def test_a_layer_begins_as_transformers_begins_it() -> None:
    keys, values = torch.ones(2, 3, 4, 8, dtype=torch.bfloat16), torch.ones(2, 3, 4, 6, dtype=torch.bfloat16)
    for make in (DynamicLayer, lambda: DynamicSlidingWindowLayer(sliding_window=5)):
        stock, ours = make(), make()
        stock.lazy_initialization(keys, values)
        with Patches(empty_layers()):
            ours.lazy_initialization(keys, values)

        assert vars(ours).keys() == vars(stock).keys()
        for name, expected in vars(stock).items():
            found = vars(ours)[name]
            if isinstance(expected, torch.Tensor):
                assert (found.shape, found.dtype, found.device) == (
                    expected.shape,
                    expected.dtype,
                    expected.device,
                )
            else:
                assert found == expected, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=8,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    path = str(tmp_path_factory.mktemp("llama"))
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def logged(folder: str) -> tuple[torch.export.ExportedProgram, str]:
    """The program of a prefill, and what was logged while it was exported."""
    records: list[logging.LogRecord] = []
    handler, logger = logging.Handler(), logging.getLogger("fakexport")
    handler.emit = records.append  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    try:
        program = fe.export(f"hf:{folder}", workload="prefill", dynamic_shapes="auto")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return program, "\n".join(record.getMessage() for record in records)


@pytest.mark.slow
def test_operators_of_a_prefill_are_answered_from_memory(
    folder: str, logged: tuple[torch.export.ExportedProgram, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, text = logged
    monkeypatch.setenv("FAKEXPORT_SPEED", "0")
    every = fe.export(f"hf:{folder}", workload="prefill", dynamic_shapes="auto")

    assert re.search(r"[1-9]\d* of \d+ operator results came from the cache", text)
    assert first_difference(found, every) is None
    assert all("inv_freq" in name for name in found.constants)


def test_a_prefill_returns_what_eager_mode_returns(
    folder: str, logged: tuple[torch.export.ExportedProgram, str]
) -> None:
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    ids = torch.randint(0, 64, (3, 9))
    program = fe.bind(logged[0], folder)

    found = program.module()(
        input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=torch.arange(9).expand(3, 9)
    )

    with torch.no_grad():
        expected = model(ids, past_key_values=DynamicCache(config=model.config))
    torch.testing.assert_close(found["logits"][:, -1], expected.logits[:, -1])
