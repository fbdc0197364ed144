"""What `_torch/remembered_sizes.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fakexport._torch.fake_tensors import new_fake_mode
from fakexport._torch.remembered_sizes import RememberedSize, state_of_symbols

META = torch.device("meta")


@pytest.fixture
def sizes():
    mode = new_fake_mode()
    example = torch.empty(6, 10)
    torch._dynamo.mark_dynamic(example, 0)
    torch._dynamo.mark_dynamic(example, 1)
    return mode.from_tensor(example).shape


def test_memory_of_a_remembered_size_has_the_same_bytes_each_time(sizes):
    count = sizes[0] * sizes[1] * 3
    stock = torch.empty_strided((count,), (1,), dtype=torch.float32, device=META)
    remembered = RememberedSize.of(count)

    made = [torch.empty_strided((remembered,), (1,), dtype=torch.float32, device=META) for _ in range(3)]

    for tensor in made:
        assert str(tensor.untyped_storage().nbytes()) == str(stock.untyped_storage().nbytes())
        assert isinstance(tensor.untyped_storage().nbytes().node, SymNode)
    assert len({tensor.untyped_storage()._cdata for tensor in made}) == 3


def test_all_that_reserving_memory_asks_is_remembered(sizes, monkeypatch):
    remembered, plain = (size(sizes[0] * sizes[1]) for size in (RememberedSize.of, lambda size: size))
    for size in (remembered, plain):
        torch.empty_strided((size,), (1,), dtype=torch.float32, device=META)

    def asked(*args, **kwargs):
        raise AssertionError("it computes with symbols once more")

    for name in ("evaluate_expr", "simplify", "replace"):
        monkeypatch.setattr(ShapeEnv, name, asked)

    with pytest.raises(AssertionError, match="once more"):
        torch.empty_strided((plain,), (1,), dtype=torch.float32, device=META)
    torch.empty_strided((remembered,), (1,), dtype=torch.float32, device=META)


def test_what_is_learned_about_a_symbol_shows_in_the_state_of_symbols(sizes):
    before = state_of_symbols(sizes[0])

    assert sizes[0] == 6

    assert state_of_symbols(sizes[0]) != before


def test_it_computes_as_other_sizes_do(sizes):
    remembered = RememberedSize.of(sizes[0])

    for _ in range(2):
        assert str((remembered * 2 + 1).node.expr) == str((sizes[0] * 2 + 1).node.expr)
        assert str((remembered + sizes[1]).node.expr) == str((sizes[0] + sizes[1]).node.expr)
        assert str((sizes[1] - remembered).node.expr) == str((sizes[1] - sizes[0]).node.expr)
        assert bool(remembered >= 0)
        assert not bool(remembered == 0)
