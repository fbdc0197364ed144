"""Tokens that ONNX Runtime generates without fakexport, next to those of `transformers.generate`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers.generation import GenerationMixin

import fakexport as fe
from tests.generation.agreement import NEW_TOKENS, Agreement, prompt
from tests.generation.families import Family
from tests.round_trip.onnx_files import session_of

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import onnx_generate

LENGTHS = ((1,), (5,), (21, 13))
"""Of the prompts in each call; the last call has two prompts, and the shorter one is padded on the left."""


def onnx_agreement(family: Family, folder: Path) -> Agreement:
    """Compile one file for prompt and decoding, and return the tokens after prompts of several lengths."""
    model: Any = family.saved(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fe.PartialExportWarning)
        program = fe.export(f"hf:{folder}", workload="chunk", dynamic_shapes="auto")
    fe.save(program, folder / "model.pt2")
    fe.compile(folder / "model.pt2", folder / "model.onnx", folder, to="onnx", names="optimum")
    session = session_of(folder / "model.onnx")
    found: list[list[int]] = []
    expected: list[list[int]] = []
    for lengths in LENGTHS:
        ids, mask = _padded(lengths)
        found += onnx_generate.generate(session, ids.numpy(), mask.numpy(), NEW_TOKENS).tolist()
        with torch.no_grad():
            made = GenerationMixin.generate(
                model, input_ids=ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False
            )
        expected += made[:, ids.shape[1] :].tolist()
    return Agreement(found, expected)


def _padded(lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [prompt(length)[0] for length in lengths]
    masks = [torch.ones(length, dtype=torch.long) for length in lengths]
    ids, mask = (
        torch.nn.utils.rnn.pad_sequence(each, batch_first=True, padding_side="left") for each in (rows, masks)
    )
    return ids, mask
