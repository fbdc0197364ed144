"""What `_torch/module_calls.py` relies on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from fakexport._torch.module_calls import around_module_calls, can_be_noted, noted_reads


class Scaled(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
        self.up = nn.Linear(2, 2)

    def forward(self, x):
        return self.up(x) * self.by


class Shared(nn.Module):
    """One layer under two names: torch then calls stand-ins of modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(x))


def exported(model, around):
    with around_module_calls(around):
        return torch.export.export(model, (torch.ones(3, 2),))


def test_each_call_of_a_submodule_comes_with_the_tracer_and_what_calls_it():
    calls = []

    def around(tracer, module, forward, args, kwargs):
        calls.append((tracer.submodule_paths[module], [tuple(arg.shape) for arg in args], kwargs))
        return forward(*args, **kwargs)

    exported(nn.Sequential(Scaled(1), Scaled(2)), around)

    paths = [path.rpartition("_export_root")[2].lstrip(".") for path, _, _ in calls]
    assert [path for path in paths if path] == ["0", "0.up", "1", "1.up"]
    assert all(args == [(3, 2)] and not kwargs for path, args, kwargs in calls)


def test_what_answers_a_call_is_what_the_model_gets():
    def around(tracer, module, forward, args, kwargs):
        return args[0] if isinstance(module, nn.Linear) else forward(*args, **kwargs)

    program = exported(nn.Sequential(Scaled(1), Scaled(2)), around)

    assert [str(node.target) for node in program.graph.nodes if node.op == "call_function"] == [
        "aten.mul.Tensor",
        "aten.mul.Tensor",
    ]


def test_a_model_of_stand_ins_is_left_alone():
    calls = []

    def around(tracer, module, forward, args, kwargs):
        calls.append(module)
        return forward(*args, **kwargs)

    exported(Shared(), around)

    assert calls == []


def test_every_way_to_ask_for_an_attribute_is_noted():
    module = Scaled(3)
    ways = (
        lambda: module.by,
        lambda: getattr(module, "by", None),
        lambda: object.__getattribute__(module, "by"),
        lambda: hasattr(module, "by"),
    )
    for way in ways:
        with noted_reads([(module, "by")], {}) as read:
            assert not read
            assert way()
            assert read
        assert vars(module)["by"] == 3
        assert not hasattr(Scaled, "by")


def test_an_integer_may_be_answered_by_a_stand_in():
    module = Scaled(3)
    made = []

    def stand_in(name, value, note):
        made.append((name, value, note))
        return "stands for it"

    with noted_reads([(module, "by")], {"by": stand_in}) as read:
        assert module.by == "stands for it"
        assert not read
        made[0][2]()
        assert read == {"by"}

    assert made[0][:2] == ("by", 3)


def test_a_module_with_attributes_of_its_own_making_is_not_noted():
    class Asks(Scaled):
        def __getattribute__(self, name):
            return super().__getattribute__(name)

    class Shadows(Scaled):
        by = 1

    assert can_be_noted(Scaled(1), "by")
    assert not can_be_noted(Asks(1), "by")
    assert not can_be_noted(Shadows(1), "by")


def test_another_thread_gets_the_value_itself_and_is_noted_for_the_noted_module_alone():
    module, other = Scaled(3), Scaled(4)

    with ThreadPoolExecutor(1) as worker, noted_reads([(module, "by")], {"by": lambda *_: "stands"}) as read:

        def write():
            other.by += 1

        worker.submit(write).result()
        assert worker.submit(lambda: other.by).result() == 5
        assert not read

        assert other.by == "stands", "of the same class, in the same thread: it may be a copy"
        assert worker.submit(lambda: module.by).result() == 3
        assert read == {"by"}
