"""Attributes of torch are replaced for a context, and are the very same objects afterwards."""

import functools
import threading

import numpy
import pytest
import torch
from torch import distributed
from torch._dynamo import trace_rules
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.forwarding import ForwardingClass
from fakexport._torch.patching import Patches, in_force, original_of, stock_function


def answer(*args):
    return "replaced"


@pytest.mark.parametrize(
    ("owner", "name", "replacement", "read"),
    [
        (torch.cuda, "is_available", answer, torch.cuda.__getattribute__),
        (torch.version, "cuda", "replaced", torch.version.__getattribute__),
        (FakeTensorMode, "cache", {1: "replaced"}, lambda name: FakeTensorMode.cache.get(1)),
        (
            FakeTensorMode,
            "avoid_device_init",
            property(answer),
            lambda name: FakeTensorMode().avoid_device_init,
        ),
        (torch.cuda, "Event", type("Event", (), {"name": "replaced"}), lambda name: torch.cuda.Event.name),
    ],
    ids=["function", "value", "dict", "property", "class"],
)
def test_the_original_object_comes_back(owner, name, replacement, read):
    before = vars(owner)[name]

    with pytest.raises(KeyError), Patches({(owner, name): replacement}):
        raise KeyError
    assert vars(owner)[name] is before
    with Patches({(owner, name): replacement}):
        found = read(name)
        inside = found() if callable(found) else found
        assert original_of(owner, name) is before

    assert inside == "replaced"
    assert vars(owner)[name] is before
    assert type(torch.version) is type(torch)


def test_a_name_that_was_not_there_goes_again():
    with Patches({(torch.version, "not_there"): 1}):
        assert torch.version.not_there == 1

    assert not hasattr(torch.version, "not_there")


def test_code_that_often_read_a_value_of_a_module_reads_its_replacement():
    """Python 3.14 remembers where it found the value, and ignores a property of the module's class."""

    def read():
        return {torch.version.hip for _ in range(1000)}

    before, stock_error = read(), error_of_missing(torch.version)
    with Patches({(torch.version, "hip"): "7.0"}):
        assert read() == {"7.0"}
        assert error_of_missing(torch.version) == stock_error
    assert read() == before


def error_of_missing(module):
    with pytest.raises(AttributeError) as caught:
        module.missing  # noqa: B018
    return str(caught.value)


def test_nothing_stays_replaced_if_a_later_name_is_missing():
    before = torch.cuda.is_available
    patches = Patches({(torch.cuda, "is_available"): answer, (torch.cuda, "_not_there"): answer})

    for _ in range(2):
        with pytest.raises(AttributeError, match="_not_there"), patches:
            pass

    assert torch.cuda.is_available is before
    assert trace_rules.clear_lru_cache.__name__ == "clear_lru_cache"


def test_a_replaced_class_accepts_instances_of_the_original():
    class Other(int):
        size = 8

    stands = ForwardingClass("int", (), {"_value": lambda: Other, "_original": int})

    assert isinstance(1, stands)
    assert issubclass(bool, stands)
    assert type(stands(2)) is Other
    assert stands.size == 8


def test_an_inherited_name_is_not_left_on_the_subclass():
    class Below(FakeTensorMode):
        pass

    with Patches({(Below, "dispatch"): answer}):
        assert Below().dispatch() == "replaced"
        assert in_force(Below, "dispatch") is answer

    assert "dispatch" not in vars(Below)
    assert Below.dispatch is FakeTensorMode.dispatch


def test_uses_that_overlap_may_end_in_any_order():
    before = torch.cuda.is_available
    first = Patches({(torch.cuda, "is_available"): lambda: 1})
    second = Patches({(torch.cuda, "is_available"): lambda: 2})

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    after_first = torch.cuda.is_available()
    second.__exit__(None, None, None)

    assert after_first == 2
    assert torch.cuda.is_available is before


def test_replacements_do_not_get_into_the_table_of_torchdynamo():
    """The first process group clears the table, and the next question builds it again."""
    trace_rules.clear_lru_cache()

    with Patches({(torch.cuda, "is_available"): answer, (torch.cuda, "synchronize"): answer}):
        table = trace_rules.get_torch_obj_rule_map()

    assert {torch.cuda.is_available, torch.cuda.synchronize} <= table.keys()


def test_a_process_group_that_is_made_while_something_is_replaced_clears_the_table_afterwards():
    before = trace_rules.get_torch_obj_rule_map()

    with Patches({(torch.cuda, "is_available"): answer}):
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            during = trace_rules.get_torch_obj_rule_map()
        finally:
            distributed.destroy_process_group()
    after = trace_rules.get_torch_obj_rule_map()

    assert during is before
    assert after is not before
    assert after == before


def test_every_table_of_torchdynamo_is_built_from_the_originals(monkeypatch):
    tables = [value for value in vars(trace_rules).values() if isinstance(value, trace_rules.FunctionIdSet)]
    for table in tables:
        monkeypatch.setattr(table, "function_ids", None)

    with Patches({(numpy, "sum"): answer}):
        assert all(table.function_ids is not None for table in tables)
        assert id(numpy.sum) not in trace_rules._numpy_function_ids()

    assert id(numpy.sum) in trace_rules._numpy_function_ids()


def closed_over(number):
    def function(added=1, *, times=1):
        return (number + added) * times

    return function


def test_a_function_whose_code_is_replaced_answers_under_every_name():
    function = closed_over(2)
    code = function.__code__
    alias = functools.partial(function)

    with Patches({(function, "__code__"): lambda *args, **kwargs: ("outer", args, kwargs)}):
        assert alias(3, times=2) == ("outer", (3,), {"times": 2})
        with Patches({(function, "__code__"): lambda: "inner"}):
            assert alias() == "inner"
        assert alias() == ("outer", (), {})
        assert stock_function(function)(3, times=2) == 10
        thread = threading.Thread(target=lambda: found.append(alias(3, times=2)))
        found = []
        thread.start()
        thread.join()
        assert found == [10]

    assert function.__code__ is code
    assert alias(3, times=2) == stock_function(function)(3, times=2) == 10
