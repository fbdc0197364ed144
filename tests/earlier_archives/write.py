"""Writes the archives of this folder with this code: `python -m tests.earlier_archives.write COMMIT`.

Run it before a change to what archives hold, in a checkout without the change. Never write over a folder that
is there: its archives are what that code wrote.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.earlier_archives import model

FOLDER = Path(__file__).parent
MODEL = "model.py"


COMMANDS = (
    f"export ../{MODEL}:gated --target H100 --dynamic auto -o dynamic.pt2",
    f"export ../{MODEL}:gated --target cpu -o static.pt2",
    f"export ../{MODEL}:drawn --target cpu -o unbound_constant.pt2",
    f"export ../{MODEL}:gated --target cpu+H100 --device-map down=cuda:0,=cpu --dtype bfloat16 -o placed.pt2",
    f"export ../{MODEL}:read --target cpu -o read.pt2",
    f"export ../{MODEL}:write --target cpu -o write.pt2",
    "bind dynamic.pt2 gated.safetensors --device-map cpu -o bound.pt2",
    "bind static.pt2 gated.safetensors --link -o linked.pt2",
    "bundle read=read.pt2 write=write.pt2 -o bundle.pt2",
    "bind bundle.pt2 embed.safetensors -o bound_bundle.pt2",
)
"""Run in the new folder, one after the other."""


def write(folder: Path) -> None:
    """Writes the checkpoints, which are the same for each commit, and the archives."""
    folder.mkdir()
    gated = {name: value for name, value in model.Gated().state_dict().items() if name != "tied.weight"}
    checkpoints = {"gated": gated, "embed": model.Half(does_read=True).state_dict()}
    for name, tensors in checkpoints.items():
        values = {key: numbered(value) for key, value in tensors.items()}
        save_file(values, folder / f"{name}.safetensors")
    for command in COMMANDS:
        subprocess.run([sys.executable, "-m", "fakexport", *command.split()], cwd=folder, check=True)


def numbered(tensor: torch.Tensor) -> torch.Tensor:
    """Values that need no generator: -0.5, -0.49, ..."""
    return torch.arange(tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape) / 100 - 0.5


if __name__ == "__main__":
    write(FOLDER / sys.argv[1])
