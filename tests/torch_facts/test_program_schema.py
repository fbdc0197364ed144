"""What `fakexport._torch.program_schema` relies on."""

from __future__ import annotations

import math
import operator

import torch
from torch._export.serde import schema
from torch._functorch import predispatch

from fakexport._torch.program_schema import (
    DTYPE_CODES,
    LAYOUT_CODES,
    MEMORY_FORMAT_CODES,
    PYTHON_FUNCTIONS,
    SCHEMA_VERSION,
    SYMBOLIC_OPERATORS,
    aten_version,
)


def test_the_schema_is_the_one_that_was_understood():
    assert SCHEMA_VERSION[0] == 8
    assert list(schema.Graph.__dataclass_fields__)[:4] == [
        "inputs", "outputs", "nodes", "tensor_values",
    ]  # fmt: skip


def test_number_codes_are_those_of_the_schema():
    assert DTYPE_CODES[torch.bfloat16] == schema.ScalarType.BFLOAT16 == 13
    assert LAYOUT_CODES[torch.strided] == schema.Layout.Strided == 7
    assert MEMORY_FORMAT_CODES[torch.channels_last] == schema.MemoryFormat.ChannelsLast == 2


def test_functions_have_the_names_that_torch_writes():
    assert SYMBOLIC_OPERATORS["_operator.mul"] is operator.mul
    assert SYMBOLIC_OPERATORS["torch.sym_max"] is torch.sym_max
    assert PYTHON_FUNCTIONS["math.ceil"] is math.ceil
    assert aten_version() >= 10


class Tangent(torch.nn.Module):
    def forward(self, x):
        return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


def test_the_functions_of_a_forward_derivative_stand_in_a_program():
    program = torch.export.export(Tangent(), (torch.ones(3),))

    targets = {node.target for node in program.graph.nodes if callable(node.target)}
    functions = {target for target in targets if target.__module__ == predispatch.__name__}
    assert {"_make_dual", "_unpack_dual", "_jvp_increment_nesting"} <= {f.__name__ for f in functions}
    assert functions <= set(PYTHON_FUNCTIONS.values())
