"""ExecuTorch: compile and run a program for edge runtimes."""

from __future__ import annotations

from .compiling import compile_executorch
from .running import open_executorch
