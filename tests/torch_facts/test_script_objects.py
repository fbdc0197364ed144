"""What `_torch/script_objects.py` relies on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fakexport._torch.script_objects import class_name, held_script_object, is_class_registered

CLASSES_OF_TORCH = Path(torch.__file__).parent / "lib" / "libtorchbind_test.so"


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


def test_a_class_is_registered_under_its_name():
    assert class_name(torch.classes.profiling._ScriptProfile()) == "profiling::_ScriptProfile"
    assert is_class_registered("profiling::_ScriptProfile")
    assert not is_class_registered("profiling::NoSuchClass")
    assert not is_class_registered("no_such_library::Boom")


def test_an_error_from_elsewhere_holds_nothing():
    assert held_script_object(ValueError("no traceback")) is None


STRICT = """
import sys, torch
from fakexport._torch.script_objects import hold_real_objects

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


@pytest.mark.skipif(not CLASSES_OF_TORCH.exists(), reason="this torch comes without its test classes")
def test_a_strict_program_runs_only_with_the_real_objects():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STRICT, CLASSES_OF_TORCH],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["FakeScriptObject should only exist during tracing.", "True"]
