"""Whether a program that differs from eager is what stock `torch.export` makes of the real model."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.export import Dim
from torch.utils import _pytree as pytree

from fakexport.capture.plain_forward import plain_forward
from fakexport.sources import resolve

from .reference import real_model

__all__ = ["compare_case"]


def compare_case(folder: Path, spec: str) -> None:
    """Writes `stock.json`: target -> for each set of sizes that differs from eager, what differs from stock.

    The oracle is `torch.export` of the real model, with real data and the same dynamic sizes; fakexport has
    no part in it but for the plain outputs, without which programs of transformers cannot be traced.
    """
    case = json.loads((folder / "case.json").read_text())
    found = sorted(folder.glob("found-*.pt"))
    differences: dict[str, dict[str, float]] = {}
    if found:
        source = resolve(spec)
        module = real_model(source, case["dtype"])
        example = source.example_inputs(module, "cpu", None)
        args, kwargs = example.args, dict(example.kwargs)
        with warnings.catch_warnings(), source.tracing(module, example), plain_forward(module, args, kwargs):
            warnings.simplefilter("ignore")
            program = torch.export.export(
                module,
                args,
                kwargs,
                dynamic_shapes=[_open(t) for t in args] or {name: _open(t) for name, t in kwargs.items()},
                strict=False,
            )
        run = program.module()
        for path in found:
            _, target, number = path.stem.split("-")
            inputs = load_file(folder / f"inputs-{number}.safetensors")
            torch.manual_seed(0)
            with torch.no_grad():
                stock = _tensors(run(*inputs.values()) if args else run(**inputs))
            differences.setdefault(target, {})[number] = _largest_difference(stock, torch.load(path))
    (folder / "stock.json").write_text(json.dumps(differences))


def _open(tensor: torch.Tensor) -> dict[int, Any]:
    return dict.fromkeys(range(tensor.dim()), Dim.AUTO)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _largest_difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a.numel()]
    return max(float((a.double() - b.double()).abs().nan_to_num(0.0).max()) for a, b in pairs)
