"""Models that hold sparse tensors: exported as stock exports them, or a diagnostic with a fix."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe

# The second is of stock, which reads `.grad` of the values of a compressed parameter.
pytestmark = [pytest.mark.filterwarnings("ignore:Sparse"), pytest.mark.filterwarnings("ignore:The .grad")]
LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr")


class Holding(nn.Module):
    def __init__(self, layout, how):
        super().__init__()
        block = {"blocksize": (2, 2)} if layout == "sparse_bsr" else {}
        table = torch.eye(4).to_sparse(layout=getattr(torch, layout), **block)
        if how == "buffer":
            self.register_buffer("table", table)
        else:
            self.table = nn.Parameter(table) if how == "parameter" else table

    def forward(self, x):
        return torch.mm(self.table, x)


def operators(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def layout_of(program):
    node = next(node for node in program.graph.nodes if node.op == "placeholder")
    return str(node.meta["val"].layout).removeprefix("torch.")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["parameter", "buffer"])
def test_a_module_with_a_sparse_weight_gives_the_program_of_stock(layout, how):
    module, args = Holding(layout, how), (torch.ones(4, 2),)
    stock = torch.export.export(module, args)

    live = fe.export(module, args)
    made = fe.export(lambda: Holding(layout, how), args)

    for program in (live, made):
        assert operators(program) == operators(stock)
        assert layout_of(program) == layout_of(stock) == layout
        assert program.graph_signature == stock.graph_signature


def test_a_compressed_weight_exports_for_a_gpu():
    program = fe.export(Holding("sparse_csr", "buffer"), (torch.ones(4, 2),), target="H100")

    assert layout_of(program) == "sparse_csr"
    assert program.state_dict["table"].device == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("layout", "how", "target", "fix"),
    [
        ("sparse_csr", "attribute", "cpu", "register_buffer"),
        ("sparse_coo", "buffer", "H100", "to_dense()"),
        ("sparse_coo", "parameter", "H100", "to_dense()"),
    ],
)
def test_what_cannot_be_exported_is_a_finding_with_a_fix(layout, how, target, fix):
    report = fe.check(lambda: (Holding(layout, how), (torch.ones(4, 2),)), target=[target])

    (found,) = report.diagnostics
    assert found.code in ("FE102", "FE202")
    assert fix in found.fix.message


def test_a_sparse_attribute_cannot_be_saved():
    report = fe.check(lambda: (Holding("sparse_coo", "attribute"), (torch.ones(4, 2),)), target=["cpu"])

    assert [found.code for found in report.diagnostics] == ["FE904", "FE406"]
    torch.export.export(Holding("sparse_coo", "attribute"), (torch.ones(4, 2),))
