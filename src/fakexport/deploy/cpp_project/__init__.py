"""A CMake project in C++ that runs a program compiled with AOTInductor."""

from .project import write_cpp_project
