"""Match the kernels of a program with those of its eager model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from fakexport.exporting.program import align
from fakexport.report import TensorError

from .error import tensor_error
from .kernels import Kernel


@dataclass(frozen=True)
class Gap:
    """The unmatched kernels between two consecutive pairs, in eager mode and in the program."""

    eager: Sequence[Kernel]
    ours: Sequence[Kernel]


@dataclass(frozen=True)
class Pair:
    """A kernel with a match in eager mode, the largest error of its results, and the gap before the pair."""

    ours: Kernel
    error: TensorError
    gap: Gap


def paired(
    eager: Sequence[Kernel], ours: Sequence[Kernel], exact: Sequence[Kernel], nodes: Sequence[Node]
) -> tuple[list[Pair], Gap]:
    """Match kernels. Return the pairs in order, and the unmatched kernels after the last pair.

    Kernels are paired by operator, shape and dtype. A decomposed program runs different operators than eager
    mode, so unrelated kernels may match by accident. A pair counts as accidental if its values differ,
    unmatched kernels precede it, and a value that is computed from its result is correct.
    """
    references = _references(eager, exact)
    matches = align([kernel.key for kernel in eager], [kernel.key for kernel in ours])
    errors = {(i, j): _worst(eager[i], ours[j], references.get(eager[i])) for i, j in matches}
    accidental = set(_accidental(matches, errors, ours, nodes))
    kept = [match for match in matches if match not in accidental]
    pairs, before = [], (-1, -1)
    for i, j in kept:
        gap = Gap(eager[before[0] + 1 : i], ours[before[1] + 1 : j])
        pairs.append(Pair(ours[j], errors[i, j], gap))
        before = (i, j)
    return pairs, Gap(eager[before[0] + 1 :], ours[before[1] + 1 :])


def _worst(eager: Kernel, ours: Kernel, exact: Kernel | None) -> TensorError:
    """Return the largest error among the results of two matching kernels."""
    references = exact.results if exact is not None else (None,) * len(eager.results)
    errors = [tensor_error(*each) for each in zip(eager.results, ours.results, references, strict=True)]
    none = TensorError(True, 0.0, None, None, 0.0)
    return max(errors, key=lambda each: (not each.is_close, not each.is_equal, each.difference), default=none)


def _references(eager: Sequence[Kernel], exact: Sequence[Kernel]) -> Mapping[Kernel, Kernel]:
    """Map eager kernels to the matching kernels of the double-precision run."""
    pairs = align([kernel.shape_key for kernel in eager], [kernel.shape_key for kernel in exact])
    return {eager[i]: exact[j] for i, j in pairs}


def _accidental(
    matches: Sequence[tuple[int, int]],
    errors: Mapping[tuple[int, int], TensorError],
    ours: Sequence[Kernel],
    nodes: Sequence[Node],
) -> Iterator[tuple[int, int]]:
    """Yield accidental pairs. A differing pair that directly follows an equal pair is not accidental."""
    right = [j for i, j in matches if errors[i, j].is_close and _is_conclusive(j, ours)]
    before, is_trusted = (-1, -1), True
    for i, j in matches:
        is_apart = i - before[0] > 1 and j - before[1] > 1
        before = (i, j)
        if errors[i, j].is_close:
            is_trusted = True
            continue
        is_trusted = is_trusted and not is_apart
        if is_trusted:
            return  # From here on, differences are real.
        later = _computed_from(ours[j].node, nodes)
        if any(k > j and ours[k].node in later for k in right):
            yield i, j


def _is_conclusive(index: int, kernels: Sequence[Kernel]) -> bool:
    """Return whether a correct result of a kernel proves that all inputs of its node are correct.

    Masks can be correct by chance. A kernel inside a node, such as the transpose of a weight, may read only
    some of the node's inputs.
    """
    kernel = kernels[index]
    is_last = index + 1 == len(kernels) or kernels[index + 1].node is not kernel.node
    return is_last and any(each.is_floating_point() and each.numel() > 1 for each in kernel.results)


def _computed_from(node: Node | None, nodes: Sequence[Node]) -> set[Node | None]:
    """Return a node and all nodes that depend on it."""
    found = {node}
    for other in nodes:
        if not found.isdisjoint(other.all_input_nodes):
            found.add(other)
    return found
