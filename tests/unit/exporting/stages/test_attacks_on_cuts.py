"""Models that once made the stages of a program compute something else than the program.

Each runs twice, because state is kept between calls, both as processes with copies of everything would run
the stages, and in one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.deploy import LoadedProgram
from fakexport.deploy.stages import LoadedStages
from fakexport.exporting.stages import InseparableStages, StageError
from tests.unit.exporting.stages.test_cut import ROW, Layers

pytestmark = pytest.mark.slow

SECOND, LAST_TWO = ["layers.1"], ["layers.1", "layers.2"]
Tensors = Mapping[str, torch.Tensor]


@torch.library.custom_op("attacks_on_cuts::bump", mutates_args={"x"})
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("attacks_on_cuts::attend", mutates_args={"cache"})
def attend(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """As an attention kernel that updates the cache and returns new memory."""
    cache.add_(x)
    return x * 2


@attend.register_fake
def _(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def copied(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def in_processes(stages: fe.Bundle, state: Tensors, *calls: Tensors) -> list[dict[str, torch.Tensor]]:
    """Run each stage with a state of its own, and with copies of all values. The random state is shared."""
    opened = [LoadedProgram(fe.bind(stage, copied(state)) if state else stage) for stage in stages.values()]
    names = LoadedStages(fe.bind(stages, copied(state)) if state else stages).signature.outputs
    found = []
    torch.manual_seed(0)
    for inputs in calls:
        sent, outputs = dict(copied(inputs)), {}
        for stage in opened:
            made = copied(
                stage({tensor.name: sent[tensor.name].clone() for tensor in stage.signature.inputs})
            )
            outputs |= made
            # An output never replaces an input of the program.
            sent |= {name: value for name, value in made.items() if name not in inputs}
        found.append({output.name: outputs[output.name] for output in names})
    return found


def in_one_process(opened: Any, *calls: Tensors) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [copied(opened(copied(inputs))) for inputs in calls]


def assert_equal(
    found: list[dict[str, torch.Tensor]], wanted: list[dict[str, torch.Tensor]], how: str
) -> None:
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert list(one) == list(other)
        for name, value in other.items():
            assert torch.equal(one[name], value), f"{name} in call {number}, {how}"


def assert_equal_stages(
    module: nn.Module, *calls: Tensors, at: list[str] = SECOND, is_functional: bool = False, **options: Any
) -> None:
    torch.manual_seed(0)
    program = fe.export(module, tuple(calls[0].values()), **options)
    program = program.run_decompositions({}) if is_functional else program
    state = copied(module.state_dict())
    stages = fe.split(program, at=at)
    wanted = in_one_process(LoadedProgram(bound(program, state)), *calls)
    assert_equal(in_processes(stages, state, *calls), wanted, "in processes")
    assert_equal(in_one_process(LoadedStages(bound(stages, state)), *calls), wanted, "in one process")


def bound(program: Any, state: Tensors) -> Any:
    return fe.bind(program, copied(state))


class Frozen(Layers):
    """Without gradients, so that views of several outputs may be written to."""

    at: ClassVar = SECOND

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.register_buffer("state", torch.zeros(2, 8))


class ReadsBeforeAWrite(Frozen):
    """Three values, and each would be computed again from the written one."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        one, two, three = first.sin(), first.cos(), first.tanh()
        first.mul_(3)
        return self.layers[1](x) + one + two + three


class ReadsBeforeALaterWrite(Frozen):
    """As above, but the next stage writes, and the one after it would compute again."""

    at: ClassVar = LAST_TWO

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        one, two, three = first * 2, first * 3, first * 4
        second = self.layers[1](x)
        torch._foreach_mul_([first], 3)
        return self.layers[2](second) + one + two + three


class ReadsBeforeAForeach(Frozen):
    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        doubled = first * 2
        torch._foreach_mul_([first], 3)
        return self.layers[1](first) + doubled


class ReadsBeforeACustomWrite(Frozen):
    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        angles = first.sin()
        torch.ops.attacks_on_cuts.bump(first)
        return self.layers[1](first) + angles + first


class BuildsAMask(Frozen):
    """A mask is built in place, and values of all steps are used later."""

    def forward(self, x: torch.Tensor) -> Any:
        mask = torch.full((2, 2), -1.0)
        doubled = mask * 2
        mask[:, 0] = 5
        upper = mask.triu(1)
        mask.fill_diagonal_(3)
        first = self.layers[0](x)
        last = self.layers[1](mask @ first + doubled @ first + upper @ first)
        return last + mask.sum() + doubled.sum() + upper.sum()


class ReadsTheOldState(Frozen):
    def forward(self, x: torch.Tensor) -> Any:
        old = self.state.clone()
        self.state.copy_(self.layers[0](x))
        return self.layers[1](x) + old


class ReadsTheNewState(Frozen):
    """If functional, the new state is a value that could be computed again from the old one."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        self.state.add_(first)
        return self.layers[1](first) + self.state


class ReadsTheOldInput(Frozen):
    def forward(self, x: torch.Tensor) -> Any:
        doubled = x * 2
        x.add_(1)
        return self.layers[1](self.layers[0](x)) + doubled


class Normalizes(Frozen):
    """A norm without parameters would run again, and update its statistics twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm: nn.Module = nn.BatchNorm1d(8, affine=False)

    def forward(self, x: torch.Tensor) -> Any:
        mean = self.norm.running_mean.sum()
        normal = self.norm(x if isinstance(self.norm, nn.BatchNorm1d) else x[None]).view(2, 8)
        return self.layers[1](self.layers[0](x) * mean) + normal


class NormalizesInstances(Normalizes):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, track_running_stats=True)


class ReturnsTheState(Frozen):
    """The first stage returns the state, and the second one writes to it, not through the returned node."""

    def forward(self, x: torch.Tensor) -> Any:
        second = self.layers[1](self.layers[0](x))
        self.state[:, 2:4] = second[:, 2:4]
        return second, self.state


class ReturnsAWrittenInput(Frozen):
    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> Any:
        second = self.layers[1](self.layers[0](x))
        torch._foreach_add_([cache], [second])
        return second, cache


class DropsNothing(Frozen):
    """Outside of training, dropout returns its argument, although its schema declares no alias."""

    at: ClassVar = LAST_TWO

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        same = nn.functional.dropout(first, 0.5, training=False)
        second = self.layers[1](x)
        same[:1].mul_(2)
        return self.layers[2](second) + first


class DropsNoChannels(Frozen):
    at: ClassVar = LAST_TWO

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)[None]
        same = torch.feature_dropout(first, 0.5, False)
        second = self.layers[1](x)
        same[:, :1].mul_(2)
        return self.layers[2](second) + first[0]


class Transposes(Frozen):
    """A sum of products of one tensor without a sum is a view."""

    at: ClassVar = LAST_TWO

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        view = torch.einsum("ij->ji", first)
        second = self.layers[1](x)
        view[:1].mul_(2)
        return self.layers[2](second) + first


class Grids(Frozen):
    at: ClassVar = LAST_TWO

    def forward(self, x: torch.Tensor) -> Any:
        row = self.layers[0](x)[0].clone()
        grid, _ = torch.meshgrid(row, row, indexing="ij")
        second = self.layers[1](x)
        row[:4].mul_(2)
        return self.layers[2](second) + grid[:2]


class Broadcasts(Frozen):
    at: ClassVar = LAST_TWO

    def forward(self, x: torch.Tensor) -> Any:
        row = self.layers[0](x)[0].clone()
        wide, _ = torch.broadcast_tensors(row, x)
        second = self.layers[1](x)
        row[:4].mul_(2)
        return self.layers[2](second) + wide


class ChunksUnsafely(Frozen):
    at: ClassVar = LAST_TWO

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        left, _ = torch.unsafe_chunk(first, 2, -1)
        second = self.layers[1](x)
        left.add_(1)
        return self.layers[2](second) + first


class ReadsAtAnOffset(Frozen):
    """The offset counts from the start of the storage, and a copy begins at the start of its own."""

    def forward(self, x: torch.Tensor) -> Any:
        last = self.layers[0](x)[1:]
        return self.layers[1](x) + torch.as_strided(last, (8,), (1,), 0)


class ReadsBeyondAView(Frozen):
    """A copy of an expanded value has fewer elements of memory than the storage of the program."""

    def forward(self, x: torch.Tensor) -> Any:
        wide = self.layers[0](x)[:, :1].expand(2, 8)
        return self.layers[1](x) + torch.as_strided(wide, (2, 4), (8, 1)).sum()


class WritesToOverlap(Frozen):
    """Elements of the windows share memory, and those of a copy do not."""

    def forward(self, x: torch.Tensor) -> Any:
        windows = self.layers[0](x).unfold(1, 4, 2)
        second = self.layers[1](x)
        windows[0, 0].add_(1)
        return second + windows.sum()


class FlattensAndWrites(Frozen):
    """In the program, `flatten` copies. What is received is dense, so there it would be a view."""

    def forward(self, x: torch.Tensor) -> Any:
        rows = torch.cat([self.layers[0](x)] * 2)[::2]
        second = self.layers[1](x)
        flat = rows.flatten()
        flat.mul_(2)
        return second + rows + flat.view(2, 8)


class CopiesAndWrites(Frozen):
    """As above: `contiguous` copies an expanded value, but not one that was received."""

    def forward(self, x: torch.Tensor) -> Any:
        wide = self.layers[0](x)[:1].expand(2, 8)
        second = self.layers[1](x)
        own = wide.contiguous()
        own[0].mul_(2)
        return second + wide + own


class WritesToChunks(Frozen):
    """Each write is in the stage that made the memory, or before the value is sent."""

    at: ClassVar = LAST_TWO

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        left, _ = first.chunk(2, -1)
        left.add_(1)
        second = self.layers[1](first)
        second.unbind(0)[0].mul_(2)
        third = self.layers[2](second)
        for row in third.split(1):
            row.sub_(1)
        return third, second, first


BOTH = {"x": ROW, "cache": ROW + 1}


@pytest.mark.parametrize(
    ("kind", "is_functional"),
    [
        (ReadsBeforeAWrite, False),
        (ReadsBeforeALaterWrite, False),
        (ReadsBeforeAForeach, False),
        (ReadsBeforeACustomWrite, False),
        (BuildsAMask, False),
        (ReadsTheOldState, False),
        (ReadsTheOldState, True),
        (ReadsTheNewState, True),
        (ReadsTheOldInput, False),
        (ReadsTheOldInput, True),
        (Normalizes, False),
        (NormalizesInstances, False),
        (ReturnsTheState, False),
        (ReturnsAWrittenInput, False),
        (DropsNothing, False),
        (DropsNoChannels, False),
        (Transposes, False),
        (Grids, False),
        (Broadcasts, False),
        (ChunksUnsafely, False),
        (ReadsAtAnOffset, False),
        (ReadsBeyondAView, False),
        (WritesToOverlap, False),
        (FlattensAndWrites, False),
        (CopiesAndWrites, False),
        (WritesToChunks, False),
    ],
)
def test_stages_are_equal_or_are_rejected(kind, is_functional):
    inputs = BOTH if kind is ReturnsAWrittenInput else {"x": ROW}

    try:
        assert_equal_stages(kind(), inputs, inputs, at=kind.at, is_functional=is_functional)
    except InseparableStages as error:
        assert "\n" not in str(error)  # noqa: PT017


class OutputNamedAsAnInput(Frozen):
    """The name of an output is that of another tensor, which a later stage takes."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        return {"x": first * 5, "y": self.layers[1](first) + x.sin()}


class NamesOfInputsSwapped(Frozen):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        first = self.layers[0](x)
        return {"y": x, "x": y, "z": self.layers[1](first) + x.sin() * y.cos()}


class OutputNamedAsANode(Frozen):
    """What is sent (`mul`) has another name than the output `mul`, and than the node `mul_1`."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x) * 2
        second = self.layers[1](first) * 3
        return {"mul": second * first}


@pytest.mark.parametrize("kind", [OutputNamedAsAnInput, NamesOfInputsSwapped, OutputNamedAsANode])
def test_names_of_outputs_replace_no_other_tensors(kind):
    inputs = {"x": ROW, "y": ROW + 1} if kind is NamesOfInputsSwapped else {"x": ROW}

    assert_equal_stages(kind(), inputs)


class BranchesOnState(Frozen):
    """The results of branches are new memory, so only the first stage uses the state."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        found = torch.cond(first.sum() > 0, lambda y, s: y + s, lambda y, s: y - s, (first, self.state))
        self.state.add_(1)
        return self.layers[1](found)


class AttendsToState(Frozen):
    """The result of a custom operator is new memory, even if the operator writes to an argument."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers[1](torch.ops.attacks_on_cuts.attend(self.layers[0](x), self.state))


@pytest.mark.parametrize(
    ("kind", "is_functional"),
    [
        (BranchesOnState, False),
        (AttendsToState, False),
        (AttendsToState, True),
    ],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_new_memory_keeps_no_stages_together(kind, is_functional):
    assert_equal_stages(kind(), {"x": ROW}, {"x": ROW - 1}, is_functional=is_functional)


class AllInOneRegion(Layers):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x)


@pytest.mark.parametrize("options", [{"stages": 2}, {"at": ["layers.2"]}])
def test_no_stage_is_empty(options):
    program = fe.export(AllInOneRegion(), (ROW,))

    with pytest.raises(StageError):
        fe.split(program, **options)


class MapsABlock(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.vmap(lambda row: self.layers[1](row))(self.layers[0](x))


def test_a_stage_cannot_begin_inside_of_vmap():
    program = fe.export(MapsABlock(), (ROW,))

    with pytest.raises(StageError):
        fe.split(program, at=["layers.1"])


class Dense(Layers):
    """Values of many dtypes and forms. All are sent or returned."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.layers[0](x)
        waves = torch.view_as_complex(first.view(2, 4, 2)).conj()
        small, mask, none, total = first.to(torch.float8_e4m3fn), first > 0, first[:0], first.sum()
        wide, cut = first[:, :1].expand(2, 8), torch.cat([first, first])[::2, ::2].t()
        last = self.layers[1](x) + small.float() + mask + none.sum() + total + wide + cut.reshape(-1)
        return last + waves.abs().sum(), waves.resolve_conj(), mask.t(), none, total, wide, cut


class Sizes(Layers):
    """Sizes that are products, sums and quotients, of a batch that may be 1."""

    def forward(self, x: torch.Tensor) -> Any:
        batch, length = x.shape[:2]
        first = self.layers[0](x.flatten(0, 1))
        half, part = first[: (batch * length) // 2], first[: (batch + length) // 2]
        rows = torch.arange(batch * length) % (length + 1)
        last = self.layers[1](first) * (batch + length) ** 0.5 + rows[:, None]
        return last.view(batch, length, 8), half * 2, part * (batch // 2), max(batch, length)


class Selects(Layers):
    """Sizes that are known only at run time, of values that are sent or computed again."""

    def forward(self, x: torch.Tensor) -> Any:
        chosen, places = x[x > 1], torch.nonzero(x.flatten() > 1)[:, 0]
        found, counts = torch.unique(self.layers[0](x), return_counts=True)
        last = self.layers[1](x) + chosen.sum() * places.sum() + chosen.shape[0] + found.shape[0]
        return last, (found * counts)[:2], chosen


def test_forms_and_sizes_of_values_are_those_of_the_program():
    sizes = [(4, 6), (1, 1), (2, 3), (7, 1), (1, 5)]
    batches = [{"x": torch.randn(batch, length, 8)} for batch, length in sizes]

    assert_equal_stages(Dense(), {"x": ROW})
    assert_equal_stages(Sizes(), *batches, dynamic_shapes=["x.0=1..64", "x.1=1..64"])
    assert_equal_stages(Selects(), {"x": ROW}, {"x": ROW - 2}, {"x": -ROW})


class Draws(Layers):
    """Operators that draw numbers. Each is cheaper to run again than to send."""

    def forward(self, x: torch.Tensor) -> Any:
        query = x[None, None]
        drawn = [
            torch.rand(8), torch.randperm(8), torch.normal(x), torch.poisson(x), torch.randint_like(x, 10),
            torch.multinomial(torch.ones(8), 8), torch.bernoulli(x / 9), torch.empty_like(x).exponential_(),
            nn.functional.rrelu(x - 1, training=True), nn.functional.gumbel_softmax(x),
            nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5)[0, 0],
        ]  # fmt: skip
        x = self.layers[1](self.layers[0](x))
        for each in drawn:
            x = x + each
        return x


def test_no_operator_draws_again():
    assert_equal_stages(Draws(), {"x": ROW}, {"x": ROW})


class Ties(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.layers[2].linear = self.layers[0].linear

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(super().forward(self.embed(ids)))


def test_each_stage_alone_finds_a_tie_under_any_of_its_names(tmp_path):
    model, ids = Ties().eval(), torch.tensor([[1, 2, 3]])
    fe.save_bundle(fe.split(fe.export(model, (ids,)), at=LAST_TWO), tmp_path / "stages.pt2")

    for missing in ("head.weight", "embed.weight"):
        state = {name: value.clone() for name, value in model.state_dict().items() if name != missing}
        values = {"ids": ids}
        for number in range(3):
            stage = fe.open_program(tmp_path / "stages.pt2", state, method=f"stage{number}")
            values |= stage({tensor.name: values[tensor.name] for tensor in stage.signature.inputs})
        assert values["output"].equal(model(ids))


def test_more_than_ten_stages_stay_in_order(tmp_path):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12))).eval()
    program = fe.bind(fe.export(model, (ROW,)), dict(model.state_dict()))
    fe.save_bundle(fe.split(program, 12), tmp_path / "stages.pt2")

    assert list(fe.load_bundle(tmp_path / "stages.pt2")) == [f"stage{number}" for number in range(12)]
    assert fe.open_program(tmp_path / "stages.pt2")({"input": ROW})["output"].equal(model(ROW))
