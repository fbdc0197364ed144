"""Which adapter a program was exported with, as an archive records it; free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

AdapterMode = Literal["apart", "merged", "inputs"]
ADAPTER_MODES: tuple[str, ...] = get_args(AdapterMode)


@dataclass(frozen=True)
class AdapterRecord:
    """How a program needs its adapter.

    Args:
        mode: `apart`: the tensors of the adapter are weights of the program. `merged`: they are merged into
            the weights of the base model when these are bound. `inputs`: they are inputs.
        name: What the names of its tensors begin with, before a period; empty for the only adapter.
        weights: Name of a weight in a checkpoint, by its name in the module, where they differ. A
            stored program has the names of the checkpoint.
        inputs: The inputs that are tensors of the adapter; empty for a stored program.
    """

    mode: AdapterMode
    name: str = ""
    weights: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    inputs: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
