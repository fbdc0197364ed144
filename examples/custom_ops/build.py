"""Builds operators.cpp against the installed torch, with g++ (or what CXX names) and nothing else.

    python examples/custom_ops/build.py -o libsignal_ops.so

The library needs neither Python nor this file afterwards: a C++ program can load it too.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

SOURCE = Path(__file__).with_name("operators.cpp")


def build(library):
    """Compiles the operators into the shared library of this path.

    Raises:
        subprocess.CalledProcessError: the compiler found faults; it has printed them.
        FileNotFoundError: there is no compiler.
    """
    folders = library_paths()
    subprocess.run(
        [
            os.environ.get("CXX", "g++"),
            *("-std=c++20", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(library)),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{folder}" for folder in include_paths()),
            *(f"-L{folder}" for folder in folders),
            *(f"-Wl,-rpath,{folder}" for folder in folders),
            *("-ltorch_cpu", "-ltorch", "-lc10"),
        ],
        check=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Builds operators.cpp.")
    parser.add_argument("-o", "--output", type=Path, default=Path("libsignal_ops.so"))
    output = parser.parse_args().output
    try:
        build(output)
    except FileNotFoundError as error:
        sys.exit(f"no compiler: {error.filename} is not installed")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
