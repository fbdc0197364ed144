"""A piece of memory that a program holds for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fakexport.diagnostics import Span
from fakexport.program import Visit

Kind: TypeAlias = Literal["weight", "constant", "input", "state", "activation", "temporary", "output"]
"""What a storage is for.

`weight`: a parameter, or a buffer that the program reads. `constant`: a tensor that the trace lifted.
`state`: a buffer that the program writes, or an input that it writes or returns. `temporary`: an operator's
own.
"""

KINDS: tuple[Kind, ...] = ("weight", "constant", "state", "input", "activation", "temporary", "output")

Size: TypeAlias = Any
"""A number of bytes or elements: an integer, or a sympy expression over the program's symbols."""


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
        visit: The node that took it; None for what the caller holds.
        names: All names of a weight that is tied; else the one name.
    """

    name: str
    kind: Kind
    device: str
    bytes: Size
    shape: tuple[Size, ...] | None
    dtype: str
    operator: str = ""
    visit: Visit | None = None
    names: tuple[str, ...] = ()

    @property
    def module_path(self) -> str:
        """Path of the module that took it; "" for the root and for what the caller holds."""
        return self.visit.module_path if self.visit else ""

    @property
    def span(self) -> Span | None:
        """The user's line that took it, if it is known."""
        return self.visit.span if self.visit else None
