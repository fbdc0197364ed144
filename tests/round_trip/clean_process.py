"""Opens cases in a process where no package of models can be imported: load, bind, run, compare.

`python -m tests.round_trip.clean_process FOLDER...` writes `outcome.json` into each folder.
"""

from __future__ import annotations

import importlib.abc
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = {"transformers", "timm", "diffusers", "accelerate", "torchvision", "tokenizers", "huggingface_hub"}


class NotHere(importlib.abc.MetaPathFinder):
    """Answers for packages of models as if they were not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        package = name.partition(".")[0]
        if package in PACKAGES:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def hide_packages() -> None:
    """From now on no package of models can be imported in this process."""
    found = sorted(PACKAGES & sys.modules.keys())
    assert not found, f"imported already: {found}"
    sys.meta_path.insert(0, NotHere())


def open_case(folder: Path) -> dict[str, Any]:
    """Target -> outcome of each set of sizes; or why there is none.

    An outcome has `tensors`, `is_equal` (bit for bit), `max_difference` and `largest` (of eager's values);
    where it is not equal, `is_equal_copied` says whether it is with weights copied out of the mapped file.
    """
    import fakexport as fe

    case = json.loads((folder / "case.json").read_text())
    outcome: dict[str, Any] = {}
    for target in case.get("dynamic", ()):
        archive = folder / f"{target}.pt2"
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                bound = fe.bind(
                    fe.load(archive),
                    folder / "checkpoint",
                    devices=None if target == "cpu" else {"cuda:0": "cpu"},
                )
            runs = _runs(bound, case, folder)
            if not all(run["is_equal"] for run in runs):
                _copy_weights(bound)
                for run, again in zip(runs, _runs(bound, case, folder), strict=True):
                    run["is_equal_copied"] = again["is_equal"]
            outcome[target] = {"runs": runs, "warnings": [str(w.message) for w in caught]}
        except Exception as error:
            lines = str(error).splitlines() or [""]
            outcome[target] = {"error": f"{type(error).__name__}: {lines[0]}"}
    return outcome


def _runs(bound: Any, case: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    import torch

    from fakexport.deploy import run

    runs = []
    for number in range(1, len(case["sizes"]) + 1):
        expected = _tensors(folder / f"outputs-{number}.safetensors")
        torch.manual_seed(0)
        found = list(run(bound, _tensors(folder / f"inputs-{number}.safetensors")).values())
        runs.append(_compared(list(expected.values()), found))
    return runs


def _copy_weights(bound: Any) -> None:
    """Puts the weights at addresses of torch's own: those in a mapped file are aligned to little."""
    for name, weight in bound.state_dict.items():
        bound.state_dict[name] = type(weight)(weight.detach().clone())


def _tensors(path: Path) -> Mapping[str, Any]:
    from safetensors.torch import load_file

    loaded = load_file(path)
    return {name: loaded[name] for name in sorted(loaded)} if path.name.startswith("outputs") else loaded


def _compared(expected: list[Any], found: list[Any]) -> dict[str, Any]:
    import torch

    shapes = [[list(t.shape), str(t.dtype)] for t in expected]
    if shapes != [[list(t.shape), str(t.dtype)] for t in found]:
        raise AssertionError(
            f"outputs are {[list(t.shape) for t in found]}, eager's {[s for s, _ in shapes]}"
        )
    pairs = list(zip(expected, found, strict=True))
    differences = [(a.double() - b.double()).abs().nan_to_num(0.0, posinf=0.0) for a, b in pairs if a.numel()]
    return {
        "tensors": len(expected),
        "is_equal": all(torch.equal(_bits(a), _bits(b)) for a, b in pairs),
        "max_difference": max((float(d.max()) for d in differences), default=0.0),
        "largest": max(
            (float(a.double().abs().nan_to_num(0.0).max()) for a in expected if a.numel()), default=0.0
        ),
        "has_finite": any(bool(torch.isfinite(a).any()) for a in expected if a.numel()),
    }


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().flatten().view(torch.uint8)


def main(folders: list[str]) -> None:
    hide_packages()
    import torch

    torch.set_num_threads(1)
    for folder in map(Path, folders):
        outcome = open_case(folder)
        (folder / "outcome.json").write_text(json.dumps(outcome))
    loaded = sorted(PACKAGES & sys.modules.keys())
    assert not loaded, loaded


if __name__ == "__main__":
    main(sys.argv[1:])
