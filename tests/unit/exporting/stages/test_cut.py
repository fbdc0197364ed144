"""Stages that run one after the other give what the whole program gives, or the cut is rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe
from fakexport.deploy import LoadedProgram
from fakexport.exporting.stages import InseparableStages, StageError
from tests.stages import chained


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(x))


class Layers(nn.Module):
    """Three blocks, and a method that subclasses replace."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


ROW = torch.arange(16.0).reshape(2, 8) / 7
LAST_TWO = ["layers.1", "layers.2"]


def exported(module: nn.Module, *args: Any, **options: Any) -> ExportedProgram:
    """The bound program of a real module."""
    program = fe.export(module, args, **options)
    return fe.bind(program, dict(module.state_dict())) if module.state_dict() else program


def outputs(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return LoadedProgram(program)({name: value.clone() for name, value in inputs.items()})


def assert_equal_stages(
    program: ExportedProgram, at: Sequence[str], *calls: Mapping[str, torch.Tensor]
) -> fe.Bundle:
    stages = fe.split(program, at=at)
    assert list(stages) == [f"stage{number}" for number in range(len(at) + 1)]
    for inputs in calls:
        wanted = outputs(program, inputs)
        torch.manual_seed(0)
        found = chained(stages, {name: value.clone() for name, value in inputs.items()})
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            assert torch.equal(found[name], value), name
    return stages


def input_names(program: ExportedProgram) -> list[str]:
    return [tensor.name for tensor in LoadedProgram(program).signature.inputs]


def test_stages_give_what_the_program_gives_at_each_size():
    program = exported(Layers().eval(), ROW, dynamic_shapes=["x.0=1..64"])

    stages = assert_equal_stages(program, LAST_TWO, *({"x": torch.randn(n, 8)} for n in (1, 2, 3, 64)))

    assert [len(stage.state_dict) for stage in stages.values()] == [2, 2, 2]
    with pytest.raises(fe.InputMismatchError, match="65"):
        chained(stages, {"x": torch.randn(65, 8)})


def test_a_stage_checks_what_it_receives():
    stages = fe.split(exported(Layers().eval(), ROW), at=LAST_TWO)
    (name,) = input_names(stages["stage1"])
    module = stages["stage1"].module()

    with pytest.raises(AssertionError, match="dtype"):
        module(**{name: ROW.double()})
    with pytest.raises(fe.InputMismatchError, match="has size 9"):
        LoadedProgram(stages["stage1"])({name: torch.randn(2, 9)})


def test_the_program_is_not_changed_and_weights_are_shared():
    program = exported(Layers().eval(), ROW)
    before = str(program)

    stages = fe.split(program, at=LAST_TWO)

    assert str(program) == before
    weight = "layers.1.linear.weight"
    assert stages["stage1"].state_dict[weight] is program.state_dict[weight]


class Skips(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        second = self.layers[1](first)
        return {"last": self.layers[2](second) + first * x.sum(), "first": first, "size": x.shape[0]}


def test_values_skip_stages_and_outputs_stay_where_they_are_made():
    stages = assert_equal_stages(exported(Skips().eval(), ROW), LAST_TWO, {"x": ROW})

    assert len(input_names(stages["stage1"])) == 1
    assert input_names(stages["stage2"])[0] == "x"  # `x.sum()` is cheaper than a message.
    assert len(input_names(stages["stage2"])) == 3


class Positions(Layers):
    """As rotary embeddings: computed once from the size of the input and a constant, used in each block."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.1, 1, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.frequencies
        turned = torch.cat([angles.cos(), angles.sin()], -1)
        for layer in self.layers:
            x = layer(x) * turned
        return x


def test_what_depends_on_sizes_and_constants_is_computed_again():
    x = torch.randn(2, 5, 8)
    program = exported(Positions().eval(), x, dynamic_shapes="auto")

    stages = assert_equal_stages(
        program, LAST_TWO, *({"x": torch.randn(b, t, 8)} for b, t in ((2, 5), (3, 9)))
    )

    assert [len(input_names(stage)) for stage in stages.values()] == [1, 1, 1]
    assert list(stages["stage2"].constants) == ["frequencies"]


class Tied(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(super().forward(self.embed(ids)))


def test_a_tie_across_stages_stays_one_weight(tmp_path):
    model, ids = Tied().eval(), torch.tensor([[1, 2, 3]])
    state = dict(model.state_dict())
    del state["head.weight"]  # As in a checkpoint of a model with a tie.
    program = fe.export(model, (ids,))

    fe.save_bundle(fe.split(program, at=LAST_TWO), tmp_path / "stages.pt2")
    stages = fe.bind(fe.load_bundle(tmp_path / "stages.pt2"), state)

    assert stages["stage0"].state_dict["embed.weight"] is stages["stage2"].state_dict["head.weight"]
    assert chained(stages, {"ids": ids})["output"].equal(model(ids))


def test_an_archive_keeps_what_a_stage_is(tmp_path):
    fe.save_bundle(fe.split(exported(Layers().eval(), ROW), at=LAST_TWO), tmp_path / "stages.pt2")

    stages = fe.load_bundle(tmp_path / "stages.pt2")
    opened = fe.open_program(tmp_path / "stages.pt2")

    assert chained(stages, {"x": ROW})["output"].equal(Layers()(ROW))
    assert opened({"x": ROW})["output"].equal(Layers()(ROW))
    assert [tensor.name for tensor in opened.signature.inputs] == ["x"]
    with pytest.raises(fe.InputMismatchError, match="no input 'y'"):
        opened({"x": ROW, "y": ROW})


class Drops(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = nn.functional.dropout(layer(x), 0.5, training=True)
        return x


def test_random_numbers_are_drawn_in_the_same_order():
    assert_equal_stages(exported(Drops(), ROW), LAST_TWO, {"x": ROW})


class Noise(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        noise = torch.rand_like(x[:1])
        for layer in self.layers:
            x = layer(x) + noise
        return x


def test_a_random_number_is_sent_rather_than_drawn_again():
    stages = assert_equal_stages(exported(Noise(), ROW), LAST_TWO, {"x": ROW})

    assert len(input_names(stages["stage1"])) == 2


class Counting(Block):
    """A block with a state of its own, as a cache in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return super().forward(x) + self.seen


class Counts(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Counting() for _ in range(3))


@pytest.mark.parametrize("is_functional", [False, True])
def test_the_state_of_a_stage_is_kept_between_calls(is_functional):
    model = Counts()
    program = exported(model, ROW)
    program = program.run_decompositions({}) if is_functional else program

    stages = [LoadedProgram(stage) for stage in fe.split(program, at=LAST_TWO).values()]

    for _ in range(3):
        value = ROW
        for stage in stages:
            (value,) = stage({stage.signature.inputs[0].name: value}).values()
        assert value.equal(model(ROW))


class SharedState(Layers):
    """The second layer writes to a state that the third reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.layers[1](self.layers[0](x))
        self.state.copy_(x.sum(0))
        return self.layers[2](x) + self.state


class WritesWhatOthersReceived(Layers):
    """The first layer's result is written to after the second layer, and used by the third."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        second = self.layers[1](first)
        first[:1].mul_(2)
        return self.layers[2](second) + first


class WritesWhatIsReturned(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        second = self.layers[1](first)
        first[:1].mul_(2)
        return self.layers[2](second), first


class WritesToOneOfTwoViews(Layers):
    """Both views would be received, as two copies, and the write to one would not change the other."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        row, rest = first[:1], first[:2]
        second = self.layers[1](x)
        row.mul_(2)
        return self.layers[2](second) + rest


class WritesToAViewItReceives(Layers):
    """The last stage receives a value and its view, as two copies, and writes to one of them."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        view = first.view(-1)
        third = self.layers[2](self.layers[1](x))
        view.mul_(2)
        return third + first


class WritesToAViewOfABuffer(SharedState):
    """Two buffers share memory, and different stages use them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(2, 8))
        self.state = self.whole[0]

    def forward(self, x: torch.Tensor) -> Any:
        x = self.layers[1](self.layers[0](x))
        self.whole.add_(x.sum())
        return self.layers[2](x) + self.state


class WritesToAReturnedBuffer(SharedState):
    def forward(self, x: torch.Tensor) -> Any:
        first = self.state[:4]
        x = self.layers[1](self.layers[0](x))
        self.state.copy_(x.sum(0))
        return self.layers[2](x), first


class WritesToItsInput(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        second = self.layers[1](self.layers[0](x))
        x.add_(1)
        return self.layers[2](second) + x


class ReadsANumber(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        count = (self.layers[0](x) > 0).sum().item()
        return self.layers[2](self.layers[1](x)) * count


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (SharedState, "writes in place to memory that stage 2 uses"),
        (WritesWhatOthersReceived, "writes in place to memory that stage 2 uses"),
        (WritesWhatIsReturned, "writes in place to memory that stage 0 uses"),
        (WritesToOneOfTwoViews, "writes in place to memory that stage 2 uses"),
        (
            WritesToAViewItReceives,
            "stage 2 writes in place to memory that several tensors of earlier stages share",
        ),
        (WritesToAReturnedBuffer, "writes in place to memory that stage 0 uses"),
        (WritesToItsInput, "writes in place to memory that stage"),
        (ReadsANumber, "needs a number"),
    ],
)
def test_a_cut_that_would_compute_with_old_values_is_rejected(kind, match):
    program = exported(kind(), ROW)

    with pytest.raises(InseparableStages, match=match) as raised:
        fe.split(program, at=LAST_TWO)

    assert "test_cut.py:" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_buffers_that_share_memory_are_one_memory():
    """`torch.export` keeps such buffers, and fakexport makes two of them."""
    model = WritesToAViewOfABuffer()
    program = torch.export.export(model, (ROW,))
    assert program.module()(ROW).equal(WritesToAViewOfABuffer()(ROW))

    with pytest.raises(InseparableStages, match="writes in place to memory that stage 2 uses"):
        fe.split(program, at=LAST_TWO)


class WritesWhatItReceives(Layers):
    """Each write comes before the value is sent on, so no stage sees an old value."""

    def forward(self, x: torch.Tensor) -> Any:
        x = self.layers[0](x)
        x += 1
        first = self.layers[1](x)
        x *= 2
        return self.layers[2](first) + x, x


def test_writes_before_a_value_is_sent_are_kept():
    assert_equal_stages(exported(WritesWhatItReceives(), ROW), LAST_TWO, {"x": ROW})


class Transposes(Layers):
    """What is sent is not contiguous, and the next stage reads it by its strides."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x).t()
        second = self.layers[1](x)
        return self.layers[2](second) + torch.as_strided(first, (2, 8), (8, 1))


def test_strides_of_received_values_are_those_of_the_program():
    assert_equal_stages(exported(Transposes(), ROW), LAST_TWO, {"x": ROW})


class Branches(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        second = torch.cond(first.sum() > 0, lambda y: y * 2, lambda y: y - 1, (self.layers[1](first),))
        with torch.no_grad():
            kept = first.sin()
        return self.layers[2](second) + kept


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # TorchDynamo asks for it.
def test_subgraphs_stay_with_their_stage():
    program = exported(Branches(), ROW)

    assert_equal_stages(program, LAST_TWO, {"x": ROW}, {"x": -ROW - 9})


class FindsRows(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        rows = torch.nonzero(self.layers[0](x)[0])
        return self.layers[2](self.layers[1](x)).sum() + rows.shape[0] * rows.sum()


def test_a_tensor_of_unknown_size_brings_its_size():
    assert_equal_stages(exported(FindsRows(), ROW), LAST_TWO, {"x": ROW}, {"x": ROW - 2})


class NamesThatClash(Layers):
    """A value that is sent, an input and an output could have the same name."""

    def forward(self, relu: torch.Tensor, relu_1: torch.Tensor) -> Any:
        first = torch.relu(self.layers[0](relu) * relu_1)
        second = self.layers[1](first)
        return {"add_1": self.layers[2](second) + first, "input": second}


def test_names_that_clash_are_told_apart():
    program = exported(NamesThatClash(), ROW, ROW + 1)

    assert_equal_stages(program, LAST_TWO, {"relu": ROW, "relu_1": ROW + 1})


class Takes(Layers):
    def forward(self, pair: Any, *, scale: float, mask: Any = None, extra: Any = None) -> Any:
        x = self.layers[1](self.layers[0](pair["a"])) * scale
        return (self.layers[2](x) + pair["b"], None, x)


def test_any_structure_of_inputs_and_outputs():
    program = fe.bind(
        fe.export(Takes(), ({"a": ROW, "b": ROW + 1},), {"scale": 0.5, "mask": None}),
        dict(Takes().state_dict()),
    )

    assert_equal_stages(program, LAST_TWO, {"pair_a": ROW, "pair_b": ROW - 1})


class ReturnsANumber(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x.shape[0] * 2, x.shape[0] * x.sum()


def test_numbers_are_not_returned_but_computed_with():
    program = exported(ReturnsANumber(), ROW, dynamic_shapes="auto")

    assert_equal_stages(program, LAST_TWO, {"x": ROW}, {"x": torch.randn(5, 8)})


class ScalesByBatch(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        count = x.shape[0] * 3 + 1
        return super().forward(x).sum() * count + torch.arange(count).sum()


def test_sizes_that_are_computed_from_an_input_are_those_of_the_input():
    program = exported(ScalesByBatch(), ROW, dynamic_shapes="auto")

    assert_equal_stages(program, LAST_TWO, *({"x": torch.randn(n, 8)} for n in (2, 3, 6, 7)))


class CalledTwice(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        for layer in (*self.layers, *self.layers):
            x = layer(x)
        return x


def test_weights_that_several_stages_use_are_in_each_of_them():
    stages = assert_equal_stages(exported(CalledTwice(), ROW), LAST_TWO, {"x": ROW})

    assert [len(stage.state_dict) for stage in stages.values()] == [2, 2, 6]
    assert len(stages.shared) == 4


class Unused(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(8, 8)


def test_weights_that_no_stage_uses_stay_in_the_first():
    stages = assert_equal_stages(exported(Unused(), ROW), LAST_TWO, {"x": ROW})

    assert len(stages["stage0"].state_dict) == 4


@pytest.mark.parametrize(
    ("at", "match"),
    [
        (["layers.3"], "no module 'layers.3'.*did you mean layers"),
        (["layers.2", "layers.1"], "layers.1, because the stage before it begins at layers.2"),
        (["layers.1", "layers.1.linear"], "runs later or at the same time"),
        (["layers"], "no module 'layers'"),
        (["layers.0"], "nothing runs before it"),
    ],
)
def test_an_impossible_place_is_one_clear_line(at, match):
    with pytest.raises(StageError, match=match) as raised:
        fe.split(exported(Layers(), ROW), at=at)

    assert "\n" not in str(raised.value)


def test_the_number_of_stages_or_their_places():
    program = exported(Layers(), ROW)

    for options in ({}, {"stages": 2, "at": ["layers.1"]}):
        with pytest.raises(ValueError, match="either"):
            fe.split(program, **options)
    with pytest.raises(ValueError, match="at least 2 stages"):
        fe.split(program, 1)
    with pytest.raises(StageError, match="too few for 30 stages"):
        fe.split(program, 30)


def test_a_stage_is_a_program_that_compiles_and_decomposes():
    stages = fe.split(exported(Layers().eval(), ROW, dynamic_shapes="auto"), at=LAST_TWO)
    inputs: dict[str, Any] = {"x": torch.randn(5, 8)}
    wanted = Layers()(inputs["x"])

    for stage in stages.values():
        names = input_names(stage)
        module: Any = stage.run_decompositions().module()
        taken = {name: inputs[name] for name in names}
        inputs |= module(*taken.values()) if names == ["x"] else module(**taken)

    assert torch.equal(inputs["output"], wanted)
