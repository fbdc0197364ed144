"""Storages: blocks of memory that a program allocates or that its caller provides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

from fakexport.rules.diagnostics import Span

Kind: TypeAlias = Literal[
    "weight", "constant", "state", "gradient", "optimizer", "input", "activation", "temporary", "output"
]
"""What a storage is used for.

`weight`: a parameter, or a buffer that the program reads. `constant`: a tensor that the trace lifted.
`state`: a buffer that the program writes, or an input that it writes or returns. `temporary`: internal memory
of an operator; in training, also gradients of activations and intermediate values of the optimizer.
`gradient`: the gradient of a weight. `optimizer`: the state of the optimizer.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)

Size: TypeAlias = Any
"""A number of bytes or elements: an integer, or a sympy expression over the program's symbols."""


class Step(Protocol):
    """Something that runs and allocates memory: a node of a program, or an operator of a training step."""

    @property
    def name(self) -> str:
        """Name of the node; in training, the phase: `forward`, `backward` or `optimizer`."""

    @property
    def operator(self) -> str:
        """Name of the operator: `aten.mm.default`."""

    @property
    def module_path(self) -> str:
        """Path of the module that it belongs to; "" for the root."""

    @property
    def span(self) -> Span | None:
        """The line in the user's code, if known."""


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A step that is not a node of a program: an operator of a run, or a line of Inductor's wrapper code.

    In a training step, `name` is the phase. For gradients and optimizer states, `operator` is the kind of
    memory, and `module_path` the name of the parameter.
    """

    name: str
    operator: str
    module_path: str = ""
    span: Span | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Memory of one or more tensors, including all views of it.

    Args:
        name: Name of the node, input, weight or constant that it was allocated for; further results of a node
            are `node[1]`, `node[2]`.
        device: `cpu`, `cuda:0`.
        bytes: Bytes that its tensors need, before an allocator rounds the number up.
        shape, dtype: Shape and dtype of the tensor that it was allocated for; None and "" for an operator's
            internal memory.
        operator: The operator that allocated it, for example `aten.bmm.default` inside `aten.matmul.default`;
            "" if it exists before the run.
        visit: The step that allocated it; None if it exists before the run.
        names: All names, if it is a tied weight; otherwise the only name.
    """

    name: str
    kind: Kind
    device: str
    bytes: Size
    shape: tuple[Size, ...] | None
    dtype: str
    operator: str = ""
    visit: Step | None = None
    names: tuple[str, ...] = ()

    @property
    def module_path(self) -> str:
        """Path of the module that allocated it; "" for the root, and if it exists before the run."""
        return self.visit.module_path if self.visit else ""

    @property
    def span(self) -> Span | None:
        """The user's line that allocated it, if known."""
        return self.visit.span if self.visit else None
