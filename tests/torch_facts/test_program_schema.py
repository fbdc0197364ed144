"""What `program_schema` relies on: torch's own file format of a program."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _TORCH_TO_SERIALIZE_DTYPE
from torch._functorch import predispatch
from torch.export.pt2_archive._package import package_pt2

from fakexport._torch.tracing.program_schema import (
    LAYOUT_CODES,
    MEMORY_FORMAT_CODES,
    PYTHON_FUNCTIONS,
    SCHEMA_VERSION,
    SYMBOLIC_OPERATORS,
    aten_version,
    programs_of,
    reading_fault,
)
from fakexport.archive.codec.structure import TREESPEC_VERSION
from fakexport.archive.codec.value_reader import DEVICE_TYPES, DTYPES, STRIDED
from fakexport.archive.manifest import DTYPE_BYTES
from tests.forked import run_python
from tests.torchbind import LIBRARY


def test_the_schema_is_the_one_that_was_understood():
    assert SCHEMA_VERSION[0] == 8
    assert list(schema.Graph.__dataclass_fields__)[:4] == ["inputs", "outputs", "nodes", "tensor_values"]
    assert LAYOUT_CODES[torch.strided] == schema.Layout.Strided == 7
    assert MEMORY_FORMAT_CODES[torch.channels_last] == schema.MemoryFormat.ChannelsLast == 2
    assert SYMBOLIC_OPERATORS["_operator.mul"] is operator.mul
    assert SYMBOLIC_OPERATORS["torch.sym_max"] is torch.sym_max
    assert PYTHON_FUNCTIONS["math.ceil"] is math.ceil
    assert aten_version() >= 10


def test_the_codes_that_are_read_without_torch_are_those_of_torch():
    codes = {
        int(code): str(dtype).removeprefix("torch.") for dtype, code in _TORCH_TO_SERIALIZE_DTYPE.items()
    }
    assert codes == DTYPES
    assert {name: getattr(torch, name).itemsize for name in DTYPES.values()}.items() <= DTYPE_BYTES.items()
    floats = {n for n in DTYPES.values() if (d := getattr(torch, n)).is_floating_point or d.is_complex}
    assert floats == {name for name in DTYPES.values() if name.startswith(("float", "bfloat", "complex"))}
    assert LAYOUT_CODES[torch.strided] == STRIDED
    assert schema.TREESPEC_VERSION == TREESPEC_VERSION
    assert {str(torch.device(kind, 1)) for kind in DEVICE_TYPES} == {f"{kind}:1" for kind in DEVICE_TYPES}


class Tangent(torch.nn.Module):
    def forward(self, x):
        return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


def test_the_functions_of_a_forward_derivative_stand_in_a_program():
    program = torch.export.export(Tangent(), (torch.ones(3),))

    targets = {node.target for node in program.graph.nodes if callable(node.target)}
    functions = {target for target in targets if target.__module__ == predispatch.__name__}
    assert {"_make_dual", "_unpack_dual", "_jvp_increment_nesting"} <= {f.__name__ for f in functions}
    assert functions <= set(PYTHON_FUNCTIONS.values())


SAVED = """
import sys, torch
from tests.torchbind import Adds, fake_classes

with fake_classes():
    torch.export.save(torch.export.export(Adds(), (torch.ones(3),)), sys.argv[1])
"""

LOADED = """
import sys, torch
from fakexport._torch.tracing.program_schema import reading_fault, unregistered_class

try:
    torch.export.load(sys.argv[1])
except RuntimeError as error:
    print(unregistered_class(error), unregistered_class(reading_fault(sys.argv[1], error)))
"""


@pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")
def test_torch_keeps_the_name_of_an_unregistered_class_to_its_log(tmp_path):
    path = str(tmp_path / "model.pt2")
    saved = run_python(SAVED, path)

    done = run_python(LOADED, path)

    assert saved.returncode == 0, saved.stderr
    assert done.stdout == "None _TorchScriptTesting::_Foo\n"


def test_torch_gives_all_programs_of_a_file_by_name_and_its_export_load_only_one(tmp_path):
    path = str(tmp_path / "two.pt2")
    programs = {name: torch.export.export(torch.nn.ReLU(), (torch.ones(3),)) for name in ("a", "b")}
    package_pt2(path, exported_programs=programs)

    assert sorted(programs_of(path)) == ["a", "b"]
    with pytest.raises(KeyError, match="model"):
        torch.export.load(path)
    error = ValueError("something else")
    assert reading_fault("nowhere.pt2", error) is error
