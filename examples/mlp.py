"""An MLP of two layers that may stand on two devices.

    fakexport check examples/mlp.py:hybrid --target cpu+H100

`cpu`, `gpu` and `hybrid` say themselves where the layers stand. `factory` leaves that to the target:

    fakexport check examples/mlp.py:factory --target H100
    fakexport check examples/mlp.py:factory --target cpu+H100 --device-map fc1=cpu,act=cpu,fc2=cuda:0
"""

from contextlib import nullcontext

import torch
from torch import nn

BATCH, FEATURES, HIDDEN, CLASSES = 4, 128, 256, 10


class MLP(nn.Module):
    """Linear, GELU, move to the second layer's device, linear.

    Args:
        first: Device of the first layer and of its activation; None: the default device.
        second: Device of the second layer; None: the default device.
    """

    def __init__(self, first=None, second=None):
        super().__init__()
        with default_device(first):
            self.fc1 = nn.Linear(FEATURES, HIDDEN)
            self.act = nn.GELU()
        with default_device(second):
            self.fc2 = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        h = self.act(self.fc1(x))
        h = h.to(self.fc2.weight.device)
        return self.fc2(h)


def default_device(name):
    return nullcontext() if name is None else torch.device(name)


def on(first, second):
    """The module, and an input on the first layer's device."""
    return MLP(first, second).eval(), (torch.randn(BATCH, FEATURES, device=first),)


def cpu():
    return on("cpu", "cpu")


def gpu():
    return on("cuda", "cuda")


def hybrid():
    return on("cpu", "cuda")


def factory():
    return on(None, None)


def write_files():
    """Random weights, and inputs for 7 rows, as a deployment would have them: `python examples/mlp.py`."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model, _ = cpu()
    inputs = torch.randn(7, FEATURES)
    save_file(model.state_dict(), "mlp.safetensors")
    save_file({"x": inputs}, "in.safetensors")
    with torch.no_grad():
        save_file({"output": model(inputs)}, "expected.safetensors")


if __name__ == "__main__":
    write_files()
