"""A program compared with its eager model, as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fakexport.documents import escaped
from fakexport.report.quantity import plural
from fakexport.report.table import layout, wrapped

if TYPE_CHECKING:
    from fakexport.report.comparison import Comparison, ModuleComparison, Place, TensorError

_ROWS = 20


def render_comparison(comparison: Comparison, *, width: int) -> str:
    """Return the outputs, the modules that differ, the first place that does, and one line of summary."""
    parts = ["\n".join(line for text in comparison.assumptions for line in wrapped(escaped(text), width))]
    rows = [("output", "", "|program - eager|", "|program - float64|", "|eager - float64|")]
    rows += [(escaped(each.name), _status(each.error), *_numbers(each.error)) for each in comparison.outputs]
    parts.append("\n".join(layout(rows, right=(2, 3, 4))))
    differing = [module for module in comparison.modules if module.differing]
    if differing:
        parts.append("\n".join(layout([_HEAD, *map(_row, differing[:_ROWS])], right=(1, 2, 3, 4, 5))))
    if len(differing) > _ROWS:
        parts[-1] += f"\nand {plural(len(differing) - _ROWS, 'module')} more"
    first, diverging = comparison.first_difference, comparison.first_divergence
    if first is not None and first != diverging:
        parts.append("first other bits\n" + _place(first))
    if diverging is not None:
        parts.append("first divergence\n" + _place(diverging))
    parts.append(_summary(comparison))
    return "\n\n".join(part for part in parts if part) + "\n"


_HEAD = ("module", "kernels", "other bits", "diverging", "|program - float64|", "|eager - float64|")


def _row(module: ModuleComparison) -> tuple[str, ...]:
    counts = (module.kernels, module.differing, module.diverging)
    path = escaped(module.path) or "(root)"
    return (path, *map(str, counts), _number(module.error), _number(module.eager_error))


def _place(place: Place) -> str:
    instead = f"; eager runs {place.eager_kernel}" if place.eager_kernel else ""
    lines = [
        f"  node    {place.node} = {place.operator}",
        f"  kernel  {place.kernel}{instead}",
        f"  module  {place.module_path or '(root)'}",
    ]
    if place.span is not None:
        lines.append(f"  line    {place.span.path}:{place.span.line}")
    difference, program, eager = _numbers(place.error)
    lines.append(f"  error   {difference} from eager, {program} from float64; eager {eager}")
    return "\n".join(map(escaped, lines))


def _status(error: TensorError) -> str:
    if error.is_equal:
        return "equal"
    return "rounding" if error.is_close else "diverges"


def _numbers(error: TensorError) -> tuple[str, str, str]:
    return _number(error.difference), _number(error.program), _number(error.eager)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _summary(comparison: Comparison) -> str:
    compared = plural(comparison.kernels, "kernel") + " compared"
    if comparison.unmatched:
        compared += f", {comparison.unmatched:,} of the program without a counterpart"
    if comparison.is_identical:
        return f"the outputs are equal bit for bit; {compared}"
    if comparison.is_equal:
        return f"the outputs differ within rounding error; {compared}"
    return f"the program diverges; {compared}"
