"""What `_torch/copied_values.py` relies on."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch._export import config as export_config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConfig, FakeTensorMode

from fakexport._torch.copied_values import (
    CopiedValues,
    Originals,
    Returned,
    TraceNeeded,
    gradients_need_a_trace,
)
from fakexport._torch.fake_tensors import new_fake_mode, storage_identity
from fakexport._torch.observed_tensors import numbers_of, tensor_facts

MADE = {
    "plain": lambda: torch.ones(2, 3),
    "transposed": lambda: torch.empty_strided((2, 3), (1, 2)),
    "expanded": lambda: torch.ones(1, 3).expand(2, 3),
    "part": lambda: torch.ones(4, 6)[1:3, 1:],
    "empty": lambda: torch.ones(0, 3),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_copy_has_memory_of_its_own_and_the_same_numbers(made):
    with FakeTensorMode():
        original = made()

    copy = CopiedValues({}).fake(original)

    assert numbers_of(copy) == numbers_of(original)
    assert (copy.dtype, copy.device, copy.fake_mode) == (original.dtype, original.device, original.fake_mode)
    assert storage_identity(copy) != storage_identity(original)


def test_what_shared_memory_shares_it_again():
    with FakeTensorMode():
        original = torch.ones(4, 6)
        views = [original, original[1:], original.view(torch.int32), original.t()]

    copies = CopiedValues({}).copied(views)

    assert len({storage_identity(copy) for copy in copies}) == 1
    assert [numbers_of(copy) for copy in copies] == [numbers_of(view) for view in views]


def test_a_copy_is_in_the_memory_of_the_input_that_it_is_given():
    with FakeTensorMode():
        old, new = torch.ones(4, 6), torch.ones(4, 6, requires_grad=True)
        alias = old.detach()

    copy = CopiedValues({storage_identity(old): new}).fake(alias)

    assert storage_identity(copy) == storage_identity(new)
    assert not copy.requires_grad


def test_an_output_that_needs_gradients_has_them_and_gives_none():
    with FakeTensorMode():
        original = torch.ones(2, 3, requires_grad=True) * 2

        copy = CopiedValues({}).tensor(Returned.of(original), lambda number: number)

        assert tensor_facts(copy) == tensor_facts(original)
        with pytest.raises(TraceNeeded):
            copy.sum().backward()


def test_copies_of_values_of_symbolic_size_have_the_same_numbers_and_ask_for_nothing():
    example = torch.empty(6, 10)
    torch._dynamo.mark_dynamic(example, 0)
    torch._dynamo.mark_dynamic(example, 1)
    mode = new_fake_mode()
    original = mode.from_tensor(example)
    with mode:
        values = [
            original,
            original.t(),
            original[1:],
            torch.cat([original, original]),
            original.expand(3, -1, -1),
        ]
        values += [original[:, :2].contiguous(), torch.empty(original.shape[0] // 4, 3), torch.ones(2)]
    environment = mode.shape_env
    guards = len(environment.guards)
    originals = Originals()

    for _ in range(3):
        copies = CopiedValues({}, originals).copied(values)

        for copy, value in zip(copies, values, strict=True):
            assert [_written(n) for n in numbers_of(copy)] == [_written(n) for n in numbers_of(value)]
        memories = [[storage_identity(value) for value in found] for found in (copies, values)]
        assert not set(memories[0]) & set(memories[1])
        assert [m.index(one) for m in memories[:1] for one in m] == [
            memories[1].index(o) for o in memories[1]
        ]
    assert len(environment.guards) == guards


def _written(number):
    return str(number.node.expr.expand()) if isinstance(number, torch.SymInt) else number


def test_a_later_copy_is_what_the_constructor_of_fake_tensors_makes():
    with FakeTensorMode() as mode:
        original = torch.ones(2, 3)
    mode._allow_unsafe_data_ptr_access = False
    originals = Originals()
    CopiedValues({}, originals).fake(original)

    later = CopiedValues({}, originals).fake(original)

    constructed = FakeTensor(mode, torch.ones(2, 3, device="meta"), torch.device("cpu"))
    assert vars(later) == vars(constructed)
    assert tensor_facts(later) == tensor_facts(constructed)
    assert torch._C._dispatch_keys(later) == torch._C._dispatch_keys(constructed)
    assert numbers_of(later) == numbers_of(constructed)
    with pytest.raises(RuntimeError, match="data"):
        later.data_ptr()


@pytest.mark.parametrize(
    "watching",
    [
        lambda: export_config.patch(detect_non_strict_fake_tensor_leaks=True),
        lambda: patch.object(FakeTensorConfig, "debug", True),
    ],
    ids=["leaks", "debug"],
)
def test_what_watches_the_constructor_sees_each_copy(watching):
    with FakeTensorMode():
        original = torch.ones(2, 3)
    originals = Originals()
    CopiedValues({}, originals).fake(original)
    seen = []

    with patch.object(FakeTensor, "__init__", lambda made, *args: seen.append(id(made))):
        unseen = CopiedValues({}, originals).fake(original)
        assert not seen
        with watching():
            later = CopiedValues({}, originals).fake(original)

    assert seen == [id(later)] != [id(unseen)]


@pytest.mark.parametrize("has_gradients", [True, False])
def test_a_view_is_made_again_with_its_base_and_what_autograd_forbids(has_gradients):
    with FakeTensorMode() as mode:
        original = torch.ones(4, 6, requires_grad=has_gradients) * 2
        part = original.split(3, 1)[1]
    base = Returned.of(original)
    hits, misses = mode.cache_hits, mode.cache_misses

    values = CopiedValues({})
    copy, whole = (values.tensor(kept, lambda number: number) for kept in (Returned.of(part, base), base))

    assert (mode.cache_hits, mode.cache_misses) == (hits, misses)
    assert copy._base is whole
    assert tensor_facts(copy) == tensor_facts(part)
    assert numbers_of(copy) == numbers_of(part)
    if has_gradients:
        with pytest.raises(RuntimeError, match="multiple views"):
            copy.add_(1)
        with gradients_need_a_trace(), pytest.raises(TraceNeeded):
            copy.grad_fn  # noqa: B018
    else:
        copy.add_(1)
        assert whole._version == copy._version == 1
