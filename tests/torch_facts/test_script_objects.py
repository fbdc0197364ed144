"""What `script_objects` relies on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._library.fake_class_registry import deregister_fake_class

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.tracing.script_objects import (
    class_name,
    fake_object,
    held_script_object,
    is_class_registered,
    is_fake_object,
    object_of_state,
    pickled_object,
    state_text,
)
from fakexport.emulation.fake import is_fake
from tests.forked import run_python
from tests.torchbind import LIBRARY, FakeFoo, fake_classes, foo


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.profile = torch.classes.profiling._ScriptProfile()

    def forward(self, x):
        return x + 1


def test_a_failed_export_still_has_the_object_in_its_frames():
    with pytest.raises(Exception) as caught:  # noqa: PT011
        torch.export.export(nn.Sequential(Inner()), (torch.ones(2),))

    held = held_script_object(caught.value)

    assert held is not None
    assert (held.class_name, held.attribute) == ("profiling::_ScriptProfile", "profile")
    assert (held.owner_file, held.owner_class) == (__file__, "Inner")
    assert [name for name, _ in held.methods] == ["enable", "disable", "_dump_stats"]
    assert held.methods[0][1].endswith("-> NoneType _0")
    assert held_script_object(ValueError("no traceback")) is None


def test_a_class_is_registered_under_its_name():
    assert class_name(torch.classes.profiling._ScriptProfile()) == "profiling::_ScriptProfile"
    assert is_class_registered("profiling::_ScriptProfile")
    assert not is_class_registered("profiling::NoSuchClass")
    assert not is_class_registered("no_such_library::Boom")


@pytest.mark.slow
def test_torch_registers_classes_in_these_namespaces_only():
    code = """
import torch
from fakexport._torch.operators.packaged_operators import class_of
from fakexport._torch.tracing.script_objects import TORCH_CLASS_NAMESPACES
for schema in torch._C._jit_get_custom_class_schemas():
    owner = schema.arguments[0].type
    name = class_of(owner.annotation_str)
    if name != owner.annotation_str and name.partition("::")[0] not in TORCH_CLASS_NAMESPACES:
        print(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == ""


@pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")
class TestStates:
    @pytest.fixture(autouse=True)
    def library(self) -> Iterator[None]:
        with fake_classes():
            yield

    def test_an_object_is_made_of_the_state_that_python_is_given(self):
        made = object_of_state("_TorchScriptTesting::_Foo", [3, 4])

        assert class_name(made) == "_TorchScriptTesting::_Foo"
        assert state_text(made) == "[3, 4]"
        assert pickled_object(made) == pickled_object(foo(3, 4))

    @pytest.mark.parametrize("state", [None, 3, ["a"], [1.5], [[1]], "x", [2**80]], ids=repr)
    def test_another_state_is_no_crash(self, state):
        with pytest.raises(
            ValueError, match=r"^the class _TorchScriptTesting::_Foo does not accept the state: "
        ):
            object_of_state("_TorchScriptTesting::_Foo", state)

    def test_a_fake_has_the_methods_of_the_fake_class_on_fakes_of_the_mode(self):
        mode = new_fake_mode()
        fake = fake_object(foo(1, 2), mode)

        with mode:
            assert is_fake(fake.add_tensor(torch.empty(3)))
        assert is_fake_object(fake)
        assert not is_fake_object(foo(1, 2))

    def test_without_a_fake_class_there_is_no_fake(self):
        deregister_fake_class("_TorchScriptTesting::_Foo")
        try:
            assert fake_object(foo(1, 2), new_fake_mode()) is None
        finally:
            torch._library.register_fake_class("_TorchScriptTesting::_Foo", FakeFoo)
        assert fake_object(torch.classes.profiling._ScriptProfile(), new_fake_mode()) is None


STRICT = """
import sys, torch
from fakexport._torch.tracing.script_objects import hold_real_objects

torch.ops.load_library(sys.argv[1])

@torch._library.register_fake_class("_TorchScriptTesting::_Foo")
class FakeFoo:
    def __init__(self, x, y):
        self.x, self.y = x, y  # TorchDynamo asks for each name that the C++ object gives
    @classmethod
    def __obj_unflatten__(cls, state):
        return cls(**dict(state))
    def add_tensor(self, z):
        return torch.empty_like(z)

class Adds(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.foo = torch.classes._TorchScriptTesting._Foo(10, 20)
    def forward(self, x):
        return self.foo.add_tensor(x)

x = torch.ones(3)
program = torch.export.export(Adds(), (x,), strict=True)
try:
    program.module()(x)
except AssertionError as error:
    print(error)
hold_real_objects(program)
print(program.module()(x).tolist() == Adds()(x).tolist())
"""


@pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")
def test_a_strict_program_runs_only_with_the_real_objects():
    done = run_python(STRICT, LIBRARY)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["FakeScriptObject should only exist during tracing.", "True"]
