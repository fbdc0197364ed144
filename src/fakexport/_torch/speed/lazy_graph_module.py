"""Graph modules that generate their Python code on demand.

Export generates code for the whole graph about 24 times and never runs it; at 9,000 nodes this takes a
quarter of the time. This can be removed when torch's lazy graph modules become the default. Seen on torch
2.11 to 2.13.

Source: `torch/fx/_lazy_graph_module.py`, `torch/export/exported_program.py:_create_graph_module_for_export`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.export import exported_program
from torch.fx import Graph, GraphModule

from fakexport._torch.patching import Patches

lazy: Any
try:
    from torch.fx import _lazy_graph_module as lazy
except ImportError:
    lazy = None

_CREATE = "_create_graph_module_for_export"


@contextmanager
def lazy_graph_modules() -> Iterator[None]:
    """Enter a context in which new graph modules, also those of exported programs, are lazy."""
    use = getattr(lazy, "_use_lazy_graph_module", None)
    with nullcontext() if use is None else use(True), programs_without_code():
        yield


def graph_module_of(root: nn.Module, graph: Graph) -> GraphModule:
    """Return a graph module, lazy if possible."""
    made: GraphModule = getattr(lazy, "_LazyGraphModule", GraphModule)(root, graph)
    return made


def programs_without_code() -> Patches:
    """Return a context in which an `ExportedProgram` generates its code on first use.

    Generating and compiling the code takes a quarter of the time to load a program of 9,000 nodes. The
    constructor calls a function that ignores `_use_lazy_graph_module`; this context replaces that function.
    If code cannot be generated (an object as an argument), stock torch warns and its graph module returns
    None; the lazy module raises when it is called. `ExportedProgram.module()` raises in both cases.
    """
    kind = getattr(lazy, "_LazyGraphModule", None)
    is_known = kind is not None and hasattr(exported_program, _CREATE)
    return Patches({(exported_program, _CREATE): kind} if is_known else {})
