"""How torch.export writes back buffers that `forward` assigns. Seen on torch 2.13 and 2.15.

At the end of the program it copies the last value into the buffer (`self.steps = self.steps + 1`), but only
for buffers of the outermost module: those of others keep their first value, without a word. A buffer that
`forward` registers is not an input of the program, and the copy goes to the input in its place: it overwrites
what the caller passes.

Source: `torch/_functorch/_aot_autograd/utils.py:register_buffer_assignment_hook`,
`torch/export/_trace.py:_export_to_aten_ir_make_fx`.
"""

from __future__ import annotations

from typing import Any

from torch.export import _trace

from .patching import Patches


class _Handle:
    def remove(self) -> None:
        """There is nothing to remove."""


def buffer_assignments_ignored() -> Patches:
    """Return a context in which torch.export writes no assigned buffer back: the caller does."""

    def register(module: Any, assigned_buffers: dict[str, str]) -> _Handle:
        return _Handle()

    return Patches({(_trace, "register_buffer_assignment_hook"): register})
