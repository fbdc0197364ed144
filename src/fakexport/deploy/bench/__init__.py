"""The benchmark of deployment formats: eager, weights, TorchScript, exported programs, compiled forms."""

from .bench import bench
from .modes import MODES

__all__ = ["MODES", "bench"]
