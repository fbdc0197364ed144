"""Only `fakexport.models` lists the libraries that models come from."""

import ast

import pytest

from fakexport.models import LIBRARIES
from tests.contract.source_tree import Module, modules

NAMES = {name for library in LIBRARIES for name in (library.package, library.prefix, f"{library.prefix}:")}
TABLE = "src/fakexport/models/libraries.py"


def lists_libraries(module: Module) -> bool:
    """Whether a tuple, list or set contains more than one of the libraries."""
    return any(
        len({each.value.rstrip(":") for each in node.elts if is_name(each)}) > 1
        for node in module.nodes
        if isinstance(node, ast.Tuple | ast.List | ast.Set)
    )


def is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in NAMES


def test_no_other_module_lists_the_model_libraries():
    found = [module.path for module in modules() if module.path != TABLE and lists_libraries(module)]

    assert not found, "\n".join(
        f"{file} lists model libraries by hand: use `LIBRARIES` or `library_of` of `fakexport.models`"
        for file in found
    )


@pytest.mark.parametrize(
    ("statement", "is_list"),
    [
        ('source.startswith(("hf:", "timm:"))', True),
        ('PACKAGES = ["torch", "transformers", "diffusers"]', True),
        ('QUIET = ("torch", "transformers")', False),
    ],
)
def test_a_list_of_libraries_is_found(statement, is_list):
    assert lists_libraries(Module("sample.py", "fakexport.models.sample", statement)) is is_list
