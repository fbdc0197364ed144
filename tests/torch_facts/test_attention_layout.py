"""What `fakexport._torch.attention_layout` relies on."""

import pytest
import torch
from torch import nn

from fakexport._torch.attention_layout import functional_program


class Heads(nn.Module):
    def forward(self, x):
        """x: `[batch, sequence, head, dim]`."""
        heads = x.transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
        return attended.contiguous().view(x.shape[0] * x.shape[1], -1)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        x.mul_(2)
        return x.view(-1) + self.calls


def test_torch_cannot_merge_the_heads_of_what_it_decomposed():
    program = torch.export.export(Heads(), (torch.randn(2, 3, 5, 4),))

    with pytest.raises(ValueError, match="Cannot view a tensor"):
        program.run_decompositions()


def test_the_program_can_be_decomposed_afterwards_and_gives_the_same():
    x = torch.randn(2, 3, 5, 4)
    program = torch.export.export(Heads(), (x,))

    decomposed = functional_program(program).run_decompositions()

    torch.testing.assert_close(decomposed.module()(x), Heads()(x))
    assert "scaled_dot_product" not in str(decomposed.graph)


def test_a_program_without_attention_is_made_functional():
    x = torch.ones(2, 3)
    program = torch.export.export(Counter(), (x.clone(),))

    functional = functional_program(program)

    kinds = [spec.kind.name for spec in functional.graph_signature.output_specs]
    assert kinds == ["BUFFER_MUTATION", "USER_INPUT_MUTATION", "USER_OUTPUT"]
    assert not any(
        getattr(node.target, "_schema", None) and node.target._schema.is_mutable
        for node in functional.graph.nodes
    )
