"""Step: compare the programs of fakexport with and without the GPU, and those of stock torch.export."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from benchmarks.gpu_proof.parts import Part, run_parts
from benchmarks.gpu_proof.programs import (
    CASES,
    FAILED,
    emulated,
    native,
    path_of,
    read_lines,
    slowest_first,
    stock,
)
from benchmarks.gpu_proof.run import Run

PARTS = {"native": native, "stock": stock, "emulated": emulated}
PAIRS = (("native", "emulated"), ("stock", "emulated"))
_SHOWN = 30
_DIFFERENT_WITHOUT_A_GPU = {"literals": "a literal is lifted on the CPU, then moved; see `fold_lifted_moves`"}


def step(run: Run) -> None:
    """Capture each model in each way, in separate processes of one build, and compare the programs.

    Emulated programs that the step `prepare` wrote are used as they are.
    """
    names = slowest_first(run.chosen(CASES))
    parts = [
        Part("fidelity", kind, name, is_hidden=kind == "emulated")
        for kind in kinds_of(run)
        for name in names
        if kind != "emulated" or not path_of(run, kind, name).exists()
    ]

    compared = set()

    def compare(part: Part) -> None:
        for pair in PAIRS:
            paths = [path_of(run, kind, part.case) for kind in pair]
            if (part.case, pair) not in compared and all(path.exists() for path in paths):
                compared.add((part.case, pair))
                record_comparison(run, part.case, pair, *map(read_lines, paths))

    for part in parts:  # Of an earlier run.
        path_of(run, part.name, part.case).unlink(missing_ok=True)
    run_parts(run, parts, then=compare)


def kinds_of(run: Run) -> tuple[str, ...]:
    """Return the kinds of capture that this machine supports."""
    return ("emulated", "stock") if run.is_pretend else ("native", "emulated", "stock")


def record_comparison(
    run: Run, name: str, pair: tuple[str, str], one: Sequence[str], other: Sequence[str]
) -> None:
    """Record whether two programs are equal, and the lines that differ.

    fakexport intentionally replaces containers in inputs and outputs by plain ones, so only the nodes are
    compared with stock torch.export. `is_whole_equal` is about the whole programs. `ok` is None if stock
    torch captures a different program only because there is no GPU.
    """
    has_failed = is_failed(one) or is_failed(other)
    is_equal = list(one) == list(other) and not has_failed
    is_right = is_equal if "stock" not in pair else _nodes(one) == _nodes(other) and not has_failed
    is_excused = run.is_pretend and not is_right and not has_failed
    reason = _DIFFERENT_WITHOUT_A_GPU.get(name) if is_excused else None
    run.record(
        "fidelity", name, pair=" = ".join(pair), ok=None if reason else is_right, reason=reason,
        is_whole_equal=is_equal, lines=len(one),
        failed=[list(lines[:1]) for lines in (one, other) if is_failed(lines)],
        differing=[] if is_right else differing_lines(one, other),
    )  # fmt: skip


def is_failed(lines: Sequence[str]) -> bool:
    return not lines or lines[0].startswith(FAILED)


def differing_lines(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the first lines that differ between two programs."""
    return list(difflib.unified_diff(one, other, lineterm="", n=0))[2 : 2 + _SHOWN]


def _nodes(lines: Sequence[str]) -> list[str]:
    """Return the lines without output names, containers and the call that checks guards."""
    ports = ("output ", "inputs ", "outputs ")
    return [line for line in lines if not line.lstrip().startswith(ports) and "_guards_fn" not in line]
