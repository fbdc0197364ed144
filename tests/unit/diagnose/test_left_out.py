"""FE104 of a program that lacks a part of its model."""

import torch
from torch import nn

from fakexport.diagnose.left_out import diagnose_left_out
from fakexport.sources import ExampleInputs, Source


class TwoTowers(nn.Module):
    """Cuts `x` by numbers, and leaves out its second layer without an image."""

    def __init__(self):
        super().__init__()
        self.text, self.image = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, sizes, image=None):
        found = torch.cat([self.text(part) for part in x.split(sizes)])
        return found if image is None else found + self.image(image)


def test_the_fix_names_no_option_for_an_input_that_is_numbers():
    module = TwoTowers()
    inputs = ExampleInputs(
        kwargs={"x": torch.zeros(5, 4), "sizes": [2, 3]}, omitted={"image": "no rule determines its shape"}
    )
    program = torch.export.export(module, (), dict(inputs.kwargs))
    source = Source(spec="model", kind="python", factory=TwoTowers, example_inputs=lambda *_: inputs)

    (found,) = diagnose_left_out(source, program, module, inputs)

    assert found.code == "FE104"
    assert found.fix.message == "write a factory that returns the model and all of its inputs"
