"""What `no_grad_regions` relies on: regions cut out alone leave the program of stock torch."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx import GraphModule

from fakexport._torch.speed import no_grad_regions
from fakexport._torch.speed.export_passes import quick_passes
from tests.identity import first_difference


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))


class OneRegion(Base):
    def forward(self, x):
        y = self.first(x)
        with torch.no_grad():
            a, b = x.cos(), x.sin()
        return self.second(y * a + b)


class SeveralRegions(Base):
    def forward(self, x):
        for layer in (self.first, self.second, self.first):
            with torch.no_grad():
                a, b = x.cos(), (x + 1).sin()
            x = layer(x) * a + b
        with torch.no_grad():
            c = x.exp()
        return x + c, x.relu()


class RegionThatNeedsAnother(Base):
    def forward(self, x):
        with torch.no_grad():
            a, b = x.cos(), x.sin()
        y = self.first(x)
        with torch.no_grad():
            c, d = a + b, a * y
        return y + c + d, y


class WholeModel(Base):
    @torch.no_grad()
    def forward(self, x):
        return self.second(self.first(x).relu())


class StartsWithRegion(Base):
    def forward(self, x):
        with torch.no_grad():
            x = x.relu()
        return self.first(x)


class EndsWithRegion(Base):
    def forward(self, x):
        x = self.first(x)
        with torch.no_grad():
            return x, x.relu(), x.chunk(2)


class SharedOutputs(Base):
    def forward(self, x):
        with torch.no_grad():
            y = x.relu()
        z = self.first(y)
        return {"y": y, "again": y, "x": x, "z": [z, z, None, 3]}


class Nested(Base):
    def forward(self, x):
        with torch.no_grad():
            a = x.cos()
            with torch.enable_grad():
                b, c = a * x, self.first(a)
                with torch.no_grad():
                    d = b + c
            e = d.sin()
            with torch.no_grad():
                f = e + 1
        return a + f, self.second(e)


class Decorated(Base):
    @torch.set_grad_enabled(False)
    def angles(self, x):
        return x.cos(), x.sin()

    def forward(self, x):
        a, b = self.angles(x)
        return self.first(x) * a + b, self.angles(a)[0]


class EmptyRegions(Base):
    def forward(self, x):
        with torch.no_grad():
            pass
        with torch.no_grad():
            x.relu()
        y = self.first(x)
        with torch.no_grad(), torch.no_grad():
            torch.set_grad_enabled(True)
        return y


class OnlyOn(Base):
    def forward(self, x):
        with torch.enable_grad():
            x = self.first(x)
        return x


class LeftOff(Base):
    def forward(self, x):
        y = self.first(x)
        torch.set_grad_enabled(False)
        z = y.relu(), y.cos()
        torch.set_grad_enabled(True)
        return z


class NextToAutocast(Base):
    def forward(self, x):
        with torch.no_grad():
            a, b = x.cos(), x.sin()
        with torch.autocast("cpu", torch.bfloat16):
            y = self.first(a)
        return y, b


class AroundAutocast(Base):
    def forward(self, x):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            a, b = x.cos(), x.sin()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            c = a @ b.T
        return self.first(x) * a + b, c


class WithBranches(Base):
    def forward(self, x):
        with torch.no_grad():
            a = x.cos()

        def inside(v):
            with torch.no_grad():
                return v.sin()

        return torch.cond(x.sum() > 0, inside, lambda v: v.clone(), (a,)) + self.first(x)


class WritesBuffer(Base):
    def forward(self, x):
        with torch.no_grad():
            self.calls.add_(x[0])
            a = self.calls.cos()
        x.mul_(2)
        return self.first(x) + a


class UsesLiterals(Base):
    def forward(self, x):
        with torch.no_grad():
            a = torch.tensor([1.0, 2.0, 3.0, 4.0]) * x
        return self.first(a), a.chunk(2)[0] + torch.tensor(2.0)


class NamesThatClash(Base):
    def forward(self, getitem_1, submod_2, cos):
        with torch.no_grad():
            a, b = getitem_1.cos(), submod_2.max(dim=0)
        y = self.first(getitem_1) + a
        p, q = y.split(2)[0], submod_2.max(dim=1)
        with torch.no_grad():
            r = torch.abs(y)
        return y * cos + b[0], p, q[1], r


class AsksForSizes(Base):
    def forward(self, x):
        with torch.no_grad():
            n = x.shape[0]
            a = torch.arange(n, dtype=x.dtype)
        y = self.first(x).reshape(n * 2, 2)
        with torch.no_grad():
            b = a.reshape(n, 1) * x.shape[0]
        return y, b + x, x.shape[0]


class DataDependent(Base):
    def forward(self, x):
        with torch.no_grad():
            a = x[0].nonzero()
        return self.first(x), a + 1, a.shape[0]


class NoRegion(Base):
    def forward(self, x):
        return self.second(self.first(x))


MODELS = [
    OneRegion,
    SeveralRegions,
    RegionThatNeedsAnother,
    WholeModel,
    StartsWithRegion,
    EndsWithRegion,
    SharedOutputs,
    Nested,
    Decorated,
    EmptyRegions,
    OnlyOn,
    LeftOff,
    NextToAutocast,
    AroundAutocast,
    WithBranches,
    WritesBuffer,
    UsesLiterals,
    NamesThatClash,
    AsksForSizes,
    DataDependent,
    NoRegion,
]
LEFT_TO_STOCK = {NextToAutocast, AroundAutocast, WithBranches}


def exported(model, dynamic=False, *, with_grad=True):
    names = list(inspect.signature(model.forward).parameters)[1:]
    inputs = tuple(torch.randn(6, 4) for _ in names)
    shapes = {name: {0: Dim.AUTO} for name in names} if dynamic else None
    torch.manual_seed(0)
    with torch.set_grad_enabled(with_grad):
        return torch.export.export(model(), inputs, dynamic_shapes=shapes)


def details(program):
    """What is not part of a program and still decides what later passes make of it."""
    found = []
    for name, module in program.graph_module.named_modules():
        if isinstance(module, GraphModule):
            names = module.graph._graph_namespace
            kept = {key: str(value) for key, value in vars(module.graph).items() if key in KEPT}
            modules = list(module._modules)
            found.append((name, modules, names._used_names, names._base_count, kept, module.meta))
    return found


def users(program):
    return {
        (name, node.name): {user.name for user in node.users}
        for name, module in program.graph_module.named_modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
    }


KEPT = {"_tracer_cls", "_tracer_extras", "_co_fields", "_len", "_used_names"}


def variants():
    """Each model as it is; with dynamic sizes, in CI; where gradients are off, in `make test-all`."""
    for model in MODELS:
        yield pytest.param(model, False, True, id=model.__name__)
        for dynamic, with_grad in ((True, True), (True, False), (False, False)):
            name = f"{model.__name__}-{'auto' if dynamic else 'static'}-{'grad' if with_grad else 'no_grad'}"
            mark = pytest.mark.slow if dynamic and with_grad else pytest.mark.exhaustive
            yield pytest.param(model, dynamic, with_grad, id=name, marks=mark)


@pytest.mark.parametrize(("model", "dynamic", "with_grad"), list(variants()))
def test_the_program_is_that_of_stock_torch(model, dynamic, with_grad, monkeypatch):
    stock = exported(model, dynamic, with_grad=with_grad)
    cut = []
    split = no_grad_regions._split
    monkeypatch.setattr(no_grad_regions, "_split", lambda *given: cut.append(given) or split(*given))
    with quick_passes():
        ours = exported(model, dynamic, with_grad=with_grad)

    assert first_difference(ours, stock) is None
    assert ours.graph_module.code == stock.graph_module.code
    assert details(ours) == details(stock)
    for node, found in users(stock).items():
        assert found <= users(ours)[node]  # Stock torch loses uses inside of a part that hands on one value.
    is_whole_graph_cut = any(signature is not None for _, _, signature in cut)
    assert is_whole_graph_cut == (model not in LEFT_TO_STOCK | {NoRegion})


def test_a_node_knows_each_of_its_users():
    with quick_passes():
        program = exported(SeveralRegions)

    for module in program.graph_module.modules():
        for node in module.graph.nodes:
            assert set(node.users) == {user for user in module.graph.nodes if node in user.all_input_nodes}
