"""Where two programs differ, line by line, in the form that fakexport compares."""

from __future__ import annotations

from itertools import islice, zip_longest

from torch.export import ExportedProgram

from fakexport.exporting.program.canonical import canonicalise


def canonical_lines(program: ExportedProgram) -> tuple[str, ...]:
    """Return a program as text, in which only the names of nodes and symbols are left out."""
    return tuple(map(str, canonicalise(program).lines))


def nodes_equal(a: ExportedProgram, b: ExportedProgram, *, limit: int = 50) -> tuple[tuple[str, str], ...]:
    """Return the pairs of lines at equal positions that differ; nothing if the programs are the same.

    After an added node every later position differs; `diff` says what was added.
    """
    pairs = zip_longest(canonical_lines(a), canonical_lines(b), fillvalue="")
    return tuple(islice((pair for pair in pairs if pair[0] != pair[1]), limit))
