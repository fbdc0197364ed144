"""Write the test vectors of docs/archive_format.md: `python tools/archive_vectors.py`.

They are archives of each kind, damaged archives, and `vectors.json`, which lists what a reader finds in them.
The expected values are those of the programs that fakexport loads, which the tests compare with the models.
Archives that exist are kept, so that the tests show whether fakexport still reads what older versions wrote.
Delete a file to write it again.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import sympy
import torch
from safetensors.torch import save_file
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from transformers import PreTrainedConfig, PreTrainedModel

import fakexport as fe
from fakexport.archive.loading import load_archive
from fakexport.archive.manifest_json import MANIFEST
from fakexport.archive.weights import open_checkpoint
from fakexport.exporting.program import facts_of
from fakexport.files.container import read_container, write_container

FOLDER = Path(__file__).parents[1] / "docs" / "site" / "vectors"
FOUND = FOLDER / "vectors.json"


class Tied(nn.Module):
    """Has tied weights, a persistent buffer, and constants of several dtypes, one of them transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("steps", torch.tensor(3, dtype=torch.int64))
        self.register_buffer("low", torch.tensor([0.5, -2.0, 1.0, 3.0]).to(torch.bfloat16), persistent=False)
        self.register_buffer("turned", torch.arange(16.0).reshape(4, 4).t(), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False, True, True]), persistent=False)

    def forward(self, rows: torch.Tensor, scale: float = 2.0) -> dict[str, torch.Tensor]:
        hidden = self.second(self.first(rows)) @ self.turned * self.low * self.mask
        return {"hidden": hidden * scale, "steps": self.steps + 1}


class Computed(PreTrainedModel):
    """Has a constant that depends on a weight, and weights that a checkpoint may lack."""

    config_class = PreTrainedConfig
    _keys_to_ignore_on_load_missing: ClassVar = ["table", "ones"]

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.layer = nn.Linear(2, 2)
        self.table = nn.Parameter(torch.arange(6.0).reshape(3, 2), requires_grad=False)
        self.ones = nn.Parameter(torch.ones(2), requires_grad=False)
        self.doubled = self.layer.weight.detach() * 2
        self.post_init()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table[ids] * self.ones) @ self.doubled


class Scaled(nn.Module):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.inner = shared

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.inner(rows) * 3


def tied() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Tied(), (torch.zeros(3, 4),)


def computed() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Computed(PreTrainedConfig()), (torch.tensor([0, 2]),)


def _weights() -> dict[str, torch.Tensor]:
    return {"first.weight": torch.arange(16.0).reshape(4, 4) / 8, "steps": torch.tensor(3)}


def _tied_program() -> ExportedProgram:
    return fe.export(tied, target="H100", dynamic_shapes=["rows.0=batch=2..64"])


def _plain(path: Path) -> None:
    fe.save(_tied_program(), path)


def _computed(path: Path) -> None:
    fe.save(fe.export(computed), path)


def _bundle(path: Path) -> None:
    def alone(kind: type[nn.Module]) -> Callable[[], nn.Module]:
        return lambda: kind(nn.Linear(4, 4))  # type: ignore[call-arg]

    rows = (torch.zeros(3, 4),)
    programs = {
        name: fe.export(alone(kind), rows) for name, kind in {"once": nn.Sequential, "thrice": Scaled}.items()
    }
    fe.save_bundle(programs, path, prefixes={"once": ("", "0."), "thrice": ("", "inner.")})


def _bound(path: Path) -> None:
    fe.save(fe.bind(_tied_program(), _weights(), devices={"cuda:0": "cpu"}), path)


def _linked(path: Path) -> None:
    file = path.with_suffix(".safetensors")
    save_file(_weights(), file)
    checkpoint = open_checkpoint(file)
    fe.save(fe.bind(_tied_program(), checkpoint, devices={"cuda:0": "cpu"}), path, link=checkpoint)


VECTORS: Mapping[str, Callable[[Path], None]] = {
    "plain": _plain, "computed": _computed, "bundle": _bundle, "bound": _bound, "linked": _linked,
}  # fmt: skip


def damaged(archive: Path) -> dict[str, tuple[str, bytes]]:
    """Return damaged copies of an archive: name -> what is wrong, and the bytes."""
    whole = archive.read_bytes()
    with read_container(archive) as container:
        records = {name: container.record(name) for name in container.names}
    manifest = records.pop(MANIFEST)

    def written(records: dict[str, bytes], manifest: bytes = manifest) -> bytes:
        copy = FOLDER / "copy.pt2"
        write_container(copy, records, last=(MANIFEST, lambda digests: manifest))
        content = copy.read_bytes()
        copy.unlink()
        return content

    constant = "data/constants/tensor_0"
    other = bytes(byte ^ 1 for byte in records[constant])
    without = {name: content for name, content in records.items() if name != constant}
    newer = manifest.replace(b"fakexport.archive/1", b"fakexport.archive/2")
    unknown = manifest.replace(b'{"format":', b'{"colour":"red","format":')
    return {
        "truncated": ("the end records are missing", whole[:-30]),
        "damaged": ("the CRC-32 of a record differs", whole.replace(records[constant], other)),
        "replaced": ("the sha256 of a record differs", written({**records, constant: other})),
        "missing": ("a record that the manifest lists is missing", written(without)),
        "extra": (
            "the manifest does not list a record",
            written({**records, "data/constants/tensor_99": b"\0"}),
        ),
        "newer": ("the format is fakexport.archive/2", written(records, newer)),
        "unknown": ("the manifest has a field that the format does not have", written(records, unknown)),
    }


def found(path: Path) -> dict[str, Any]:
    """Return what a reader finds in an archive, read with fakexport and torch."""
    loaded = load_archive(path, is_whole=True)
    manifest = loaded.manifest
    return {
        "methods": {
            name: {
                "source": about.source,
                "topology": about.topology,
                "weights": {
                    entry.name: {
                        **_tensor(loaded.bundle[name].state_dict[entry.name]),
                        "aliases": list(entry.aliases),
                        "source": entry.source,
                    }
                    for entry in about.tensors
                },
                "computed": {
                    key: None if value is None else _elements(value)
                    for key, value in sorted((facts_of(loaded.bundle[name]).computed or {}).items())
                },
                **_program(loaded.bundle[name]),
            }
            for name, about in manifest.methods.items()
        },
        "shared": [[list(pair) for pair in weight] for weight in manifest.shared],
    }


def _program(program: ExportedProgram) -> dict[str, Any]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    inputs = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    outputs = [spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    calls = (node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    counted = Counter(map(str, calls))
    return {
        "constants": {name: _tensor(constant) for name, constant in sorted(program.constants.items())},
        "inputs": [_value(argument, values) for argument in inputs],
        "outputs": [_value(argument, values) for argument in outputs],
        "ranges": {
            str(symbol): [_bound_of(bounds.lower), _bound_of(bounds.upper)]
            for symbol, bounds in sorted(program.range_constraints.items(), key=str)
        },
        "operators": {
            f"torch.ops.{name.replace('::', '.')}": count for name, count in sorted(counted.items())
        },
    }


def _bound_of(number: Any) -> int | None:
    return int(number) if number.is_Integer else None


def _value(argument: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(argument, TensorArgument):
        return {"name": argument.name, "value": getattr(argument, "value", None)}
    tensor = values[argument.name]
    return {"name": argument.name, "dtype": _dtype(tensor), "shape": [_size(size) for size in tensor.shape]}


def _size(size: int | torch.SymInt) -> int | str:
    if isinstance(size, int):
        return size
    return re.sub(r"Symbol\('(\w+)'[^()]*\)", r"\1", sympy.srepr(size.node.expr))


def _tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the description of a tensor, with its elements in row-major order, or null if it has no data."""
    values = None
    if not fe.is_fake(tensor):
        values = _elements(tensor.detach())
    elif (known := _known(tensor)) is not None:
        values = _elements(known)
    return {
        "dtype": _dtype(tensor),
        "shape": list(tensor.shape),
        "device": str(tensor.device),
        "values": values,
    }


def _elements(tensor: torch.Tensor) -> list[Any]:
    return (torch.view_as_real(tensor).reshape(-1, 2) if tensor.is_complex() else tensor.flatten()).tolist()


def _known(tensor: torch.Tensor) -> torch.Tensor | None:
    try:
        return fe.constant_value(tensor)
    except fe.FakexportError:
        return None


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    os.chdir(FOLDER)
    expected: dict[str, Any] = {"valid": {}, "invalid": {}}
    for name, write in VECTORS.items():
        path = FOLDER / f"{name}.pt2"
        if not path.exists():
            write(path)
        expected["valid"][path.name] = found(path)
    for name, (fault, content) in damaged(FOLDER / "plain.pt2").items():
        path = FOLDER / f"{name}.pt2"
        if not path.exists():
            path.write_bytes(content)
        expected["invalid"][path.name] = fault
    FOUND.write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
