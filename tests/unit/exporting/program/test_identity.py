"""Change each part of a program: `diff` and the digest of a lock notice everything that changes a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe
from fakexport.exporting.program import (
    ComparedProgram,
    ProgramFacts,
    compared,
    diff_compared,
    fingerprint,
    keep_facts,
)
from fakexport.exporting.program.identity import WITHOUT_EFFECT
from tests.program_changes import (
    Change,
    changes_of_calls,
    changes_of_guards,
    changes_of_nodes,
    changes_of_ranges,
    changes_of_signature,
    changes_of_tensors,
    copied,
    sample,
    variants,
)


class Rich(nn.Module):
    """Ties, constants of several kinds, a written buffer, a branch, a guard, a range, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(4))
        whole = torch.arange(4.0)
        self.register_buffer("whole", whole)
        self.register_buffer("part", whole[:2])
        self.register_buffer("table", torch.tensor([0.0, 1.0, math.nan, 3.0]), persistent=False)
        self.flags = torch.tensor([True, False, True, True])
        self.unknown = self.first.weight.detach().amax(0) * 2

    def forward(self, x: torch.Tensor, *, scale: float = 2.0, names: dict[str, torch.Tensor]) -> Any:
        assert x.shape[0] % 2 == 0
        self.mean.mul_(0.9).add_(x.mean(0))
        hidden = self.second(self.first(x)) * self.table + self.whole + self.part.sum() + names["b"]
        branch = torch.cond(hidden.sum() > 0, lambda y: y.sin() * 3, lambda y: y.cos(), (hidden,))
        return {"y": branch * scale + names["a"], "z": (hidden * self.flags * self.unknown).to(torch.float16)}


class Quantized(nn.Module):
    """Integer weights with a scale: numbers that only appear as arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(4, 4, dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> Any:
        weight = torch.ops.quantized_decomposed.dequantize_per_tensor(
            self.weight, 0.5, 3, -128, 127, torch.int8
        )
        return x @ weight, x.topk(2)


def rich() -> ExportedProgram:
    inputs = {"names": {"a": torch.zeros(4), "b": torch.zeros(4)}}
    with pytest.warns(fe.UnboundConstants):
        return fe.export(Rich, (torch.ones(4, 4),), inputs, dynamic_shapes=["x.0=2..8"])


def quantized() -> ExportedProgram:
    import torch.ao.quantization.fx._decomposed

    return fe.export(Quantized, (torch.ones(4, 4),))


class DataDependent(nn.Module):
    """An unbacked size with its assertions, draws, and a scan of a subgraph."""

    def forward(self, x: torch.Tensor, n: int) -> Any:
        found = x.nonzero()
        torch._check(found.shape[0] >= 2)
        torch._check(found.shape[0] <= 40)
        dropped = torch.nn.functional.dropout(x, 0.25, training=True)
        return [found[: found.shape[0] - 1], dropped.to("cpu", torch.float64, copy=True), x[:, 1:n:2], None]


def data_dependent() -> ExportedProgram:
    return fe.export(DataDependent, (torch.ones(4, 8), 7))


def on_gpu() -> ExportedProgram:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()

    return fe.export(factory, (torch.ones(4, 4),), target="H100")


PROGRAMS = {"rich": rich, "quantized": quantized, "data dependent": data_dependent, "on a GPU": on_gpu}

# Every other attribute of a program, and every other entry of `meta`, has to be noticed.
UNSEEN = {
    "meta tensor_meta": "torch's copy of the value's shape and dtype",
    "meta nn_module_stack": "where a node comes from",
    "meta stack_trace": "where a node comes from",
    "meta torch_fn": "where a node comes from",
    "meta from_node": "where a node comes from",
    "meta source_fn_stack": "where a node comes from",
    "meta custom": "notes of the user's passes",
    "meta partitioner_tag": "notes of torch's passes",
    "meta unbacked_bindings": "the symbols are in the values",
    "meta eager_input_vals": "a hint of torch for compilers",
    "message of an assertion": "it names nodes",
}
HANDLED = {
    "_graph_module": changes_of_nodes,
    "_graph_signature": changes_of_signature,
    "_state_dict": changes_of_tensors,
    "_constants": None,  # As `_state_dict`.
    "_range_constraints": changes_of_ranges,
    "_guards_code": changes_of_guards,
    "_module_call_graph": changes_of_calls,
    "_example_inputs": None,  # They change no result.
    "_verifiers": None,  # They only check.
    "_fakexport_facts": None,  # See the next test.
}


@cache
def made(name: str) -> tuple[ExportedProgram, str]:
    program = PROGRAMS[name]()
    return program, fingerprint(program).digest


@cache
def compared_once(name: str) -> ComparedProgram:
    """Return what `fe.diff` reads of a program."""
    return compared(made(name)[0])


def is_noticed(name: str, change: Change) -> tuple[bool, bool]:
    program, digest = made(name)
    changed = copied(program)
    change(changed)
    try:
        found = compared(changed)
    except Exception:  # No program at all.
        return True, True
    return not diff_compared(compared_once(name), found).is_identical, found.identity.digest != digest


def all_changes(name: str) -> Iterator[tuple[str, Change]]:
    program, _ = made(name)
    assert vars(program).keys() == HANDLED.keys()
    for changes in filter(None, HANDLED.values()):
        yield from changes(program)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_copy_and_an_archive_of_a_program_are_the_same(name, tmp_path):
    program, digest = made(name)
    fe.save(program, tmp_path / "model.pt2")

    for same in (copied(program), fe.load(tmp_path / "model.pt2")):
        assert fe.diff(program, same).is_identical, fe.diff(program, same)
        assert fingerprint(same).digest == compared(same).identity.digest == digest


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_change_of_a_program_is_noticed(name):
    unseen = [label for label, change in all_changes(name) if is_noticed(name, change) != (True, True)]

    assert not [label for label in unseen if not any(label.endswith(f" {known}") for known in UNSEEN)]


class Holds(nn.Module):
    """One constant of given bits."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.value.to_dense().float()


def nan(payload: int) -> torch.Tensor:
    return torch.tensor([0x7FC00000 + payload], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(1), -torch.zeros(1)),
        (nan(0), nan(1)),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16) * 1.0079),
        (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
    ],
)
def test_constants_are_compared_by_their_bits(one, other):
    first, same, second = (
        torch.export.export(Holds(value), (torch.ones(2, 2),)) for value in (one, one.clone(), other)
    )

    assert fe.diff(first, same).is_identical
    found = fe.diff(first, second)
    assert not found.is_identical
    assert [(item.name, item.field) for item in found.constants] == [("value", "value")]
    assert found.constants[0].a != found.constants[0].b
    assert fingerprint(first).digest != fingerprint(second).digest


class Derived(nn.Module):
    """A constant that is computed from a parameter."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.derived = compute(self.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.derived * self.weight


def test_constants_without_a_value_are_compared_by_how_they_are_computed():
    with pytest.warns(fe.UnboundConstants):
        twice, again, thrice, rows, offset = (
            fe.export(lambda compute=compute: Derived(compute), (torch.ones(3, 4),))
            for compute in (
                lambda w: w * 2,
                lambda w: w * 2,
                lambda w: w * 3,
                lambda w: w.flip(0) * 2,
                lambda w: w * torch.tensor([2.0, 2.0, 2.0, 3.0]),
            )
        )

    assert fe.diff(twice, again).is_identical
    for other in (thrice, rows, offset):
        assert not fe.diff(twice, other).is_identical
        assert fingerprint(twice).digest != fingerprint(other).digest


class Views(nn.Module):
    """Two buffers that may be views of each other; `forward` may write."""

    def __init__(self, *, is_view: bool, is_written: bool) -> None:
        super().__init__()
        self.is_written = is_written
        self.register_buffer("whole", torch.arange(4.0))
        self.register_buffer("part", self.whole[:2] if is_view else self.whole[:2].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_written:
            self.part.add_(1)
        return x * self.whole + self.part.sum()


def test_views_count_if_the_program_writes_to_them():
    views, copies = (
        torch.export.export(Views(is_view=is_view, is_written=True), (torch.ones(4),))
        for is_view in (True, False)
    )

    found = fe.diff(views, copies)

    assert not found.is_identical
    assert {item.kind for item in found.properties} == {"memory"}
    assert fingerprint(views).digest != fingerprint(copies).digest


def test_views_that_are_only_read_compute_the_same():
    views, copies = (
        fe.export(lambda is_view=is_view: Views(is_view=is_view, is_written=False), (torch.ones(4),))
        for is_view in (True, False)
    )
    weights = {"whole": torch.randn(4), "part": torch.randn(2)}

    assert fe.diff(views, copies).is_identical
    x = torch.randn(4)
    assert torch.equal(fe.bind(views, weights).module()(x), fe.bind(copies, weights).module()(x))


def test_every_change_of_the_facts_is_noticed():
    program, _ = made("quantized")
    full = sample(ProgramFacts)
    base = copied(program)
    keep_facts(base, full)
    digest = fingerprint(base).digest
    unseen = set()
    for each in fields(ProgramFacts):
        for path, other in variants(getattr(full, each.name)):
            changed = copied(program)
            keep_facts(changed, replace(full, **{each.name: other}))
            noticed = not fe.diff(base, changed).is_identical, fingerprint(changed).digest != digest
            assert noticed[0] == noticed[1]
            is_text = each.name == "unbound" and path.startswith(("[0].detail", "[0].span"))
            unseen |= {each.name} if not any(noticed) and not is_text else set()
    assert unseen == WITHOUT_EFFECT.keys()
