"""FE404: a TorchBind class has no fake class."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE404",
    name="missing_fake_class",
    severity="error",
    message="TorchBind object has no fake class",
    why="""
The model holds an object of a C++ class that was registered with TorchBind (a script object). The trace
cannot see into C++, and the object's methods read real data, so it needs a stand-in in Python: a fake
class with the same methods, which returns fake tensors of the right shapes. The class also has to
describe its state (`__obj_flatten__`). The cause is in the library that registers the class.
""",
    how_to_repair="""
Register a fake class with the qualified name of the C++ class, and define `__obj_flatten__` in C++. The
fix in the diagnostic contains a skeleton with the class's own methods. If the program does not need the
object, keep it out of the module.
""",
    failing_model="""
import torch
from torch import nn


class Profiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.profile = torch.classes.profiling._ScriptProfile()

    def forward(self, x):
        self.profile.enable()  # <- FE404
        return torch.tanh(x)


def factory():
    return Profiled(), (torch.randn(4),)
""",
    repair="""
 from torch import nn
+
+
+profile = torch.classes.profiling._ScriptProfile()

-        self.profile = torch.classes.profiling._ScriptProfile()

-        self.profile.enable()
""",
    fails_on="capture",
    torch_error="__obj_flatten__",
    fault="operator library",
    links=("https://docs.pytorch.org/tutorials/advanced/custom_class_pt2.html",),
)
