"""Compare the programs that two builds of one torch version export under emulation, without a GPU.

    python -m benchmarks.gpu_proof.builds /path/to/cuda-venv/bin/python

The first build is that of the given interpreter, and the second build is that of this interpreter: for
example, the CUDA wheel without a driver, and the CPU-only wheel. Exit code 0: all programs are equal. 1: some
differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu_proof.fidelity import differing_lines, is_failed
from benchmarks.gpu_proof.parts import Part, run_part
from benchmarks.gpu_proof.programs import CASES, path_of, read_lines
from benchmarks.gpu_proof.run import Run

_LIMIT_S = 300.0


def main() -> int:
    """Print a table with a row per model, and the lines that differ."""
    parser = argparse.ArgumentParser(description="Compares the programs of two builds of torch.")
    parser.add_argument("python", help="interpreter with the other build of torch")
    parser.add_argument("--profile", default="H100-80GB", help="the GPU that both emulate")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    print(f"{_versions(options.python)} and {_versions(sys.executable)}\n")
    print("| model | lines of canonical form | programs |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        here = Run.in_folder(Path(folder), profile=options.profile, is_pretend=True)
        equal = [_row(here, options.python, name) for name in options.cases]
    return 0 if all(equal) else 1


def _row(here: Run, python: str, name: str) -> bool:
    """Print the row of one model, and return whether both builds capture the same program."""
    programs = []
    for run in (dataclasses.replace(here, python=python), here):
        is_captured = run_part(run, Part("fidelity", "emulated", name, is_hidden=True, limit_s=_LIMIT_S))
        programs.append(read_lines(path_of(run, "emulated", name)) if is_captured else [])
    is_equal = programs[0] == programs[1] and not any(map(is_failed, programs))
    print(f"| {name} | {len(programs[0])} | {'equal' if is_equal else 'different'} |", flush=True)
    for line in [] if is_equal else differing_lines(*programs):
        print(f"    {line}")
    return is_equal


def _versions(python: str) -> str:
    program = (
        "import torch, transformers as t; print(f'torch {torch.__version__}, transformers {t.__version__}')"
    )
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
