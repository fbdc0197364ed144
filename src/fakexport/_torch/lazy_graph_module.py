"""Graph modules that generate their Python code when it is wanted.

Export generates the code of the whole graph about 24 times and runs none of it: a quarter of the time at
9,000 nodes. Seen on torch 2.11 to 2.13. Source: `torch/fx/_lazy_graph_module.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch.fx._lazy_graph_module import _use_lazy_graph_module


def lazy_graph_modules() -> AbstractContextManager[None]:
    """Return a context in which new graph modules put off generating code."""
    return _use_lazy_graph_module(True)
