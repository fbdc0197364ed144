"""The verification of a checkpoint as text and as JSON."""

from __future__ import annotations

import torch
from torch import nn

from fakexport.archive import verify_weights
from fakexport.report import render_weights


def test_control_characters_in_names_are_escaped():
    text = render_weights(verify_weights(nn.Linear(4, 2), {"\x1b[2J": torch.zeros(1)}))

    assert "\x1b" not in text
