"""The benchmark of deployment formats: eager, weights, TorchScript, exported programs, compiled forms."""

from .benchmark import bench
from .modes import MODES

__all__ = ["MODES", "bench"]
