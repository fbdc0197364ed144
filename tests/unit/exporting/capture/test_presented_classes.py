"""A question for the class of a traced value is answered as in eager mode, in every spelling."""

from __future__ import annotations

import builtins
import functools
import sys

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import fakexport as fe

HEAD = """
import builtins
import functools
import numbers
import operator
from builtins import type as kind

import torch
from torch import Tensor, nn


class Own(nn.Parameter):
    pass


class Meta(type):
    def __instancecheck__(cls, value):
        return issubclass(value.__class__, (int, Tensor))


class Fits(metaclass=Meta):
    pass


@functools.singledispatch
def named(value):
    return "other"


named.register(int)(lambda value: "int")
named.register(float)(lambda value: "float")
named.register(Tensor)(lambda value: "tensor")


def matched(value):
    match value:
        case bool():
            return "bool"
        case int(number):
            return "int"
        case float():
            return "float"
        case nn.Parameter():
            return "parameter"
        case Tensor(ndim=2):
            return "matrix"
    return "other"


def is_number(value):
    match value:
        case numbers.Number():
            return True
    return False


def nested(value):
    class Inner:
        found = type(value).__name__

        def ask(self, other=value):
            return [type(each) is type(other) for each in (value,)]

    return Inner.found, Inner().ask()
"""
QUESTIONS = """
type(x) is torch.Tensor
type(x) == Tensor
type(x * 2) in (torch.Tensor, nn.Parameter)
x.__class__ is torch.Tensor
getattr(x, "__class__").__name__
operator.attrgetter("__class__")(x) is Tensor
type(self.weight) is nn.Parameter
type(self.own) is Own
isinstance(self.own, Own)
type(self.own).__mro__[1].__name__
type(self.table) is type(x)
type(self.plain).__qualname__
not type(x) is not torch.Tensor
{torch.Tensor: 5}.get(type(x))
{nn.Parameter: 5, Tensor: 6}[self.weight.__class__]
type(x).__name__
f"{type(x)} {type(rows)}"
issubclass(type(x), nn.Parameter)
issubclass(Tensor, type(x))
isinstance(x, type(self.weight))
list(map(type, (x, rows, total)))
[kind(x), kind(rows)]
builtins.type(x)
functools.partial(type, rows)()
type(rows) is int
type(rows) is type(3)
rows.__class__.__name__
isinstance(rows, int)
isinstance(-x.size(0) + 1, (float, int))
isinstance(rows, bool)
isinstance(rows, numbers.Integral)
isinstance(rows / 2, float)
type(rows / 2)
type(rows > 1)
type(x.numel()) is int
isinstance(total, float)
type(x.sum().item())
type(total > 3)
isinstance(rows, Fits)
isinstance(total, Fits)
matched(rows)
matched(total)
matched(x)
matched(self.weight)
is_number(rows)
named(rows)
named(total)
named(x)
nested(x)
nested(rows)
type(type(x)) is type(Tensor)
type(type) is type
isinstance(Meta, type)
type(self).__name__
type("Made", (), {}).__module__ == __name__
type(rows)(3) + 1
type[int]
isinstance(Tensor, type | None)
(lambda value: type(value))(rows)
sorted(type(each).__name__ for each in (x, rows, total))
"""
MODEL = """

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.own = Own(torch.ones(4))
        self.register_buffer("table", torch.ones(4))
        self.plain = torch.ones(4)
        self.made = [type(self.weight) is nn.Parameter, self.table.__class__ is Tensor]
        self.made.append(matched(torch.ones(2, 2)))

    def forward(self, x):
        rows, columns = x.shape
        total = x.sum().item()
        self.answers(x, rows, total)
        return x * self.weight

    def answers(self, x, rows, total):
        ANSWERED.answers = [*self.made, ASKED]


class Kept:
    __slots__ = ("answers",)  # What is put back after an export does not look there.


ANSWERED = Kept()


def factory():
    return Model(), (torch.ones(2, 4),)
"""
ASKED = [line for line in QUESTIONS.splitlines() if line]
TEXT = HEAD + MODEL.replace("ASKED]", ", ".join(f"repr({line})" for line in ASKED) + "]")


def answers_in_eager_mode(names):
    model, example = names["factory"]()
    model(*example)
    return list(names["ANSWERED"].answers)


def shown(answers):
    return dict(zip(["in the constructor"] * 3 + ASKED, answers, strict=True))


@pytest.mark.parametrize("target", ["cpu", "H100"])
@pytest.mark.parametrize("sizes", [[], ["x.0"]], ids=["static", "dynamic"])
def test_each_question_is_answered_as_in_eager_mode(sizes, target, tmp_path):
    path = tmp_path / "asking.py"
    path.write_text(TEXT)

    report = fe.check(f"{path}:factory", target=target, dynamic_shapes=sizes)

    module = next(each for name, each in sys.modules.items() if name.startswith("fakexport_source_asking_"))
    found = list(module.ANSWERED.answers)
    assert shown(found) == shown(answers_in_eager_mode(vars(module)))
    assert report.verdicts[0].is_exportable


@pytest.mark.parametrize(
    "condition",
    [
        "type(x) is Tensor",
        "isinstance(x.shape[0], int)",
        "matched(x.shape[0]) == 'int'",
        "named(x) == 'tensor'",
    ],
)
def test_the_program_takes_the_branch_of_eager_mode(condition, tmp_path):
    text = HEAD + MODEL.replace("self.answers(x, rows, total)", f"if {condition}:\n            return x * 3")
    path = tmp_path / "branching.py"
    path.write_text(text.replace("[*self.made, ASKED]", "[]").replace("total = x.sum().item()", ""))

    program = fe.export(f"{path}:factory", dynamic_shapes=["x.0"])

    weights = {"weight": torch.ones(4), "own": torch.ones(4), "table": torch.ones(4)}
    for rows in (2, 5):
        assert torch.equal(
            fe.bind(program, weights).module()(torch.ones(rows, 4)), torch.full((rows, 4), 3.0)
        )


def test_a_module_that_forward_imports_is_answered_too(tmp_path):
    (tmp_path / "imported_late.py").write_text(
        "import torch\ndef is_plain(x): return type(x) is torch.Tensor and type(x.shape[0]) is int"
    )
    path = tmp_path / "importing.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def forward(self, x):\n        from imported_late import is_plain\n"
        "        return x * 2 if is_plain(x) else x\n"
        "def factory(): return Model(), (torch.ones(2, 4),)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        program = fe.export(f"{path}:factory", dynamic_shapes=["x.0"])
    finally:
        sys.path.remove(str(tmp_path))
        module = sys.modules.pop("imported_late")

    assert torch.equal(program.module()(torch.ones(3, 4)), torch.full((3, 4), 2.0))
    assert "type" not in vars(module)


def test_a_model_of_executed_text_is_answered_too():
    names = {"__name__": "of no module"}
    exec(
        "import torch\nfrom torch import nn\n"
        "def is_plain(x): return type(x) is torch.Tensor\n"
        "class Model(nn.Module):\n    def forward(self, x): return x * 2 if is_plain(x) else x\n",
        names,
    )

    program = fe.export(names["Model"], (torch.ones(2),))

    assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), 2.0))
    assert "type" not in names


def test_a_name_that_the_module_defines_is_left_alone(tmp_path):
    path = tmp_path / "own_type.py"
    path.write_text(
        "import torch\nfrom torch import nn\ndef type(x): return 'mine'\n"
        "class Model(nn.Module):\n    def forward(self, x): return x * 2 if type(x) == 'mine' else x\n"
        "def factory(): return Model(), (torch.ones(2),)\n"
    )

    program = fe.export(f"{path}:factory")

    assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), 2.0))


class Raising(nn.Module):
    def forward(self, x):
        raise ValueError(type(x).__name__)


@pytest.mark.parametrize("model", [nn.Linear(4, 4), Raising()], ids=["clean", "raising"])
def test_afterwards_everything_is_as_it_was(model):
    before = dict(globals())

    fe.check(lambda: model, (torch.ones(2, 4),), dynamic_shapes="auto")

    assert dict(globals()) == before
    assert type is builtins.type
    assert all(
        "__class__" not in vars(kind) for kind in (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    )
    assert "type" not in vars(functools)


def test_strict_mode_asks_torchdynamo():
    class Model(nn.Module):
        def forward(self, x):
            return x * 2 if type(x) is torch.Tensor else x

    program = fe.export(Model, (torch.ones(2),), strict=True)

    assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), 2.0))
