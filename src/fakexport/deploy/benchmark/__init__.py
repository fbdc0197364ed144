"""Benchmark deployment formats: eager, weights, TorchScript, exported programs, compiled forms."""

from .benchmark import bench
