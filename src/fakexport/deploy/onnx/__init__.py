"""ONNX: a program for ONNX Runtime and what else reads it."""

from .compilation import compile_onnx
from .opened import open_onnx

__all__ = ["compile_onnx", "open_onnx"]
