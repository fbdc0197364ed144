"""A check leaves no fake tensor in a model, its file or its caches, and the next one finds the same."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict, deque

import pytest
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import fakexport as fe

# What torch thinks of these models.
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning")

X = torch.ones(2, 4)
TABLES: dict[object, torch.Tensor] = {}
ROWS: list[object] = []
NESTED = {"tables": [defaultdict(list)]}
LAST = None


@functools.lru_cache(maxsize=4)
def few(size, device):
    return torch.ones(size, size, device=device).tril()


@functools.cache
def pair(size):
    return torch.ones(size), size


@functools.cache
def marker():
    return object()


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = OrderedDict(real=torch.zeros(1))
        self.mark = marker()
        self.state, self.states, self.recent = State(), [State()], deque([1], maxlen=3)

    @functools.cached_property
    def table(self):
        return torch.full((4, 4), 2.0)

    @staticmethod
    @functools.cache
    def static(size):
        return torch.ones(size)


def in_a_cache(module, x):
    return x @ few(4, x.device) + pair(4)[0] + module.static(4)


def in_a_dict(module, x):
    if x.device not in TABLES:
        TABLES[x.device] = torch.ones(4, 4)
    return x @ TABLES[x.device]


def in_a_list(module, x):
    ROWS.append(x)
    NESTED["tables"][0]["x"].append(x)
    return x * 1


def in_a_variable(module, x):
    global LAST
    LAST = (x, {"x": x})
    return x * 1


def in_a_property(module, x):
    return x @ module.table


class State:
    def __init__(self, last=None):
        self.last = last
        self.inner = [last]


def in_an_object(module, x):
    if module.state.last is None:
        module.state.last = torch.ones(4)
        module.state.inner.append(x)
    return x * module.state.last


def in_an_object_of_a_list(module, x):
    module.states[0].last = x
    return x * 1


def in_a_new_object(module, x):
    module.made = State(x)
    return x * 1


def in_a_deque(module, x):
    module.recent.append(x)
    return x * 1


def in_an_attribute(module, x):
    module.last = x
    module.kept["x"] = [x]
    return x * 1


def in_a_class(module, x):
    type(module).last = x
    return x * 1


def in_a_buffer(module, x):
    module.register_buffer("new", x * 2)
    return x + module.new


WAYS = [
    *(in_a_cache, in_a_dict, in_a_list, in_a_variable, in_a_property),
    *(in_an_attribute, in_an_object, in_an_object_of_a_list, in_a_new_object),
    *(in_a_deque, in_a_class, in_a_buffer),
]


class Keeps(Holds):
    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x):
        return self.way(self, x)


def state(model):
    return (
        *(dict(TABLES), list(ROWS), repr(NESTED), LAST),
        *(set(vars(model)), dict(model.kept), dict(model._buffers), "last" in vars(Keeps), marker()),
        *(model.state.last, list(model.state.inner), model.states[0].last, list(model.recent)),
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_given", [True, False], ids=["module", "factory"])
def test_nothing_is_left_and_each_check_is_like_the_first(way, is_given):
    model = Keeps(way)
    before = state(model)

    def checked():
        report = fe.check(model, (X,)) if is_given else fe.check(lambda: (model, (X,)))
        (verdict,) = report.verdicts
        assert verdict.summary is not None, report
        return verdict.summary.node_count, [found.code for found in report.diagnostics]

    first = checked()
    assert state(model) == before
    assert checked() == first
    assert "FE603" not in first[1]
    try:
        assert type(model(X)) is torch.Tensor
    finally:  # Eager mode keeps what it keeps.
        clear()


def clear():
    global LAST
    LAST = None
    TABLES.clear()
    ROWS.clear()
    NESTED["tables"][0].clear()
    few.cache_clear()
    if "last" in vars(Keeps):
        del Keeps.last


@functools.cache
def table_of_constructor():
    return torch.arange(4.0)


class Constructs(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", table_of_constructor(), persistent=False)

    def forward(self, x):
        return x + self.table


def test_what_a_constructor_caches_is_made_for_each_model():
    for _ in range(2):
        report = fe.check(lambda: (Constructs(), (X,)))
        assert report.is_clean
    assert torch.equal(Constructs().table, torch.arange(4.0))


def test_a_cache_without_fakes_keeps_what_it_has():
    before = marker()

    fe.check(lambda: (Keeps(in_a_cache), (X,)))

    assert marker() is before


class Fails(Keeps):
    def forward(self, x):
        TABLES["x"] = x
        if x.sum() > 0:
            return x
        return -x


def test_nothing_is_left_where_the_trace_fails():
    with pytest.raises(GuardOnDataDependentSymNode):
        fe.export(lambda: (Fails(in_a_dict), (X,)))
    assert TABLES == {}

    report = fe.check(lambda: (Fails(in_a_dict), (X,)))  # This also looks for the causes of the failure.
    assert [found.code for found in report.diagnostics] == ["FE201"]
    assert TABLES == {}


CACHING = """import functools

import torch
from torch import nn


@functools.cache
def table():
    return torch.arange(4.0)


class Model(nn.Module):
    def forward(self, x):
        return x + table()


def factory():
    return Model(), (torch.ones(2, 4),)
"""


def test_the_caches_of_a_file_that_is_loaded_again_are_cleared_too(tmp_path):
    for name in ("one", "other", "one"):
        path = tmp_path / name / "model.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(CACHING)

        for _ in range(2):
            report = fe.check(f"{path}:factory")
            assert report.is_clean
