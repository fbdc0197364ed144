"""Models with operators that torch does not have.

`python examples/custom_ops/model.py` writes weights and inputs for all of them. Of Python, without more ado:

    fakexport check examples/custom_ops/model.py:python_operator --target H100
    fakexport check examples/custom_ops/model.py:without_fake_kernel

Of C++, when the library is built:

    python examples/custom_ops/build.py -o libsignal_ops.so
    fakexport check examples/custom_ops/model.py:cpp_operator --library libsignal_ops.so --target H100
    fakexport check examples/custom_ops/model.py:cpp_class --library libsignal_ops.so --target H100
    fakexport check examples/custom_ops/model.py:without_fake_class --library libsignal_ops.so
"""

import torch
from torch import nn

BATCH, FEATURES = 4, 8
COEFFICIENTS = [0.5, -1.0, 0.25]


@torch.library.custom_op("signal_py::envelope", mutates_args=())
def envelope(x: torch.Tensor) -> torch.Tensor:
    """The largest magnitude so far, along the last dimension."""
    return x.abs().cummax(-1).values


@envelope.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("signal_py::crossings", mutates_args=())
def crossings(x: torch.Tensor) -> torch.Tensor:
    """How often the sign changes along the last dimension. Nothing says which shape that has."""
    return (x[..., 1:].sign() != x[..., :-1].sign()).sum(-1)


class Layered(nn.Module):
    """A linear layer, and what `then` makes of its result."""

    def __init__(self, then):
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)
        self.then = then

    def forward(self, x):
        return self.then(self.linear(x))


class Envelope(nn.Module):
    def forward(self, x):
        return envelope(x)


class Crossings(nn.Module):
    def forward(self, x):
        return crossings(x)


class SoftClip(nn.Module):
    def forward(self, x):
        return torch.ops.signal_ops.soft_clip(x, 1.5)


class Terms(nn.Module):
    """Holds an object of a C++ class."""

    def __init__(self):
        super().__init__()
        self.polynomial = torch.classes.signal_ops.Polynomial(COEFFICIENTS)

    def forward(self, x):
        return self.polynomial.terms(x)


def example(then):
    return Layered(then).eval(), (torch.randn(BATCH, FEATURES),)


def python_operator():
    return example(Envelope())


def without_fake_kernel():
    return example(Crossings())


def cpp_operator():
    return example(SoftClip())


def without_fake_class():
    return example(Terms())


def cpp_class():
    import fake_polynomial  # noqa: F401  (beside this file; it registers the fake class)

    return example(Terms())


def write_files():
    """Random weights, and inputs, as a deployment would have them; no model needs others."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    module, (x,) = example(nn.Identity())
    save_file(module.state_dict(), "weights.safetensors")
    save_file({"x": x}, "in.safetensors")


if __name__ == "__main__":
    write_files()
