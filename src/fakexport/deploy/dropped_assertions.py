"""What a format without assertions leaves out of a program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch.export import ExportedProgram

from fakexport.conditions import conditions_of
from fakexport.program import SourcePaths, graph_modules, operator_name, source_span

_ASSERTIONS = frozenset(
    {"aten._assert_async.msg", "aten._assert_async.default", "aten._assert_scalar.default"}
)


def assertion_notes(program: ExportedProgram, form: str) -> Iterator[str]:
    """Yield a sentence where the compiled file checks less than the program.

    It has neither `torch._check` and `--assume` nor guards on what `forward` asked of its inputs.
    """
    called = [node for module in graph_modules(program.graph_module) for node in module.graph.nodes]
    if checks := [node for node in called if operator_name(node) in _ASSERTIONS]:
        span = next((span for span in map(source_span, checks) if span is not None), None)
        place = "" if span is None else f", as at {SourcePaths(Path.cwd()).shortened(span.path)}:{span.line}"
        yield f"{form} has no assertions: the program's assertions are dropped ({len(checks)}){place}"
    if asked := [condition for condition in conditions_of(program) if condition.asked_at]:
        yield (
            f"{form} has no guards: `fakexport run` checks that {asked[0].reason}"
            + (f" ({len(asked) - 1} more)" if len(asked) > 1 else "")
            + "; other runtimes do not"
        )
