"""What `_torch/script_objects.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.script_objects import held_script_object


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.profile = torch.classes.profiling._ScriptProfile()

    def forward(self, x):
        return x + 1


def test_a_failed_export_still_has_the_object_in_its_frames():
    with pytest.raises(Exception) as caught:  # noqa: PT011
        torch.export.export(nn.Sequential(Inner()), (torch.ones(2),))

    held = held_script_object(caught.value)

    assert held is not None
    assert (held.class_name, held.attribute) == ("profiling::_ScriptProfile", "profile")
    assert (held.owner_file, held.owner_class) == (__file__, "Inner")
    assert [name for name, _ in held.methods] == ["enable", "disable", "_dump_stats"]
    assert held.methods[0][1].endswith("-> NoneType _0")


def test_an_error_from_elsewhere_holds_nothing():
    assert held_script_object(ValueError("no traceback")) is None
