"""Runs an archived language model in a process that has no transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

PROMPTS = torch.tensor([[1, 2, 3], [4, 5, 6]])
_CODE = """
import sys
sys.modules["transformers"] = None  # Not installed.
import torch, fakexport as fe
program = fe.retarget(fe.load(sys.argv[1] + "/program.pt2"), {"cuda:0": "cpu"})
ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
torch.save(fe.bind(program, sys.argv[1]).module()(**inputs)["logits"], sys.argv[2])
"""


def logits_without_transformers(folder: Path, out: Path) -> torch.Tensor:
    """Return the logits `[2, 3, V]` for `PROMPTS`, computed on a CPU.

    Args:
        folder: Holds `program.pt2`, for one GPU, and a checkpoint for it.
        out: A file for the result.
    """
    subprocess.run([sys.executable, "-c", _CODE, str(folder), str(out)], check=True)
    logits: torch.Tensor = torch.load(out)
    return logits
