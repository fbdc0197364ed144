"""What the C++ program `generate` needs of a bundle: two packages, one file of weights, and their record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport.archive import Bundle
from fakexport.container import read_container
from fakexport.program import unbound_names, written_state
from fakexport.weights import Weight

from ..aoti import compile_aoti
from ..aoti.package import read_metadata
from ..aoti.stand_ins import held_tensors, without_values
from ..artifact import Report
from ..generation.calls import Call, calls_of
from ..weights_file import FileLayout

FORMAT = "fakexport.generation/2"
WEIGHTS = "model.safetensors"


def packages(bundle: Bundle) -> Mapping[str, Call]:
    """Return the two calls, by the name of their package.

    Raises:
        DeployError: they are not there, or do not fit together.
    """
    prefill, decode = calls_of(bundle)
    return {"prefill.aoti.pt2": prefill, "decode.aoti.pt2": decode}


def write_generation(
    calls: Mapping[str, Call], folder: Path, *, cache: Path | None, report: Report
) -> tuple[bool, tuple[str, ...]]:
    """Compile both programs into a folder, and write their weights once.

    Returns:
        Whether both came from the cache, and the notes of the compilation.
    Raises:
        CompileFailure, DeployError, FileWriteError: as for `compile_aoti`.
    """
    made = []
    for name, call in calls.items():
        report(f"{call.method}: compiling")
        made.append(compile_aoti(without_values(call.program), folder / name, weights="beside", cache=cache))
    has_weights = not any(unbound_names(call.program) for call in calls.values())
    if has_weights:
        report("writing the weights")
        _write_weights({folder / name: call.program for name, call in calls.items()}, folder / WEIGHTS)
    (folder / "generation.json").write_text(_record(*calls.values()), "utf-8")
    notes = () if has_weights else ("the programs have no weights: pass them with `generate --weights PATH`",)
    return all(one.is_cached for one in made), notes


def _write_weights(programs: Mapping[Path, ExportedProgram], path: Path) -> None:
    """Write what the code of either program reads, each weight under one name."""
    tensors: dict[str, torch.Tensor] = {}
    for package, program in programs.items():
        with read_container(package, trust=True) as opened:
            metadata = read_metadata(opened)
        held = held_tensors(program)
        for tensor in metadata.tensors:
            if tensors.keys().isdisjoint((tensor.name, *tensor.aliases)):
                tensors[tensor.name] = held[tensor.name]
    weights = {name: Weight(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    FileLayout.of(weights).write_beside(path, tensors)


def _record(prefill: Call, decode: Call) -> str:
    record = {
        "format": FORMAT,
        "prefill": _call(prefill),
        "decode": _call(decode),
        "defaults": dataclasses.asdict(prefill.record.defaults),
    }
    return json.dumps(record, indent=1) + "\n"


def _call(call: Call) -> dict[str, object]:
    record = dataclasses.asdict(call.record)
    del record["defaults"], record["workload"]
    kept = () if call.record.start is None else written_state(call.program)
    return {**record, "kept": sorted(kept), "length": call.length, "vocabulary": call.vocabulary}
