"""Step: create everything for the other steps that needs no GPU: plans, programs and packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_proof import memory, packages, programs, small_packages, training, values
from benchmarks.gpu_proof.parts import Part, run_parts
from benchmarks.gpu_proof.run import Run


def step(run: Run) -> None:
    """Create the missing files, with the GPU hidden."""
    missing = [part for part, path in _parts(run) if not path.exists()]
    run_parts(run, missing)


def _parts(run: Run) -> Iterator[tuple[Part, Path]]:
    """Yield each part, and the last file that it writes."""
    for name in run.chosen(packages.CASES):
        yield Part("packages", "build", name, is_hidden=True), packages.path_of(run, name)
    for name in run.chosen(memory.CASES):
        yield Part("memory", "plan", name, is_hidden=True), memory.files_of(run, name)[1]
    for name in run.chosen(values.CASES):
        yield Part("values", "export", name, is_hidden=True), values.path_of(run, name, "cpu")
    for name in run.chosen(training.CASES):
        yield Part("training", "plan", name, is_hidden=True), training.path_of(run, name)
    for name in run.chosen(programs.CASES):
        path = programs.path_of(run, "emulated", name)
        yield Part("fidelity", "emulated", name, is_hidden=True), path
    for name in run.chosen(small_packages.CASES):
        yield Part("small_packages", "build", name, is_hidden=True), small_packages.path_of(run, name)
