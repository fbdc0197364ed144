"""`fakexport verify-buffers`: what it finds, and its exit codes."""

import pytest

from tests.command_line import fakexport_here

MODEL = """
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.register_buffer("inv_freq", 1.0 / torch.arange(1.0, 5.0), persistent=False)

    def forward(self, x):
        return self.proj(x) * self.inv_freq


def right():
    return Rotary(), (torch.ones(2, 4),)


def loaded():
    with torch.device("meta"):
        model = Rotary()
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.inv_freq.fill_(77)
    model.load_state_dict(Rotary().state_dict())
    return model


def broken():
    raise RuntimeError("no such file")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "rotary.py"
    path.write_text(MODEL, encoding="utf-8")
    return path


def test_what_to_empty_left_is_named_with_its_line(model):
    found = fakexport_here("verify-buffers", f"{model}:loaded", code=1).stdout

    assert found.startswith("compared with Rotary()\n")
    assert "error[FE920]: buffer value differs from its initialization" in found
    assert (
        f"rotary.py:{MODEL.splitlines().index(next(x for x in MODEL.splitlines() if 'inv_freq' in x)) + 1}"
        in found
    )
    assert "inv_freq: largest difference 76.8" in found
    assert found.endswith("1 of 1 tensors that no checkpoint contains is wrong; 0 could not be checked\n")


@pytest.mark.parametrize("more", [(), ("right",)])
def test_a_right_model_is_exit_code_0(model, more):
    done = fakexport_here("verify-buffers", f"{model}:right", *(f"{model}:{name}" for name in more))

    assert done.stdout.endswith(
        "0 of 1 tensors that no checkpoint contains are wrong; 0 could not be checked\n"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("{}:broken",), "broken raised RuntimeError: no such file"),
        (("{}:right", "{}:broken"), "the model cannot be built again: RuntimeError: no such file"),
        (("hf:llama",), "hf:llama has no weights: write a factory that loads them"),
        (("{}:gone",), "gone"),
    ],
)
def test_bad_usage_is_one_line(model, arguments, reason):
    done = fakexport_here("verify-buffers", *(text.format(model) for text in arguments), code=2)

    assert reason in done.stderr.splitlines()[-1]
