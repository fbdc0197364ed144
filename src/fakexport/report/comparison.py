"""Results of comparing a program with the eager model, and their rendering as text."""

from __future__ import annotations

from dataclasses import dataclass

from fakexport.files import escaped
from fakexport.report.quantity import Distance, plural
from fakexport.report.table import layout, wrapped
from fakexport.rules.diagnostics import Span


@dataclass(frozen=True)
class TensorError:
    """Differences and errors of one tensor that eager mode and the program both compute.

    Args:
        is_equal: Whether both tensors are identical, bit for bit.
        difference: Largest difference between the tensors; infinite if their types or shapes differ.
        eager, program: Largest error of the tensor that eager mode or the program computes, relative to the
            float64 reference; None without a reference.
        tolerance: Largest allowed error of the program's tensor. Without a reference, the largest allowed
            difference from eager mode.
    """

    is_equal: bool
    difference: Distance
    eager: Distance | None
    program: Distance | None
    tolerance: Distance

    @property
    def is_close(self) -> bool:
        """Whether rounding explains the difference."""
        distance = self.difference if self.program is None else self.program
        return self.is_equal or distance <= self.tolerance


@dataclass(frozen=True)
class Place:
    """A node whose result differs from eager mode.

    Args:
        node: Name of the graph node.
        operator: The operator that it calls: `aten.layer_norm.default`.
        kernel: The kernel whose result differs: `aten.native_layer_norm.default`.
        eager_kernel: The kernel that eager mode runs instead; "" if it is the same kernel.
        module_path: Path of the module.
        span: The line of the model; None if the graph does not record it.
        error: The size of the difference.
    """

    node: str
    operator: str
    kernel: str
    eager_kernel: str
    module_path: str
    span: Span | None
    error: TensorError


@dataclass(frozen=True)
class ModuleComparison:
    """Results for one module, without its submodules.

    Args:
        path: Path of the module; "" for the root.
        kernels: Number of compared kernels.
        differing: Number of kernels whose results differ in any bit.
        diverging: Number of kernels whose results differ by more than rounding.
        error: Largest error of the program relative to the float64 reference; None without a reference.
        eager_error: Largest error of eager mode relative to the float64 reference.
    """

    path: str
    kernels: int
    differing: int
    diverging: int
    error: Distance | None
    eager_error: Distance | None


@dataclass(frozen=True)
class OutputComparison:
    """Comparison of one output tensor.

    Args:
        name: Name of the output, such as `logits`.
        error: The size of the difference.
    """

    name: str
    error: TensorError


@dataclass(frozen=True)
class Comparison:
    """A program compared with its eager model.

    Args:
        kernels: Number of compared kernels.
        unmatched: Number of kernels that the program runs but eager mode does not.
        modules: One entry per module, in the order in which the modules are first called.
        outputs: One entry per output tensor, in order.
        first_difference: The first node whose result differs in any bit; None if there is none.
        first_divergence: The first node whose result differs by more than rounding; None if there is none.
        assumptions: One sentence per assumption.
    """

    kernels: int
    unmatched: int
    modules: tuple[ModuleComparison, ...]
    outputs: tuple[OutputComparison, ...]
    first_difference: Place | None
    first_divergence: Place | None
    assumptions: tuple[str, ...] = ()

    @property
    def is_identical(self) -> bool:
        """Whether all outputs are identical, bit for bit."""
        return all(output.error.is_equal for output in self.outputs) and self.first_divergence is None

    @property
    def is_equal(self) -> bool:
        """Whether rounding explains all differences."""
        return all(output.error.is_close for output in self.outputs) and self.first_divergence is None


_ROWS = 20


def render_comparison(comparison: Comparison, *, width: int) -> str:
    """Return the outputs, the modules that differ, the first node that differs, and a summary line."""
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
        parts.append("first different bits\n" + _place(first))
    if diverging is not None:
        parts.append("first divergence\n" + _place(diverging))
    parts.append(_summary(comparison))
    return "\n\n".join(part for part in parts if part) + "\n"


_HEAD = ("module", "kernels", "different bits", "diverging", "|program - float64|", "|eager - float64|")


def _row(module: ModuleComparison) -> tuple[str, ...]:
    counts = (module.kernels, module.differing, module.diverging)
    path = escaped(module.path) or "(root)"
    return (path, *map(str, counts), _number(module.error), _number(module.eager_error))


def _place(place: Place) -> str:
    instead = f"; eager mode runs {place.eager_kernel}" if place.eager_kernel else ""
    lines = [
        f"  node    {place.node} = {place.operator}",
        f"  kernel  {place.kernel}{instead}",
        f"  module  {place.module_path or '(root)'}",
    ]
    if place.span is not None:
        lines.append(f"  line    {place.span.path}:{place.span.line}")
    difference, program, eager = _numbers(place.error)
    program_error = f"|program - eager| {difference}, |program - float64| {program}"
    lines.append(f"  error   {program_error}, |eager - float64| {eager}")
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
        compared += f", {comparison.unmatched:,} kernels of the program without a counterpart in eager mode"
    if comparison.is_identical:
        return f"the outputs are equal bit for bit; {compared}"
    if comparison.is_equal:
        return f"the outputs differ within rounding error; {compared}"
    return f"the program diverges; {compared}"
