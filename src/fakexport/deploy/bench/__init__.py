"""The benchmark of ways to hand a model over: eager, weights, TorchScript, programs, compiled forms."""

from .bench import bench
from .modes import MODES

__all__ = ["MODES", "bench"]
