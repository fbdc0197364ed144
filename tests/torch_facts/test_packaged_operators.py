"""What `packaged_operators` relies on: the operators that it knows without torch are those of torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fakexport._torch.operators.operator_reach import INTERPRETER, outside_reach, outside_reason
from fakexport._torch.operators.operator_registry import registered_overload
from fakexport._torch.operators.packaged_operators import (
    ALWAYS_THERE,
    aten_arguments,
    aten_operators,
    class_of,
    is_there,
)
from fakexport.archive.codec.operator_lookup import Operators


def test_every_listed_operator_of_aten_is_registered():
    listed = [(name, overload) for name, overloads in aten_operators().items() for overload in overloads]

    assert len(listed) > 2_500
    assert [pair for pair in listed if registered_overload("aten", *pair) is None] == []


def test_no_listed_operator_belongs_to_the_interpreter():
    assert [name for name in aten_operators() if outside_reason(f"aten.{name}") == INTERPRETER] == []


def test_the_listed_arguments_reach_what_the_registered_ones_do():
    def registered(name):
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        return [(str(argument.type), argument.name) for schema in schemas for argument in schema.arguments]

    def reached(arguments):
        return {found for kind, name in arguments if (found := outside_reach(kind, name))}

    differing = [n for n in aten_operators() if reached(aten_arguments(n)) != reached(registered(n))]

    assert reached(aten_arguments("from_file")), "the comparison sees an operator that opens a file"
    assert differing == []


@pytest.mark.parametrize("name", sorted(ALWAYS_THERE))
def test_an_operator_that_is_always_there_is_found(name):
    assert Operators(trust=True).target(name)


def test_answers_without_torch():
    assert is_there("torch.ops.aten.add.Tensor")
    assert is_there("torch.ops.acme.scale.default") is False
    for unknown in (
        "torch.ops.aten.add.Nothing", "torch.ops.prims.sin.default", "torch.ops.higher_order.wrap",
        "torch.ops.fbgemm.f8f8bf16_rowwise.default", "os.system",
    ):  # fmt: skip
        assert is_there(unknown) is None
    assert class_of("__torch__.torch.classes.acme.Table") == "acme::Table"


def test_a_backend_that_registers_operators_is_asked(monkeypatch):
    from fakexport._torch.operators import packaged_operators

    monkeypatch.setattr(packaged_operators, "_has_backends", lambda: True)

    assert is_there("torch.ops.acme.scale.default") is None


def run_alone(code):
    """The lines that a new interpreter prints. A fork would have torch already."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_what_an_operator_reaches_is_known_without_torch():
    code = """
import sys
from fakexport._torch.operators.operator_reach import outside_reason
print(outside_reason("aten.from_file.default"), outside_reason("aten.add.Tensor"), outside_reason("acme.f"))
print("torch" in sys.modules)
"""
    assert run_alone(code) == ["opens or writes a file named by the program None None", "False"]
