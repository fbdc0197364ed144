"""A program and its eager model side by side, kernel by kernel: `compare`."""

from .compare import compare
from .comparison import Comparison, ModuleComparison, OutputComparison, Place
from .error import ALLOWED_RATIO, TensorError

__all__ = [
    "ALLOWED_RATIO",
    "Comparison",
    "ModuleComparison",
    "OutputComparison",
    "Place",
    "TensorError",
    "compare",
]
