"""A module accepts `**kwargs` in the order of the export, because `forward` may iterate over them."""

import pytest
import torch
from torch import nn

import fakexport as fe


class First(nn.Module):
    def forward(self, x, *others, **named):
        return next(iter(named.values())) - x


@pytest.mark.parametrize("names", [("a", "b"), ("others", "named")])
def test_kwargs_in_a_different_order_are_refused(names):
    x, values = torch.ones(2, 3), {name: torch.full((2, 3), float(at)) for at, name in enumerate(names)}
    run = fe.export(lambda: (First(), (x,), values)).module()

    assert torch.equal(run(x, **values), First()(x, **values))
    with pytest.raises(TypeError, match="the arguments are in the order"):
        run(x, **dict(reversed(values.items())))
