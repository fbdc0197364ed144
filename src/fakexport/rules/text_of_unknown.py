"""FE911: forward makes text of a value that is not known while it is traced."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE911",
    name="text_of_unknown",
    severity="warning",
    message="forward makes text of an unknown value",
    why="""
While a model is traced, a dynamic size and a number read from data are symbols, and a tensor has no values.
`str(n)` and `f"{n}"` are then texts such as `s77` or `u0`, and no error says so. A comparison with such a
text is false and a dict does not find it, so that the exported program has the other branch for every input.
Stock `torch.export` does the same. Texts that are only raised, printed or logged are not reported.
""",
    how_to_repair="""
Compare the number itself: of a size, the comparison is then a condition of the program, and of data, it is
reported as FE201. Where text is wanted, make it outside of `forward`, or declare the size fixed.
""",
    failing_model="""
import torch
from torch import nn


class Scale(nn.Module):
    def forward(self, x, n):
        if str(n.item()) == "3":  # <- FE911
            return x * 2
        return x


def factory():
    return Scale(), (torch.randn(2, 8), torch.tensor(3))
""",
    repair="""
-        if str(n.item()) == "3":
-            return x * 2
-        return x
+        return torch.where(n == 3, x * 2, x)
""",
    fails_on="never",
    links=("https://docs.pytorch.org/docs/stable/export.programming_model.html",),
)
