"""FE913: an encoder returns zeros for padding in eager mode, and the program does not."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE913",
    name="padding_computed",
    severity="warning",
    message="padded positions differ from eager mode",
    why="""
`nn.TransformerEncoder` has a fast path for inference. Called with `src_key_padding_mask`, in `eval()` and
without gradients, eager mode turns the input into a nested tensor, which has no padding, and fills the padded
positions of the result with zeros. `torch.export` cannot trace that: during an export, torch takes the other
path, and the graph computes values for the padded positions. A pooling layer that averages over all positions
then returns a different result. Positions that are not padded are equal.
""",
    how_to_repair="""
Create the encoder with `enable_nested_tensor=False`, which changes no weights. Eager mode then takes the path
of the program. If the model was trained or evaluated with zeros there, multiply the result with the mask.
""",
    failing_model="""
import torch
from torch import nn


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)  # <- FE913


def factory():
    return Padded().eval(), (torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool))
""",
    repair="""
-        self.encoder = nn.TransformerEncoder(layer, 1)
+        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
""",
    fails_on="never",
    links=(
        "https://github.com/pytorch/pytorch/issues/97111",
        "https://github.com/pytorch/pytorch/pull/163773",
    ),
)
