"""FE103: a tensor subclass cannot be kept without data, or in an exported program."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE103",
    name="tensor_subclass_not_kept",
    severity="error",
    message="tensor subclass cannot be kept in the program",
    why="""
A tensor of the model belongs to a subclass of `torch.Tensor`, such as a quantized weight. A wrapper
subclass with `__tensor_flatten__` and `__tensor_unflatten__` is supported: fakexport rebuilds it around
fake tensors, and the exported program holds its inner tensors (torchao's quantized weights are of this
kind). Any other subclass would become a plain tensor, and its own implementation of each operator would
be lost: a quantized weight would be checked, counted and exported as its high-precision original. So the
export stops. The same applies to a subclass that `forward` takes or returns, since the inputs and outputs
of an exported program are plain tensors; to a `DTensor`, whose program depends on the rank; and to a
wrapper whose own shape or dtype disagrees with its inner tensors.
""",
    how_to_repair="""
Give the class `__tensor_flatten__` and `__tensor_unflatten__`, and register the tensor as a parameter or
a buffer. Or keep plain tensors (the integers and the scale) as buffers and compute with them in
`forward`. Replace an input of such a class by plain tensors: its inner tensors, `to_padded_tensor()` of a
nested tensor, `full_tensor()` of a `DTensor`, the data and the mask of a `MaskedTensor`.
""",
    failing_model="""
import torch
from torch import nn
from torch.utils._pytree import tree_map_only


class Int8(torch.Tensor):
    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data, scale):
        self.data_, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data_", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].data_, args[0].scale)
        return func(*tree_map_only(cls, lambda t: t.data_ * t.scale, args), **(kwargs or {}))


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        weight = Int8(torch.ones(8, 8, dtype=torch.int8), torch.full((8, 1), 0.5))
        self.weight = weight

    def forward(self, x):
        return x @ self.weight  # <- FE103


def factory():
    return Quantized(), (torch.randn(2, 8),)
""",
    repair="""
-        self.weight = weight
+        self.register_buffer("weight", weight)
""",
    fails_on="capture",
    torch_error="Unable to cast NotImplemented to Tensor",
    links=(
        "https://docs.pytorch.org/docs/stable/notes/extending.html#subclassing-torch-tensor",
        "https://docs.pytorch.org/ao/stable/",
    ),
)
