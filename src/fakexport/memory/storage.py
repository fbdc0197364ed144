"""A piece of memory that a program holds for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

from fakexport.diagnostics import Span

Kind: TypeAlias = Literal[
    "weight", "constant", "state", "gradient", "optimizer", "input", "activation", "temporary", "output"
]
"""What a storage is for.

`weight`: a parameter, or a buffer that the program reads. `constant`: a tensor that the trace lifted.
`state`: a buffer that the program writes, or an input that it writes or returns. `temporary`: an operator's
own; of training, also the gradients of activations and what an optimizer computes with. `gradient`: that of a
weight. `optimizer`: what an optimizer keeps.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)

Size: TypeAlias = Any
"""A number of bytes or elements: an integer, or a sympy expression over the program's symbols."""


class Step(Protocol):
    """Something that runs and takes memory: a node of a program, or an operator of a training step."""

    @property
    def name(self) -> str:
        """Name of the node; of training, the phase: `forward`, `backward` or `optimizer`."""

    @property
    def operator(self) -> str:
        """Name of the operator: `aten.mm.default`."""

    @property
    def module_path(self) -> str:
        """Path of the module that it belongs to; "" for the root."""

    @property
    def span(self) -> Span | None:
        """The user's line, if it is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Memory of one or more tensors: all views of it together.

    Args:
        name: Name of the node, input, weight or constant that it was made for; a node's further results are
            `node[1]`, `node[2]`.
        kind: What it is for.
        device: `cpu`, `cuda:0`.
        bytes: What its tensors need, before any allocator rounds it up.
        shape: Shape of the tensor that it was made for; None for an operator's own.
        dtype: Dtype of that tensor, without `torch.`; "" for an operator's own.
        operator: What took it, `aten.bmm.default` inside of `aten.matmul.default`, say; "" for what the
            caller holds.
        visit: What took it; None for what the caller holds.
        names: All names of a weight that is tied; else the one name.
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
        """Path of the module that took it; "" for the root and for what the caller holds."""
        return self.visit.module_path if self.visit else ""

    @property
    def span(self) -> Span | None:
        """The user's line that took it, if it is known."""
        return self.visit.span if self.visit else None
