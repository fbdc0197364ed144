"""What `_torch/pytree.py` relies on."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import torch

from fakexport._torch.pytree import (
    container_children,
    has_tensor,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

Point = namedtuple("Point", ["x", "y"])


def test_leaves_come_in_the_order_of_the_containers():
    assert tree_leaves({"b": (1, [2]), "a": Point(3, None)}) == [1, 2, 3, None]


def test_a_tensor_is_found_in_any_container():
    assert has_tensor({"a": (1, [torch.zeros(2)])})
    assert not has_tensor({"a": (1, [None])})


def test_a_map_keeps_the_containers():
    assert tree_map(lambda leaf: leaf + 1, {"a": (1, [2])}) == {"a": (2, [3])}


def test_registered_containers_have_children_and_leaves_have_none():
    assert container_children(OrderedDict(a=1, b=2)) == [1, 2]
    assert container_children(object()) is None


def test_a_structure_has_the_context_of_its_container_and_makes_it_again():
    leaves, structure = tree_flatten(Point(1, [2]))

    assert leaves == [1, 2]
    assert structure.context is Point
    assert tree_unflatten([3, 4], structure) == Point(3, [4])
