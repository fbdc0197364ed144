"""Describe why a compilation failed: in one line, or in a diagnostic at the user's line of code."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.inductor import failed_node, is_compiler_fault, root_cause
from fakexport._torch.pytree import tree_leaves
from fakexport.exporting.program import operator_name, walk
from fakexport.rules import rule

from ..artifact import CompileFailure, DeployError
from ..unsupported import finding_at

_LACKING = {
    re.compile("No space left on device"): errno.ENOSPC,
    re.compile("[Ff]ile size limit exceeded|File too large|SIGXFSZ"): errno.EFBIG,
    re.compile("Disk quota exceeded"): errno.EDQUOT,
    # "Killed signal" is printed when the system kills the compiler.
    re.compile("virtual memory exhausted|Cannot allocate memory|out of memory|Killed signal"): errno.ENOMEM,
}
_MISSING_HEADER = re.compile(r"fatal error: ([^:\s]+): No such file or directory")
_MAX_NOTE_LINES = 6


def failure_of(error: Exception) -> DeployError:
    """Return the exception to raise instead of an Inductor error.

    If the program is the cause, it is a `CompileFailure` with FE803, otherwise an error with a one-line
    message.
    """
    cause = root_cause(error)
    if isinstance(cause, MemoryError):
        return DeployError(f"AOTInductor failed: {os.strerror(errno.ENOMEM)}")
    if isinstance(cause, OSError) and cause.errno is not None:
        where = f": {cause.filename}" if cause.filename else ""
        return DeployError(f"AOTInductor cannot write its files{where}: {cause.strerror}")
    text = str(cause)
    if is_compiler_fault(cause):
        for pattern, number in _LACKING.items():
            if pattern.search(text):
                return DeployError(f"the C++ compiler failed: {os.strerror(number)}")
        if missing := _MISSING_HEADER.search(text):
            return DeployError(
                f"the C++ compiler cannot find {missing[1]}: install the package that provides it"
            )
        text = "\n".join(_lines_of_compiler(text))
    node = failed_node(error)
    note = "\n".join(text.strip().splitlines()[:_MAX_NOTE_LINES])
    notes = (f"{type(cause).__name__}: {note}",)
    if node is None:
        return CompileFailure((rule("FE803").diagnostic(notes=notes),))
    name = str(node.meta.get("original_aten") or operator_name(node))
    said = (f"the operator is `{name}`", *notes)
    return CompileFailure((finding_at("FE803", node, f"`{name}` comes from here", notes=said),))


def refuse_sparse(program: ExportedProgram) -> None:
    """Reject sparse results (FE803): Inductor's code for them fails when it runs (torch 2.13)."""
    for visit in walk(program):
        for value in tree_leaves(visit.node.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                note = f"{operator_name(visit.node)} returns a sparse tensor, but AOTInductor has none"
                found = finding_at("FE803", visit.node, "this tensor is sparse", notes=(note,))
                raise CompileFailure((found,))


def _lines_of_compiler(text: str) -> Iterator[str]:
    """Yield the lines that the compiler marks as errors, or its whole output if there are none."""
    found = [line for line in text.splitlines() if re.search(r"\berror\b:", line)]
    yield from found or text.splitlines()
