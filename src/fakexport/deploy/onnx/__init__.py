"""ONNX: compile a program for ONNX Runtime and other readers of the format."""

from .compilation import compile_onnx
from .folder import compile_onnx_folder
from .opened import open_onnx
