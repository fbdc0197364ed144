"""Match checkpoint entries to weights. Only the checkpoint's headers are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from fakexport._torch.kernels.mxfp4_products import BLOCK, dequantized
from fakexport.archive.weights.checkpoint import Checkpoint, Entry
from fakexport.archive.weights.expectation import ExpectedWeights, Weight
from fakexport.archive.weights.layout import (
    Conversion,
    ConversionFailed,
    Read,
    as_it_is,
    hub_layout,
    is_transformers_model,
)
from fakexport.archive.weights.recipe import by_recipes
from fakexport.files.documents import Recipe


@dataclass(frozen=True)
class Match:
    """The weights that a checkpoint provides, the conversions that produce them, and all mismatches.

    Args:
        made: Shape and dtype of each weight that the checkpoint provides, by name.
        conversions: The conversion that produces each weight.
        twice: Weight name -> entries, for weights that several entries provide, although one is expected.
        failed: Weight name -> the conversion that fails, and the reason.
        missing: Missing keys: names that are expected, but that no entry provides, not even under an alias.
        unexpected: Unexpected keys: entries that the model does not use.
        computed: Weights that no entry provides but that the model's class computes, with their values.
    """

    made: Mapping[str, Weight]
    conversions: Mapping[str, Conversion]
    twice: Mapping[str, tuple[str, ...]]
    failed: Mapping[str, tuple[Conversion, str]]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    computed: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def faults(self, expected: ExpectedWeights) -> tuple[int, int]:
        """Return the number of faulty weights and the number of unused entries. Fewer is better."""
        wanted = expected.all
        shapes = sum(
            weight.shape != wanted[name].shape for name, weight in self.made.items() if name in wanted
        )
        return len(self.missing) + shapes + len(self.twice), len(self.unexpected)


def match(
    checkpoint: Checkpoint,
    expected: ExpectedWeights,
    model: nn.Module | None = None,
    recipes: Collection[Recipe] = (),
) -> Match:
    """Match a checkpoint to weights, and choose the layout that has the fewest faults. Only headers are read.

    Entries may have the program's own names, or the layout of the Hugging Face hub, which transformers
    converts on load. If both fit equally well, a folder with a `config.json` is assumed to have the hub's
    layout. In both layouts, MXFP4 experts are dequantized for a program that is not quantized. Without a
    transformers model, the `recipes` of an archive apply or, if there are none, recipes derived from the
    model's load hooks.
    """
    model = expected.model if model is None else model
    plain = _matched(checkpoint, expected, as_it_is(checkpoint.entries))
    if is_transformers_model(model):
        conversions = hub_layout(checkpoint.entries, model, expected.all)
    elif recipes or model is not None:
        from fakexport.exporting.capture import load_hooks_of  # Needed only to read a model.

        hooks = () if model is None else load_hooks_of(model).recipes
        conversions = by_recipes(recipes or hooks, checkpoint.entries)
    else:
        return plain
    hub = _matched(checkpoint, expected, conversions)
    is_from_hub = checkpoint.folder is not None and (checkpoint.folder / "config.json").is_file()
    readings = (hub, plain) if is_from_hub else (plain, hub)
    return min(readings, key=lambda reading: reading.faults(expected))


def _matched(checkpoint: Checkpoint, expected: ExpectedWeights, conversions: Iterable[Conversion]) -> Match:
    wanted = expected.all
    made: dict[str, Weight] = {}
    by_name: dict[str, Conversion] = {}
    twice: dict[str, tuple[str, ...]] = {}
    failed: dict[str, tuple[Conversion, str]] = {}
    unexpected: list[str] = []
    for conversion in dequantizing(conversions, checkpoint.entries, wanted):
        try:
            weights = _weights(conversion, checkpoint.entries)
        except ConversionFailed as error:
            failed[conversion.target] = conversion, str(error)
            continue
        for name, weight in weights.items():
            if name not in wanted:
                continue
            if name in made:
                twice[name] = (*twice.get(name, by_name[name].entries), *conversion.entries)
                continue
            made[name], by_name[name] = weight, conversion
        if not weights.keys() & wanted.keys():
            unexpected.extend(conversion.entries)
    aliases = expected.aliases()
    missing = tuple(name for name in wanted if not any(alias in made for alias in aliases.get(name, (name,))))
    order = {name: index for index, name in enumerate(checkpoint.entries)}
    unexpected.sort(key=order.__getitem__)
    return Match(made, by_name, twice, failed, missing, tuple(unexpected))


def _weights(conversion: Conversion, entries: Mapping[str, Entry]) -> dict[str, Weight]:
    """Return the shapes and dtypes that a conversion produces, by weight name."""
    if not conversion.operations:
        entry = entries[conversion.entries[0]]
        return {conversion.target: Weight(entry.shape, entry.dtype)}

    def empty(name: str) -> torch.Tensor:
        return torch.empty(entries[name].shape, dtype=entries[name].dtype, device="meta")

    made = conversion.convert(empty)
    return {name: Weight(tuple(tensor.shape), tensor.dtype) for name, tensor in made.items()}


def dequantizing(
    conversions: Iterable[Conversion], entries: Mapping[str, Entry], wanted: Mapping[str, Weight]
) -> list[Conversion]:
    """Combine the conversions of MXFP4 blocks and scales into one, for weights that are not quantized.

    `experts.down_proj` `[E, K, N]` is built from `experts.down_proj_blocks`, uint8 `[E, N, K / 32, 16]`, and
    `experts.down_proj_scales`, uint8 `[E, N, K / 32]`.
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
        # Convert one expert at a time: intermediate values take 16 times the memory of 4-bit weights.
        experts = zip(read(blocks), read(scales), strict=True)
        return {name: torch.stack([dequantized(*expert, dtype).mT for expert in experts])}

    return Conversion((blocks, scales), name, convert, ("dequantize MXFP4",))
