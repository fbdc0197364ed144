"""Equal digests for one program exported twice, and others for every program that is not the same."""

from functools import cache

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.exporting.program import Fingerprint, diff, diff_fingerprints, fingerprint
from fakexport.report import difference_items


class Model(nn.Module):
    """Two equal blocks, a constant, a tie; every argument changes one thing."""

    def __init__(self, **changed):
        super().__init__()
        self.changed = changed
        size = changed.get("size", 4)
        self.layers = nn.ModuleList(nn.Linear(4 if index == 0 else size, size) for index in range(2))
        self.head = nn.Linear(size, 4, bias=False)
        self.register_buffer("scale", torch.ones(4), persistent=changed.get("persistent", False))
        self.shift = torch.arange(4.0) + changed.get("shift", 0)
        if changed.get("tied"):
            self.layers[1].weight = self.layers[0].weight
        self.to(changed.get("dtype", torch.float32))

    def forward(self, x, y):
        for layer in self.layers:
            x = self.changed.get("act", torch.relu)(layer(x))
        x = self.head(x)
        if "even" in self.changed:
            assert x.shape[0] % 2 == 0
        a, b = (y, x) if self.changed.get("swapped") else (x, y)
        total = torch.sub(a, b, alpha=self.changed.get("alpha", 1)) * self.scale
        if self.changed.get("reordered"):
            return {"b": y * 2, "a": total + self.shift}
        return {"a": total + self.shift, "b": y * 2}


def exported(target="cpu", dynamic=("x.0=2..8",), device_map=None, **changed):
    dtype = changed.get("dtype", torch.float32)

    def factory():
        return Model(**changed), (torch.zeros(4, 4, dtype=dtype), torch.zeros(1, 4, dtype=dtype))

    report = fe.check(factory, target=target, dynamic_shapes=list(dynamic), device_map=device_map)
    program = report.verdicts[0].program
    assert program is not None, str(report)
    return program


@cache
def first():
    return exported()


@cache
def first_print() -> Fingerprint:
    return fingerprint(first())


CHANGES = {
    "operator": {"act": torch.tanh},
    "literal": {"alpha": 2},
    "weight shape": {"size": 6},
    "dtype": {"dtype": torch.bfloat16},
    "value of a constant": {"shift": 1},
    "tie": {"tied": True},
    "persistence": {"persistent": True},
    "order of operands": {"swapped": True},
    "order of outputs": {"reordered": True},
    "condition": {"even": True},
    "range": {"dynamic": ("x.0=2..16",)},
    "static": {"dynamic": ()},
    "target": {"target": "H100"},
    "placement": {"target": "cpu+H100", "device_map": "cuda:0"},
}


def test_one_model_exported_twice_has_one_fingerprint():
    again = fingerprint(exported())

    assert again == first_print()
    assert diff_fingerprints(first_print(), again).is_identical


@pytest.mark.parametrize("changed", CHANGES)
def test_another_program_has_another_digest_and_the_difference_has_words(changed):
    other = fingerprint(exported(**CHANGES[changed]))

    assert other.digest != first_print().digest
    found = diff_fingerprints(first_print(), other)
    words = [item for _, items in difference_items(found) for item in items]
    assert words
    assert not found.is_identical
    assert found.is_identical_but_for_devices == (changed in ("target", "placement"))


@pytest.mark.parametrize("changed", ["operator", "weight shape", "range", "target", "dtype"])
def test_the_difference_is_the_one_of_the_programs(changed):
    other = exported(**CHANGES[changed])

    coarse, exact = diff_fingerprints(first_print(), fingerprint(other)), diff(first(), other)

    assert coarse.operators == exact.operators
    assert coarse.ranges == exact.ranges
    assert set(coarse.devices) == set(exact.devices)
    assert (coarse.node_count_a, coarse.node_count_b) == (exact.node_count_a, exact.node_count_b)
    assert coarse.is_identical_but_for_devices == exact.is_identical_but_for_devices
    assert sum(group.count for group in coarse.nodes_added) == sum(group.count for group in exact.nodes_added)
    assert {(item.kind, item.field) for item in coarse.signature} == {
        (item.kind, item.field) for item in exact.signature
    }


def test_equal_blocks_share_their_lines():
    lines = {(line.operator, line.module_path): line.count for line in first_print().nodes}

    assert lines["aten.linear.default", "layers.*"] == 2
    assert first_print().operators["aten.relu.default"] == 2


def test_an_added_node_has_its_line():
    found = diff_fingerprints(first_print(), fingerprint(exported(act=torch.tanh)))

    (added,) = found.nodes_added
    assert (added.operator, added.count) == ("aten.tanh.default", 2)
    assert added.span is not None
    assert added.span.path.endswith("test_fingerprint.py")
