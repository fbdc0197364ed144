"""What a comparison found."""

from __future__ import annotations

from dataclasses import dataclass

from fakexport.diagnostics import Span


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
    """One tensor of the output.

    Args:
        name: `logits`.
        error: How far it is off.
    """

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
