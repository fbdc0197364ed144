"""FlexAttention is stored without weights or with linked ones: torch's format cannot say its block mask.

The oracle is eager.
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fakexport as fe
from fakexport.archive.weights import open_checkpoint

LINE = (
    "cannot store node flex_attention (flex_attention): torch's format cannot store a tuple of Node, "
    "NoneType, int, but an archive with weights must use that format: save the program "
    "without weights, or link the weights"
)


class Windowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.linear(x).unflatten(-1, (2, 16)).transpose(1, 2)
        mask = create_block_mask(windowed, None, None, x.size(1), x.size(1), device=x.device)
        return flex_attention(q, q, q, block_mask=mask, score_mod=sloped)


def windowed(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return (row >= column) & (row - column < 3)


def sloped(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return score + (row - column) * 0.5


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flex")
    torch.manual_seed(0)
    eager = Windowed()
    save_file(eager.state_dict(), folder / "model.safetensors")
    program = fe.export(Windowed, (torch.ones(1, 8, 32),))
    fe.save(program, folder / "flex.pt2")
    return eager, folder


@pytest.mark.slow
def test_a_linked_archive_gives_the_same_bits(case):
    eager, folder = case
    checkpoint = open_checkpoint(folder / "model.safetensors")
    x = torch.randn(1, 8, 32)

    fe.save(fe.bind(folder / "flex.pt2", checkpoint), folder / "linked.pt2", link=checkpoint)

    assert torch.equal(fe.load(folder / "linked.pt2").module()(x), eager(x))


def test_an_archive_with_weights_is_refused_with_what_helps(case):
    _, folder = case
    bound = fe.bind(folder / "flex.pt2", folder / "model.safetensors")

    with pytest.raises(ValueError, match="cannot store a tuple") as caught:
        fe.save(bound, folder / "bound.pt2")

    assert str(caught.value) == LINE
    assert not (folder / "bound.pt2").exists()
