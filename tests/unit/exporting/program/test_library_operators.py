"""Which operators and classes of a program torch does not have."""

import pytest
import torch
from torch import nn

from fakexport.exporting.capture import export
from fakexport.exporting.program import library_classes, library_modules, library_operators, python_operators
from fakexport.models.sources import load_operator_library


@pytest.fixture(scope="module")
def operators():
    with torch.library._scoped_library("library_operators_test", "DEF") as library:
        for name in ("twice", "half"):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x: x + x, "CompositeExplicitAutograd")
            torch.library.register_fake(f"library_operators_test::{name}", torch.empty_like, lib=library)
        yield torch.ops.library_operators_test


class Branching(nn.Module):
    """Calls one operator twice, and another in a branch."""

    def __init__(self, operators):
        super().__init__()
        self.operators = operators

    def forward(self, x):
        x = self.operators.twice(self.operators.twice(x))
        return torch.cond(x.sum() > 0, lambda x: self.operators.half(x), lambda x: x + 1, (x,))


def test_each_operator_is_named_once_those_of_branches_too(operators):
    program = export(lambda: Branching(operators), (torch.ones(3),))

    assert library_operators(program) == (
        "library_operators_test.half.default",
        "library_operators_test.twice.default",
    )


def test_of_an_operator_that_python_made_the_module_is_known(operators):
    @torch.library.custom_op("library_modules_test::thrice", mutates_args=())
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    thrice.register_fake(torch.empty_like)

    class Both(nn.Module):
        def forward(self, x):
            return operators.twice(thrice(x))

    program = export(Both, (torch.ones(3),))

    assert library_operators(program) == (
        "library_modules_test.thrice.default",
        "library_operators_test.twice.default",
    )
    assert library_modules(library_operators(program)) == {"library_modules_test.thrice.default": __name__}


def test_a_script_is_no_module_to_import():
    def half(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    half.__module__ = "__main__"
    operator = torch.library.custom_op("library_modules_test::half", half, mutates_args=())
    operator.register_fake(torch.empty_like)

    class Half(nn.Module):
        def forward(self, x):
            return operator(x)

    program = export(Half, (torch.ones(3),))

    assert library_operators(program) == ("library_modules_test.half.default",)
    assert library_modules(library_operators(program)) == {}


def test_a_file_that_was_imported_by_its_path_is_no_module_to_import(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(
        "import torch\n"
        "@torch.library.custom_op('library_modules_test::third', mutates_args=())\n"
        "def third(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x / 3\n"
        "third.register_fake(torch.empty_like)\n"
    )
    load_operator_library(str(path))

    assert python_operators(["library_modules_test.third.default", "aten.add.Tensor"]) == {
        "library_modules_test.third.default": None
    }


def test_operators_of_torch_need_no_library():
    program = export(lambda: nn.MultiheadAttention(8, 2), (torch.ones(3, 8),) * 3)

    assert library_operators(program) == ()
    assert library_classes(program) == ()
