"""The written classes are the modules of the model, and give what the program gives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import export
from torch.nn import functional as F

from fakexport.exporting.python_source import to_python
from tests.written_source import assert_gives_the_same, written_module


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.fc(self.norm(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Sequential(nn.Dropout(), nn.Linear(8, 3), nn.Identity(), nn.GELU())

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class CalledTwice(nn.Module):
    """Once as it is, once on another shape, and on values that the first call needs later."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        first = self.block(x)
        second = self.block(first.sum(0))
        third = self.fc(self.fc(self.fc(second)))
        return first, third


class Choosing(nn.Module):
    """What a module does depends on how it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, is_second: bool = False):
        return torch.sigmoid(self.fc(x)) * 2 if is_second else self.fc(x)


class CalledDifferently(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Choosing()

    def forward(self, x):
        return self.inner(self.inner(x), is_second=True)


class Shared(nn.Module):
    """One embedding under three names; the decoder calls it as the encoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(11, 8)
        self.encoder, self.decoder = nn.Module(), Borrowing()
        self.encoder.tokens = self.decoder.tokens = self.shared
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.shared.weight

    def forward(self, ids):
        return self.out(self.decoder(ids) + self.encoder.tokens(ids))


class Borrowing(nn.Module):
    def forward(self, ids):
        return self.tokens(ids) * 2


class BorrowedWeight(nn.Module):
    """A module that takes a weight of another one which is not below it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(8, 8)
        self.user = User([self.table])

    def forward(self, x):
        return self.user(x) + self.table(x)


class User(nn.Module):
    def __init__(self, hidden) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, x):
        return F.linear(x, self.hidden[0].weight) + self.hidden[0](x)


class OddNames(nn.Module):
    """Names that Python or `nn.Module` have uses for."""

    def __init__(self) -> None:
        super().__init__()
        self.device = nn.Linear(8, 8)
        self.register_parameter("__mangled", nn.Parameter(torch.randn(8)))
        self.forward_2 = nn.Linear(8, 8)
        self.scales = nn.ParameterList([torch.randn(8), torch.randn(8)])
        self.gaps = nn.ModuleDict({"3": nn.Linear(8, 8), "1": nn.Linear(8, 8)})
        self.mixed = nn.ModuleDict({"a": nn.Linear(8, 8), "1": nn.Linear(8, 8)})

    def forward(self, aten, torch_=None):
        x = self.forward_2(self.device(aten)) + getattr(self, "__mangled")
        x = x * self.scales[0] + self.scales[1]
        x = self.gaps["3"](self.gaps["1"](x)) + torch.zeros(8, device=x.device)
        return self.mixed["1"](self.mixed["a"](x))


class Keywords(nn.Module):
    """Names that the code which torch generates cannot have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("class", nn.Parameter(torch.randn(8)))
        self.add_module("lambda", nn.Linear(8, 8))

    def forward(self, x):
        return getattr(self, "lambda")(x) * getattr(self, "class")


ROWS = (torch.randn(4, 8, generator=torch.Generator().manual_seed(0)),)
IDS = (torch.tensor([[1, 2, 3]]),)
MODELS = [
    (Stack, ROWS),
    (CalledTwice, ROWS),
    (CalledDifferently, ROWS),
    (Shared, IDS),
    (BorrowedWeight, ROWS),
    (OddNames, ROWS),
]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


BOTH_WAYS = ("Stack",)
WAYS = [
    pytest.param(
        *given,
        strict,
        id=f"{given[0].__name__}-{'strict' if strict else 'non-strict'}",
        marks=pytest.mark.slow if strict and given[0].__name__ not in BOTH_WAYS else (),
    )
    for given in MODELS
    for strict in (False, True)
]


@pytest.mark.parametrize(("model", "args", "strict"), WAYS)
def test_the_outputs_and_the_state_dict_are_those_of_the_program(model, args, strict, tmp_path):
    eager = model().eval()
    program = export(eager, args, strict=strict)

    written = assert_gives_the_same(program, tmp_path, args)

    assert list(written.state_dict()) != []
    assert written.state_dict().keys() == eager.state_dict().keys()


def test_names_that_are_keywords_are_kept(tmp_path):
    eager = Keywords()
    written = written_module(export(eager, ROWS), tmp_path)

    assert torch.equal(written(*ROWS), eager(*ROWS))


def test_equal_blocks_share_one_class():
    text = to_python(export(Stack(), ROWS)).text

    assert text.count("class Block(nn.Module):") == text.count("class Block") == 1
    assert "self.blocks = nn.ModuleList([Block(device) for _ in range(6)])" in text
    assert text.count("class LayerNorm") == 1
    assert text.count("class Linear") == 2


def test_the_second_call_of_a_module_is_the_same_method_where_it_does_the_same():
    text = to_python(export(CalledTwice(), ROWS)).text

    assert [text.count(call) for call in ("= self.fc(", "= self.block(")] == [
        5,
        3,
    ]  # those of Block and of comments included
    assert "forward_2" not in text


def test_another_call_of_a_module_is_another_method_that_says_so():
    text = to_python(export(CalledDifferently(), ROWS)).text

    assert "self.inner.forward_2(" in text
    assert "# A different call of this module runs these operations." in text


def test_ties_are_kept(tmp_path):
    written = assert_gives_the_same(export(Shared(), IDS), tmp_path, IDS)

    assert written.out.weight is written.shared.weight
    assert written.encoder.tokens.weight is written.shared.weight


def test_a_program_that_leaves_a_module_and_comes_back_is_split_and_says_so(tmp_path):
    program = export(Stack(), ROWS)
    relus = [node for node in program.graph.nodes if "relu" in node.name]
    for node in relus:
        node.meta["nn_module_stack"] = dict(list(node.meta["nn_module_stack"].items())[:1])

    assert_gives_the_same(program, tmp_path, ROWS)

    text = (tmp_path / "program.py").read_text()
    assert text.count("# The module hierarchy could not be preserved") == 1
    assert text.count("self.blocks[3].forward_2(") == 1


@pytest.mark.parametrize("every", [1, 2, 3])
def test_nodes_without_a_module_go_where_their_neighbours_are(every, tmp_path):
    program = export(Stack(), ROWS)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for node in calls[::every]:
        node.meta.pop("nn_module_stack")

    assert_gives_the_same(program, tmp_path, ROWS)


def test_the_line_of_the_model_stands_above_its_operations(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    text = to_python(export(Stack(), ROWS)).text

    line = next(line.strip() for line in text.splitlines() if "torch.relu" in line)
    number = Block.forward.__code__.co_firstlineno + 1
    assert line == f"# test_hierarchy.py:{number} return x + torch.relu(self.fc(self.norm(x)))"


def test_locals_stay_alive_for_a_debugger(tmp_path):
    program = export(CalledTwice().eval(), ROWS)
    written = assert_gives_the_same(program, tmp_path, ROWS)
    seen = {}

    def trace(frame, event, argument):
        if frame.f_code.co_filename == str(tmp_path / "program.py"):
            if event == "return" and "self" in frame.f_locals:
                seen[type(frame.f_locals["self"]).__name__] = dict(frame.f_locals)
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        written(*ROWS)
    finally:
        sys.settrace(before)

    assert seen["Block"].keys() == {"self", "x", "layer_norm", "linear", "relu", "add"}
    assert all(value is not None for frame in seen.values() for value in frame.values())


def test_the_text_is_the_same_each_time_and_names_no_folder_of_this_machine():
    first, second = (to_python(export(Stack(), ROWS)) for _ in range(2))

    assert first == second
    assert str(Path.cwd()) not in first.text
    assert "# /" not in first.text
