"""ExecuTorch: a program for edge runtimes."""

from __future__ import annotations

from .backend import Backend
from .compiling import compile_executorch
from .running import open_executorch
