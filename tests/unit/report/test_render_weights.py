"""The verification of a checkpoint as text and as JSON."""

from __future__ import annotations

import json

import torch
from torch import nn

from fakexport.archive import verify_weights
from fakexport.report import json_text, render_weights, weights_to_dict


def report():
    layers = nn.Sequential(*[nn.Linear(4, 2) for _ in range(3)])
    weights = {f"module.{name}": tensor for name, tensor in layers.state_dict().items() if name != "0.bias"}
    return verify_weights(layers, weights)


def test_golden_of_the_text():
    assert render_weights(report()) == (
        "model       Sequential: 6 weights\n"
        "checkpoint  a mapping: 5 entries, 112 B\n"
        "\n"
        "error[FE701]: missing key in checkpoint (5 times)\n"
        "    = note: {0..2}.weight\n"
        "            {1,2}.bias\n"
        "    = note: likely cause: the names in the checkpoint have the prefix `module.`\n"
        "    = cause: the checkpoint\n"
        "\n"
        "error[FE701]: missing key in checkpoint\n"
        "    = note: 0.bias\n"
        "    = cause: the checkpoint\n"
        "\n"
        "warning[FE704]: unexpected key in checkpoint (5 times)\n"
        "    = note: module.{0..2}.weight\n"
        "            module.{1,2}.bias\n"
        "    = note: likely cause: the names in the checkpoint have the prefix `module.`\n"
        "    = cause: the checkpoint\n"
        "\n"
        "6 of 6 weights do not fit: FE701 (6); 2 errors, 1 warning\n"
    )


def test_json_has_every_name():
    data = json.loads(json_text(weights_to_dict(report())))

    assert data["findings"][0]["names"] == ["0.weight", "1.weight", "1.bias", "2.weight", "2.bias"]
    assert data["is_bindable"] is False
    assert data["schema"] == "fakexport.verify-weights/1"


def test_a_checkpoint_that_fits_is_one_line():
    text = render_weights(
        verify_weights(nn.Linear(4, 2), {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)})
    )

    assert text.endswith("all 2 weights fit; 0 errors, 0 warnings\n")


def test_names_from_a_file_do_not_move_the_cursor():
    text = render_weights(verify_weights(nn.Linear(4, 2), {"\x1b[2J": torch.zeros(1)}))

    assert "\x1b" not in text
