"""Parameters that a program holds and does not use."""

import pytest
import torch
from torch import nn

from fakexport.exporting.capture import capture
from fakexport.exporting.program import UnusedParameters, unused_parameters


class Towers(nn.Module):
    """Two towers, of which one input runs one; a tie; a parameter that is never used."""

    def __init__(self):
        super().__init__()
        self.text = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.image = nn.ModuleDict({"patch": nn.Linear(3, 2), "norm": nn.LayerNorm(2), "act": nn.ReLU()})
        self.head = nn.Linear(2, 2, bias=False)
        self.head.weight = self.text[1].weight
        self.spare = nn.Parameter(torch.zeros(5))

    def forward(self, text, pixels=None):
        if pixels is not None:
            text = text + self.image["norm"](self.image["patch"](pixels))
        return self.text[0](text) @ self.head.weight


@pytest.mark.parametrize("strict", [False, True])
def test_what_no_node_reads_is_found_by_its_largest_modules(strict):
    module = Towers()
    program = capture(module, (torch.zeros(4, 2),), strict=strict).program

    found = unused_parameters(program, module)

    assert found == UnusedParameters(("spare", "text.1.bias", "image"), 5 + 2 + 12, 5 + 6 + 6 + 12)


def test_a_program_of_the_whole_model_leaves_what_nothing_uses():
    module = Towers()
    program = capture(module, (torch.zeros(4, 2), torch.zeros(4, 3))).program

    assert unused_parameters(program, module).modules == ("spare", "text.1.bias")
