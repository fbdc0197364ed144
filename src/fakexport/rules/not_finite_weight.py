"""FE706: a weight holds NaN or infinity."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE706",
    name="not_finite_weight",
    severity="warning",
    message="a weight holds NaN or infinity",
    why="""
Some elements of an entry are not finite. One NaN in a weight makes every output that it touches NaN; an
infinity does so as soon as it meets a zero or another infinity. It is often the trace of a diverged
training, of an overflow in a conversion to float16, or of a file that was not written to its end. It is a
warning, because some models keep `-inf` in a buffer on purpose, as a mask. Only the data tells, so that the
verification does not see it: `bind` looks through the data, for large mapped checkpoints only where it is
asked to.
""",
    how_to_repair="""
Find out where the values come from: compare with the checkpoint before the conversion, and convert to
bfloat16, which has the range of float32, in place of float16.
""",
    failing_model="""
import torch
from torch import nn


def factory():
    return nn.Linear(8, 4), (torch.zeros(2, 8),)


def checkpoint():
    return {
        "weight": torch.full((4, 8), 1e6).half().float(),  # <- FE706
        "bias": torch.zeros(4),
    }
""",
    repaired_model="""
import torch
from torch import nn


def factory():
    return nn.Linear(8, 4), (torch.zeros(2, 8),)


def checkpoint():
    return {
        "weight": torch.full((4, 8), 1e6).bfloat16().float(),
        "bias": torch.zeros(4),
    }
""",
    fails_on="weights",
    fault="checkpoint",
)
