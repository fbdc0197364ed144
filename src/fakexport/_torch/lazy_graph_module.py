"""Graph modules that generate their Python code when it is wanted.

Export generates the code of the whole graph about 24 times and runs none of it: a quarter of the time at
9,000 nodes. It can go when torch's own lazy graph modules are the default. Seen on torch 2.11 to 2.13.

Source: `torch/fx/_lazy_graph_module.py`,
`torch/export/exported_program.py:_create_graph_module_for_export`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.export import exported_program
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module

from .patching import Patches


@contextmanager
def lazy_graph_modules() -> Iterator[None]:
    """Put off generating code in new graph modules, those of exported programs among them."""
    with _use_lazy_graph_module(True), programs_without_code():
        yield


def programs_without_code() -> Patches:
    """Return a context in which an `ExportedProgram` generates its code on first use.

    Generating and compiling it takes a quarter of the time to load a program of 9,000 nodes. The constructor
    makes its graph module by this one function, which does not look at `_use_lazy_graph_module`. Where code
    cannot be generated (an object as an argument), stock torch warns and its graph module returns None; this
    one raises when it is called. `ExportedProgram.module()` raises in both.
    """
    return Patches({(exported_program, "_create_graph_module_for_export"): _LazyGraphModule})
