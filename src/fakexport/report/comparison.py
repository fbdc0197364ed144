"""What a comparison with the eager model found, as values and as text."""

from __future__ import annotations

from dataclasses import dataclass

from fakexport.diagnostics import Span, escaped
from fakexport.report.quantity import plural
from fakexport.report.table import layout, wrapped


@dataclass(frozen=True)
class TensorError:
    """Eager's and the program's version of one tensor, compared with each other and with the exact one.

    Args:
        is_equal: Whether they are the same, bit for bit.
        difference: Largest distance between them; infinite if they differ in kind.
        eager, program: Largest distance of each from the float64 reference; None where there is none.
        tolerance: How far the program may be from the reference; without one, from eager.
    """

    is_equal: bool
    difference: float
    eager: float | None
    program: float | None
    tolerance: float

    @property
    def is_close(self) -> bool:
        """Whether rounding explains the difference."""
        distance = self.difference if self.program is None else self.program
        return self.is_equal or distance <= self.tolerance


@dataclass(frozen=True)
class Place:
    """Where the program does not return what eager returns.

    Args:
        node: Name of the graph node.
        operator: What it calls: `aten.layer_norm.default`.
        kernel: The kernel of it that gave another value: `aten.native_layer_norm.default`.
        eager_kernel: What eager runs there, if that is another one; "" if it is the same.
        module_path: The module.
        span: The line of the model; None where the graph does not tell.
        error: How far the value is off.
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
    """One module, without those below it.

    Args:
        path: "" is the root.
        kernels: How many kernels of it were compared.
        differing, diverging: How many of them gave other bits, and more than rounding explains.
        error: The largest error of the program from the float64 reference among them; None without one.
        eager_error: Eager's.
    """

    path: str
    kernels: int
    differing: int
    diverging: int
    error: float | None
    eager_error: float | None


@dataclass(frozen=True)
class OutputComparison:
    """One tensor of the output, such as `logits`, and how far it is off."""

    name: str
    error: TensorError


@dataclass(frozen=True)
class Comparison:
    """A program compared with its eager model.

    Args:
        kernels: How many kernels were compared.
        unmatched: How many kernels of the program eager does not run.
        modules: In the order in which they are first run.
        outputs: In order.
        first_difference: Where the bits differ first; None where they never do.
        first_divergence: Where the program first is further off than rounding explains; None if nowhere.
        assumptions: Sentences that say what was assumed.
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
        """Whether every output is the same bit for bit."""
        return all(output.error.is_equal for output in self.outputs) and self.first_divergence is None

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs by more than rounding explains."""
        return all(output.error.is_close for output in self.outputs) and self.first_divergence is None


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
