"""A program for GPUs is loaded and moved on a machine with fewer GPUs, without using one."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses import fake_tensor

import fakexport as fe


def test_loading_and_moving_a_program_does_not_use_its_devices(tmp_path, monkeypatch):
    """On a machine with one GPU, using `cuda:3` would raise an error, and `cuda:0` would take memory."""

    def used(device):
        raise RuntimeError(f"{device} was used")

    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="4xH100", device_map="cuda:3")
    fe.save(program, tmp_path / "linear.pt2")
    monkeypatch.setattr(fake_tensor, "init_gpu_context", used)

    loaded = fe.load(tmp_path / "linear.pt2")
    moved = fe.retarget(loaded, {"cuda:3": "cuda:1"})

    assert {str(value.device) for value in loaded.state_dict.values()} == {"cuda:3"}
    assert {str(value.device) for value in moved.state_dict.values()} == {"cuda:1"}
