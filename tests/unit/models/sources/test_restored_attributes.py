"""What a run of a model keeps in it is gone afterwards."""

import torch
from torch import nn

from fakexport.models.sources.components.component_calls import restored_attributes


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.known = None
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.known = x * 2
        self.steps = self.steps + 1
        self.later = x
        return self.known


def test_attributes_and_buffers_are_those_of_before_and_weights_stay_the_same_objects():
    module = nn.Sequential(Keeps(), nn.Linear(2, 2))
    keeps, weight, steps = module[0], module[1].weight, module[0].steps

    with restored_attributes(module):
        module(torch.ones(2))
        assert keeps.known is not None

    assert keeps.known is None
    assert not hasattr(keeps, "later")
    assert keeps.steps is steps
    assert module[1].weight is weight


def test_a_method_that_a_run_replaces_stays_replaced():
    module = Keeps()
    replaced = module.forward

    with restored_attributes(module):
        module.forward = replaced

    assert vars(module)["forward"] is replaced


def test_what_a_run_that_fails_kept_is_gone_too():
    module = Keeps()

    try:
        with restored_attributes(module):
            module(torch.ones(2))
            raise RuntimeError("later")
    except RuntimeError:
        pass

    assert module.known is None
