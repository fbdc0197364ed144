"""What blocks may use of Python's library and of extensions in C: what keeps nothing that no walk can see."""

from __future__ import annotations

import os
import sys
import types

import numpy
import pytest
import torch

from fakexport.capture.block_reuse.known_libraries import (
    why_import_is_unknown,
    why_module_is_unknown,
    why_name_is_unknown,
)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("math", "sqrt"),
        ("_operator", "add"),
        ("collections.abc", "Mapping"),
        ("functools", "reduce"),
        ("inspect", "signature"),
        ("os", "environ"),
        ("sys", "version_info"),
        ("weakref", "ref"),
        ("numpy", "arange"),
        ("torch._C", "relu"),
        ("transformers.activations", "ACT2FN"),
        ("__main__", "Block"),
        (None, "__init__"),
    ],
)
def test_what_keeps_nothing_may_be_used(module, name):
    assert why_name_is_unknown(module, name) is None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sys", "getrecursionlimit"),
        ("sys", "getrefcount"),
        ("posix", "getcwd"),
        ("os", "path"),
        ("time", "perf_counter"),
        ("_random", "Random"),
        ("decimal", "getcontext"),
        ("_contextvars", "ContextVar"),
        ("threading", "local"),
        ("_thread", "_local"),
        ("weakref", "getweakrefcount"),
        ("inspect", "stack"),
        ("numpy", "geterr"),
        ("numpy.random", "default_rng"),
        ("importlib", "import_module"),
    ],
)
def test_what_may_keep_something_may_not(module, name):
    assert why_name_is_unknown(module, name) == f"`{module}.{name}`"


def test_an_extension_in_c_may_keep_anything():
    __import__("safetensors")

    assert why_name_is_unknown("safetensors._safetensors_rust", "serialize") is not None
    assert why_name_is_unknown("safetensors.torch", "load_file") is None


def test_of_a_module_only_what_the_code_names_counts():
    assert why_module_is_unknown(os, frozenset({"environ", "get"})) is None
    assert why_module_is_unknown(os, frozenset({"environ", "getcwd"})) == "`os.getcwd`"
    assert why_module_is_unknown(sys, frozenset({"maxsize"})) is None
    assert why_module_is_unknown(numpy, frozenset({"arange", "seterr"})) == "`numpy.seterr`"
    assert why_module_is_unknown(torch, frozenset({"relu", "nn"})) is None
    assert why_module_is_unknown(types.ModuleType("time"), frozenset()) == "`time`"


def imports_math(x):
    import math

    return math.sqrt(x)


def imports_time(x):
    import time

    return time.time() * x


def imports_the_model(x):
    from tests.unit.capture import reused_blocks

    return reused_blocks.DEPTH * x


def test_what_code_imports_while_it_runs_counts():
    assert why_import_is_unknown(imports_math.__code__) is None
    assert why_import_is_unknown(imports_time.__code__) == "`time`"
    assert why_import_is_unknown(imports_the_model.__code__) == "an import of `tests.unit.capture`"
    assert why_import_is_unknown(test_of_a_module_only_what_the_code_names_counts.__code__) is None
