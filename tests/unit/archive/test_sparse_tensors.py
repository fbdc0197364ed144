"""Sparse weights and constants are refused when they are saved, by name."""

from __future__ import annotations

import pytest
import torch

import fakexport as fe


class Holding(torch.nn.Module):
    def __init__(self, weight, *, persistent=True):
        super().__init__()
        self.register_buffer("table", weight, persistent=persistent)

    def forward(self, x):
        return torch.sparse.mm(self.table, x)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("layout", "persistent", "what"),
    [("sparse_coo", True, "weight"), ("sparse_csr", True, "weight"), ("sparse_csr", False, "constant")],
)
def test_a_sparse_tensor_is_named(layout, persistent, what, tmp_path):
    weight = torch.eye(4).to_sparse(layout=getattr(torch, layout))
    program = torch.export.export(Holding(weight, persistent=persistent), (torch.ones(4, 2),))

    with pytest.raises(ValueError, match=rf"^the {what} table has the layout {layout}: only strided"):
        fe.save(program, tmp_path / "sparse.pt2")
    assert not any(tmp_path.iterdir())
