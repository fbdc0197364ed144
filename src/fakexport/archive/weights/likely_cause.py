"""Guess from names and shapes why weights and checkpoint entries do not match."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Reports need no torch.
    from fakexport.archive.weights.expectation import Weight

_QUANTIZED = re.compile(
    r"(_scale_inv|\.weight_scale|\.input_scale|\.scales|\.qweight|\.qzeros|\.g_idx|_blocks|_scales|\.absmax"
    r"|\.quant_map|\.SCB|\.weight_packed)$"
)
_VOCABULARY = re.compile(r"(embed|lm_head|wte|shared|vocab|cls|classifier|score)")
_MAX_SIBLINGS = 8
_EXPERTS = re.compile(r"(?:^|(.*)\.)experts\.(\d+\.)?")

Shapes = Mapping[str, "Weight"]


@dataclass(frozen=True)
class Cause:
    """The likely cause of a mismatch.

    Args:
        text: A clause. `names` replace the `{}` in it.
        names: The names for `{}`: checkpoint entries that may be the missing weight, or weights that may be
            the unexpected entry.
        is_harmless: Whether the user can ignore the mismatch.
    """

    text: str
    names: tuple[str, ...] = ()
    is_harmless: bool = False


def causes_of_names(missing: Shapes, unexpected: Shapes, transient: frozenset[str]) -> dict[str, Cause]:
    """Return the likely causes of missing weights and unexpected entries, by name, if known.

    Args:
        transient: Names of non-persistent buffers and other constants that have values.
    """
    found: dict[str, Cause] = {}
    rest_missing, rest_unexpected = dict(missing), dict(unexpected)
    for finder in (_prefixes, _projections, _experts, _neighbours):
        for name, cause in finder(rest_missing, rest_unexpected):
            found.setdefault(name, cause)
        rest_missing = {name: weight for name, weight in rest_missing.items() if name not in found}
        rest_unexpected = {name: weight for name, weight in rest_unexpected.items() if name not in found}
    for name in rest_unexpected:
        if _QUANTIZED.search(name):
            found[name] = Cause(
                "the checkpoint is quantized but the model is not: dequantize the checkpoint first"
            )
        elif name in transient:
            found[name] = Cause("it is a constant that the program already contains", is_harmless=True)
    return found


def cause_of_shape(name: str, wanted: tuple[int, ...], found: tuple[int, ...]) -> Cause | None:
    """Return why an entry and the weight of the same name may differ in shape, or None if unknown."""
    if len(wanted) > 1 and found == wanted[::-1]:
        return Cause("it is transposed")
    if len(wanted) == len(found):
        other = [index for index, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b]
        if len(other) == 1:
            return _cause_of_size(name, other[0], wanted[other[0]], found[other[0]])
        if sorted(wanted) == sorted(found):
            return Cause("its dimensions are in a different order")
    if prod(wanted) == prod(found):
        return Cause("it has the same number of elements in a different layout")
    return None


def _cause_of_size(name: str, axis: int, wanted: int, found: int) -> Cause | None:
    if axis == 0 and _VOCABULARY.search(name):
        return Cause("the vocabulary size or the number of classes differs")
    if found and wanted % found == 0:
        return Cause(f"it may be one of {wanted // found} tensor-parallel shards along dimension {axis}")
    if wanted and found % wanted == 0:
        return Cause(f"{found // wanted} projections may be merged along dimension {axis}")
    return Cause("the configuration may belong to a model of a different size")


def _prefixes(missing: Shapes, unexpected: Shapes) -> Iterator[tuple[str, Cause]]:
    """Yield names that match except for a prefix, starting with the prefix that explains the most names."""
    pairs = [*_suffix_pairs(missing, unexpected, True), *_suffix_pairs(unexpected, missing, False)]
    votes = Counter((prefix, is_extra) for _, _, prefix, is_extra in pairs)
    pairs.sort(key=lambda pair: -votes[pair[2], pair[3]])
    seen: set[str] = set()
    for weight, entry, prefix, is_extra in pairs:
        if weight in seen or entry in seen:
            continue
        seen |= {weight, entry}
        verb = "have the prefix" if is_extra else "lack the prefix"
        cause = Cause(f"the names in the checkpoint {verb} `{prefix}`")
        yield weight, cause
        yield entry, cause


def _suffix_pairs(short: Shapes, long: Shapes, is_extra: bool) -> Iterator[tuple[str, str, str, bool]]:
    for name, weight in long.items():
        parts = name.split(".")
        for start in range(1, min(len(parts), 12)):
            end = ".".join(parts[start:])
            if end in short and short[end].shape == weight.shape:
                prefix = ".".join(parts[:start]) + "."
                yield (end, name, prefix, True) if is_extra else (name, end, prefix, False)


def _projections(missing: Shapes, unexpected: Shapes) -> Iterator[tuple[str, Cause]]:
    """Yield projections (such as q, k, v) that only the model or only the checkpoint concatenates."""
    for parts, wholes, is_merged in ((missing, unexpected, True), (unexpected, missing, False)):
        siblings: dict[tuple[str, str], list[str]] = {}
        for name in parts:
            siblings.setdefault(_family(name), []).append(name)
        for whole, weight in wholes.items():
            chosen = _concatenated(weight.shape, siblings.get(_family(whole), [])[:_MAX_SIBLINGS], parts)
            if chosen is None:
                continue
            if is_merged:
                of_whole, of_part = "it merges {}", "it is merged into {} in the checkpoint"
            else:
                of_whole, of_part = "it is split into {} in the checkpoint", "it is part of {} in the model"
            yield whole, Cause(of_whole, chosen)
            yield from ((name, Cause(of_part, (whole,))) for name in chosen)


def _family(name: str) -> tuple[str, str]:
    """Return a projection's parent module and its parameter: `attn`, `weight` for `attn.q_proj.weight`."""
    name = re.sub(r"_(weight|bias)$", r".\1", name)  # nn.MultiheadAttention has `in_proj_weight`
    above, _, leaf = name.rpartition(".")
    return above.rpartition(".")[0], leaf


def _concatenated(whole: tuple[int, ...], names: Sequence[str], parts: Shapes) -> tuple[str, ...] | None:
    for count in (3, 2):
        for chosen in combinations(names, count):
            shapes = [parts[name].shape for name in chosen]
            for axis in {0, len(whole) - 1}:
                if (
                    whole
                    and all(len(shape) == len(whole) for shape in shapes)
                    and whole == _cat(shapes, axis)
                ):
                    return chosen
    return None


def _cat(shapes: Sequence[tuple[int, ...]], axis: int) -> tuple[int, ...] | None:
    first = shapes[0]
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) != 1:
        return None
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def _experts(missing: Shapes, unexpected: Shapes) -> Iterator[tuple[str, Cause]]:
    """Yield experts that only the model or only the checkpoint merges into a single tensor."""
    for separate, merged, where, other in (
        (unexpected, missing, "checkpoint", "model"),
        (missing, unexpected, "model", "checkpoint"),
    ):
        cause = Cause(f"the experts are separate tensors in the {where} and merged in the {other}")
        single = {name: home for name in separate if (home := _home_of_experts(name, is_single=True))}
        whole = {name: home for name in merged if (home := _home_of_experts(name, is_single=False))}
        met = set(single.values()) & set(whole.values())
        yield from ((name, cause) for name, home in {**single, **whole}.items() if home in met)


def _home_of_experts(name: str, *, is_single: bool) -> str | None:
    """Return the path of the experts module of a tensor of one expert (`is_single`) or of all experts.

    Return None for any other tensor.
    """
    match = _EXPERTS.match(name)
    if match is None or (match[2] is not None) != is_single:
        return None
    return f"{match[1]}.experts"


def _neighbours(missing: Shapes, unexpected: Shapes) -> Iterator[tuple[str, Cause]]:
    """Pair a missing key with an unexpected key if they are the only ones of their module and shape."""
    places: dict[tuple[tuple[str, str], tuple[int, ...]], tuple[list[str], list[str]]] = {}
    for side, names in enumerate((missing, unexpected)):
        for name, weight in names.items():
            places.setdefault((_family(name), weight.shape), ([], []))[side].append(name)
    for weights, entries in places.values():
        if len(weights) == len(entries) == 1:
            yield weights[0], Cause("possibly stored as {}", (entries[0],))
            yield entries[0], Cause("possibly the entry for {}", (weights[0],))
