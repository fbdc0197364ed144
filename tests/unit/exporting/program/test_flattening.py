"""Programs of models with wrapper subclasses consist of plain tensors and compute what eager computes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd.subclass_parametrization import unwrap_tensor_subclass_parameters

import fakexport as fe
from fakexport.emulation.fake import UnsupportedSubclassError
from tests.subclasses import Holder, quantized, twice_quantized

WEIGHT = torch.arange(1.0, 65.0).reshape(8, 8)
INPUT = (torch.linspace(-1, 1, 16).reshape(2, 8),)


def weights_of_torch(module: nn.Module) -> dict[str, torch.Tensor]:
    """The plain weights, as torch's own transformation flattens and names them."""
    plain = unwrap_tensor_subclass_parameters(copy.deepcopy(module))
    return {**dict(plain.named_parameters()), **dict(plain.named_buffers())}


def assert_as_eager(module: nn.Module, program: torch.export.ExportedProgram, path: Path) -> None:
    weights = {n: t for n, t in weights_of_torch(module).items() if n in program.state_dict}
    fe.save(program, path / "model.pt2")
    bound = fe.bind(fe.load(path / "model.pt2"), weights)
    fe.save(bound, path / "bound.pt2")
    stock = torch.export.load(path / "bound.pt2")
    expected = copy.deepcopy(module)(*INPUT)
    torch.testing.assert_close(bound.module()(*INPUT), expected, rtol=0, atol=0)
    torch.testing.assert_close(stock.module()(*INPUT), expected, rtol=0, atol=0)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("make", [quantized, twice_quantized])
@pytest.mark.parametrize("place", ["parameter", "buffer", "constant"])
def test_a_wrapper_becomes_what_it_holds(make, place: str, strict: bool, tmp_path: Path) -> None:
    module = Holder(make(WEIGHT), place)

    program = fe.export(lambda: Holder(make(WEIGHT.clone()), place), INPUT, strict=strict)

    flat = weights_of_torch(module)
    held = {**program.state_dict, **program.constants}
    assert {n: (t.dtype, t.shape) for n, t in held.items()} == {
        n: (t.dtype, t.shape) for n, t in flat.items()
    }
    assert list(program.constants if place == "constant" else program.state_dict) == list(flat)
    assert_as_eager(module, program, tmp_path)


class Pieces(nn.Module):
    """Uses a wrapper whole, in pieces and through its parts, and writes into one of these."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Holder(quantized(WEIGHT.clone()), "buffer")
        self.second = Holder(quantized(WEIGHT.clone()), "buffer")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.first.weight.scale.add_(1)
        left, right = self.second.weight.split(4)
        return self.first(x), x @ left.t(), x @ right.t(), self.first.weight.scale * 2


def test_pieces_parts_and_writes(tmp_path: Path) -> None:
    program = fe.export(Pieces, INPUT)

    assert not any("subclass" in str(node.target) for node in program.graph.nodes)
    assert_as_eager(Pieces(), program, tmp_path)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Holder(quantized(WEIGHT.clone()))
        self.second = Holder(quantized(WEIGHT.clone()))
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize("source", [Tied, Tied()], ids=["factory", "module"])
@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_tied_wrappers_are_counted_once_and_bound_as_one(source, target: str, tmp_path: Path) -> None:
    (verdict,) = fe.check(
        (lambda: (Tied(), INPUT)) if source is Tied else (lambda: (source, INPUT)), target=[target]
    ).verdicts
    program = verdict.program

    assert program is not None
    assert verdict.summary is not None
    assert sum(verdict.summary.parameters.bytes_per_device.values()) == 8 * 8 + 8 * 4
    state = program.state_dict
    for index in (0, 1):
        name = f"parametrizations.weight.original{index}"
        assert state[f"first.{name}"] is state[f"second.{name}"]
    if target == "cpu":
        assert_as_eager(Tied(), program, tmp_path)


def test_a_dynamic_size_stays_and_its_guard(tmp_path: Path) -> None:
    class Branching(Holder):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y if x.shape[0] % 2 == 0 else -y

    program = fe.export(lambda: Branching(quantized(WEIGHT.clone())), INPUT, dynamic_shapes=["x.0=2..64"])
    module = Branching(quantized(WEIGHT))
    run = fe.bind(program, module.state_dict()).module()

    longer = torch.ones(6, 8)
    assert torch.equal(run(longer), module(longer))
    with pytest.raises(AssertionError, match="Guard failed"):
        run(torch.ones(7, 8))


@pytest.mark.parametrize("place", ["attribute", "list"])
def test_a_wrapper_that_is_not_registered_is_refused_by_name(place: str) -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [quantized(WEIGHT.clone())]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.tables[0]

    def factory() -> tuple[nn.Module, tuple[torch.Tensor]]:
        return Listed() if place == "list" else Holder(quantized(WEIGHT.clone()), place), INPUT

    (diagnostic,) = fe.check(factory).diagnostics

    assert diagnostic.code == "FE103"
    name = "tables[0]" if place == "list" else "weight"
    assert f"{name} is a tests.subclasses.Scaled" in diagnostic.notes[0]
    assert "register it as a buffer" in diagnostic.notes[0]


class Returning(Holder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight


class Choosing(Holder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x @ self.weight, lambda x: x - x @ self.weight, (x,))


@pytest.mark.parametrize(
    ("cls", "reason"),
    [(Returning, "`forward` returns it"), (Choosing, "cond cannot be rewritten to use the plain tensors")],
)
def test_what_cannot_be_flattened_is_refused_by_name(cls: type[Holder], reason: str) -> None:
    with pytest.raises(UnsupportedSubclassError, match=f"^weight is a .*Scaled.*{reason}"):
        fe.export(lambda: cls(quantized(WEIGHT.clone())), INPUT)
    (diagnostic,) = fe.check(lambda: (cls(quantized(WEIGHT.clone())), INPUT)).diagnostics
    assert diagnostic.code == "FE103"
