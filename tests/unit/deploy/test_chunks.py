"""One program for the prompt and for every token after it. Its cache may be empty."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import fakexport as fe
from fakexport.deploy import run
from tests.generation.agreement import NEW_TOKENS, eager, prompt
from tests.generation.families import NAMED


@pytest.mark.slow
def test_chunks_of_any_length_return_what_transformers_generates(tmp_path: Path) -> None:
    model = NAMED["llama"].saved(tmp_path)
    fe.save(fe.export(f"hf:{tmp_path}", workload="chunk", dynamic_shapes="auto"), tmp_path / "chunk.pt2")
    program = fe.bind(fe.load(tmp_path / "chunk.pt2"), tmp_path)
    ids = prompt(6, batch=2)
    names = [name for name in program.graph_signature.user_inputs if name.startswith("past_key_values_")]
    cache = {name: torch.zeros(2, 2, 0, 8) for name in names}

    found: list[torch.Tensor] = []
    chunks = [*ids.split([1, 3, 2], dim=1)]
    length = 0
    while len(found) < NEW_TOKENS:
        tokens = chunks.pop(0) if chunks else found[-1]
        positions = torch.arange(length, length + tokens.shape[1]).expand_as(tokens)
        length += tokens.shape[1]
        mask = torch.ones(2, length, dtype=torch.long)
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, **cache}
        logits, *returned = run(program, inputs).values()
        assert logits.shape == (2, tokens.shape[1], 96)
        cache = dict(zip(names, returned, strict=True))
        if not chunks:
            found.append(logits[:, -1:].argmax(dim=-1))

    assert torch.cat(found, dim=1).tolist() == eager(model, ids)


@pytest.mark.parametrize("family", ["t5", "mamba"])
def test_a_state_that_cannot_be_empty_is_refused(family: str, tmp_path: Path) -> None:
    NAMED[family].saved(tmp_path)

    with pytest.raises(fe.SourceError, match="has an encoder or a state other than keys and values"):
        fe.export(f"hf:{tmp_path}", workload="chunk")


def test_a_chunk_has_no_static_cache() -> None:
    with pytest.raises(ValueError, match="--workload chunk has a growing cache: remove --max-cache-len"):
        fe.export("hf:llama", workload="chunk", max_cache_len=64)
