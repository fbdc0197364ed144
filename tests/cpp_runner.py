"""The C++ program of a project, as a user runs it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Runner"]


@dataclass(frozen=True)
class Runner:
    """The built program and a package with its weights."""

    program: Path
    package: Path

    def __call__(self, *options: object, weights: Path | None = None) -> subprocess.CompletedProcess[str]:
        weights = weights or self.package.with_suffix(".safetensors")
        command = [self.program, "--package", self.package, "--weights", weights, *map(str, options)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def refusal(self, *options: object, weights: Path | None = None) -> str:
        """What is at fault, which must be one line, with nothing on stdout."""
        done = self(*options, weights=weights)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        return done.stderr.removeprefix("error: ").rstrip("\n")

    def outputs(
        self, inputs: Mapping[str, torch.Tensor], folder: Path, *, weights: Path | None = None
    ) -> dict[str, torch.Tensor]:
        """What it writes for these inputs; it must say nothing on stderr."""
        from safetensors.torch import load_file, save_file

        save_file(dict(inputs), folder / "in.safetensors")
        out = folder / "out.safetensors"
        done = self("--inputs", folder / "in.safetensors", "--output", out, weights=weights)
        assert (done.returncode, done.stderr) == (0, "")
        found: dict[str, torch.Tensor] = load_file(out)
        return found
