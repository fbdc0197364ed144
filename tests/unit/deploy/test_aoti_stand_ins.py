"""What the compiler gets instead of weights."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.deploy.aoti.stand_ins import held_tensors, weightless_archive, with_own_weights, with_stand_ins
from fakexport.exporting.program.tensor_identity import tensor_identity


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.third.weight = self.first.weight
        self.register_buffer("offsets", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x))) + self.offsets + torch.tensor([1.0, 2.0, 3.0, 4.0])


def program() -> torch.export.ExportedProgram:
    return fe.export(Tied, (torch.zeros(2, 4),))


def test_stand_ins_are_tied_as_the_weights_are_and_apart_where_they_are_apart() -> None:
    held = held_tensors(with_stand_ins(program()))

    keys = {name: tensor_identity(tensor) for name, tensor in held.items()}
    assert keys["first.weight"] == keys["third.weight"]
    assert len(set(keys.values())) == len(keys) - 1
    addresses = {tensor.data_ptr() for tensor in held.values()}
    assert len(addresses) == len(keys) - 1


@pytest.mark.parametrize("is_bound", [False, True])
def test_stand_ins_show_no_value(is_bound: bool) -> None:
    given = program()
    if is_bound:
        given = fe.bind(given, Tied().state_dict())

    held = held_tensors(with_stand_ins(given))

    assert not any(tensor.any() for tensor in held.values())


def test_stand_ins_of_large_weights_take_no_memory() -> None:
    large = fe.export(lambda: nn.Linear(2**17, 2**17, bias=False), (torch.zeros(1, 2**17),))  # 64 GiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    held = held_tensors(with_stand_ins(large))

    assert held["weight"].shape == (2**17, 2**17)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_the_archive_of_a_bound_program_is_that_of_the_unbound_one() -> None:
    unbound = program()

    bound = fe.bind(unbound, Tied().state_dict())

    assert weightless_archive(bound) == weightless_archive(unbound)


def test_the_archive_binds_checkpoints(tmp_path: Path) -> None:
    module, x = Tied(), torch.randn(2, 4)
    path = tmp_path / "program.pt2"
    path.write_bytes(weightless_archive(fe.bind(program(), module.state_dict())))

    bound = fe.bind(fe.load(path), module.state_dict())

    assert torch.equal(bound.module()(x), module(x))


def test_own_weights_are_shared_where_they_are_alone_in_memory() -> None:
    memory = torch.randn(8, 4)
    state = {**Tied().state_dict(), "first.bias": memory[3], "second.weight": memory[4:]}
    bound = fe.bind(program(), state)

    held = held_tensors(with_own_weights(bound))

    assert torch.equal(held["first.bias"], memory[3])
    assert held["first.bias"].untyped_storage().nbytes() == 16
    assert held["first.weight"].data_ptr() == bound.state_dict["first.weight"].data_ptr()
    assert isinstance(held["first.weight"], nn.Parameter)
