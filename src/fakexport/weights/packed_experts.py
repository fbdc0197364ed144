"""Experts in MXFP4 for a program that is not quantized: dequantized as transformers loads them on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from fakexport._torch.mxfp4_products import BLOCK, dequantized
from fakexport.weights.checkpoint import Entry
from fakexport.weights.expectation import Weight
from fakexport.weights.layout import Conversion, Read


def dequantizing(
    conversions: Iterable[Conversion], entries: Mapping[str, Entry], wanted: Mapping[str, Weight]
) -> list[Conversion]:
    """Return the conversions with those of blocks and scales replaced, where the program has neither.

    Args:
        conversions: Those of a layout.
        entries: Shapes and dtypes of the entries of the checkpoint.
        wanted: Weights of the program; `experts.down_proj` is made of `experts.down_proj_blocks`, uint8
            `[E, N, K / 32, 16]`, and `experts.down_proj_scales`, uint8 `[E, N, K / 32]`: `[E, K, N]`.
    """
    found = list(conversions)
    renamed = {step.target: step for step in found if not step.operations}
    used: set[Conversion] = set()
    made = []
    for name, weight in wanted.items():
        blocks, scales = renamed.get(f"{name}_blocks"), renamed.get(f"{name}_scales")
        if (
            blocks is None
            or scales is None
            or name in renamed
            or wanted.keys() & {blocks.target, scales.target}
        ):
            continue
        if _are_packed(entries[blocks.entries[0]], entries[scales.entries[0]]):
            made.append(_conversion(name, blocks.entries[0], scales.entries[0], weight.dtype))
            used |= {blocks, scales}
    return [*(step for step in found if step not in used), *made]


def _are_packed(blocks: Entry, scales: Entry) -> bool:
    is_uint8 = blocks.dtype is scales.dtype is torch.uint8
    return is_uint8 and len(blocks.shape) == 4 and blocks.shape == (*scales.shape, BLOCK // 2)


def _conversion(name: str, blocks: str, scales: str, dtype: torch.dtype) -> Conversion:
    def convert(read: Read) -> dict[str, torch.Tensor]:
        # One after the other: numbers take 16 times the memory of their 4 bits on the way.
        experts = zip(read(blocks), read(scales), strict=True)
        return {name: torch.stack([dequantized(*expert, dtype).mT for expert in experts])}

    return Conversion((blocks, scales), name, convert, ("dequantize MXFP4",))
