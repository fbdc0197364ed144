"""Programs for the tests of the codec, and stock torch's way of writing and reading them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import serialize as stock
from torch.export import Dim, ExportedProgram, export
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build
from fakexport.exporting.capture import capture
from fakexport.models import parse_dynamic
from fakexport.models.sources import Source
from tests.real_constants import tiny_source
from tests.unit.models.sources.tiny_configs import TINY


def exported(source: Source, topology: str, dynamic: Any = None) -> ExportedProgram:
    """A fake program without example inputs."""
    with emulate(topology) as devices:
        built = build(source.factory, device_map=devices.default_device)
        with built.mode:
            inputs = source.example_inputs(built.module, built.placement.input_device, None)
        tracing = partial(source.tracing, built.module, inputs)
        dims = None if dynamic is None else parse_dynamic(dynamic)
        captured = capture(built.module, inputs.args, inputs.kwargs, dynamic=dims, tracing=tracing)
    assert captured.program is not None, captured.failure
    captured.program._example_inputs = None
    return captured.program


def tiny(name: str, folder: Path, topology: str, dynamic: Any = None) -> ExportedProgram:
    return exported(tiny_source(name, TINY[name][0], folder), topology, dynamic)


def stock_text(program: ExportedProgram) -> str:
    artifact = stock.serialize(program, serialize_state_dict=False, serialize_constants=False)
    return artifact.exported_program.decode()


def stock_program(text: str, state_dict: Any, constants: Any) -> ExportedProgram:
    artifact = stock.SerializedArtifact(text.encode(), dict(state_dict), dict(constants), b"")
    return stock.deserialize(artifact)


def without_traces(document: Any) -> Any:
    """The document without what we write in another way than stock torch: paths, names of graph nodes."""
    if isinstance(document, dict):
        own = ("stack_trace", "from_node", "graph_names")
        return {key: without_traces(value) for key, value in document.items() if key not in own}
    return [without_traces(value) for value in document] if isinstance(document, list) else document


def by_name(document: Any) -> Any:
    """The document with the arguments of each call sorted by name; we keep the order they were given in."""
    if isinstance(document, dict):
        return {key: by_name(value) for key, value in document.items()}
    if isinstance(document, list):
        values = [by_name(value) for value in document]
        is_call = all(isinstance(value, dict) and "arg" in value and value.get("name") for value in values)
        return sorted(values, key=lambda value: value["name"]) if is_call else values
    return document


class EveryKind(torch.nn.Module):
    """Lists, optional values, scalars, dtypes, devices, several results, unused ones, mutation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.ones(3), persistent=False)
        self.table = torch.arange(6.0).reshape(2, 3)

    def forward(self, x, flag: bool = True, *, extra=None):
        self.count.add_(1)
        left, right = torch.split(x, 2, dim=1)
        values, _ = torch.max(x, dim=1)
        normal = torch.nn.functional.layer_norm(right @ self.weight[:2], (3,), None, None, 1e-5)
        picked = normal[:, torch.tensor([0, 2])]
        shaped = torch.full((x.shape[0], 2), float("inf"), dtype=torch.float64)
        with torch.no_grad():
            still = left.sum(dim=(0, 1), keepdim=True) * 2.5
        cat = torch.cat([left, picked.to(torch.float16).float()], dim=1).contiguous()
        both = cat * self.scale.sum() + self.table.mean()
        return {"a": (values, [shaped, still]), "b": both, "n": x.shape[0] // 2}


class Branches(torch.nn.Module):
    """A condition, a value that only running tells, and what is promised of it."""

    def forward(self, x, n):
        count = n.item()
        torch._check(count >= 2)
        torch._check(count <= 9)
        rows = torch.zeros(count, 3)
        return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,)), rows + 1


def every_kind(*, is_dynamic: bool) -> ExportedProgram:
    shapes = {"x": {0: Dim("rows", min=2, max=64)}, "flag": None, "extra": None} if is_dynamic else None
    kwargs = {"extra": None}
    return export(EveryKind(), (torch.randn(6, 4), True), kwargs, dynamic_shapes=shapes, strict=False)


def branches() -> ExportedProgram:
    return export(Branches(), (torch.randn(3), torch.tensor(4)), strict=False)


class Flexible(torch.nn.Module):
    """FlexAttention: a call with a graph and numbers in one tuple."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(_causal, None, None, x.size(2), x.size(2), device="cpu")
        return flex_attention(x, x, x, block_mask=mask)


def _causal(batch: Any, head: Any, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    return row >= column


def flexible() -> ExportedProgram:
    # Dynamo may know flex_attention from another test, and then fails to say why its guards do not hold.
    torch.compiler.reset()
    return export(Flexible(), (torch.randn(1, 2, 8, 16),))


def text_of(document: Any) -> str:
    return json.dumps(document, allow_nan=False)
