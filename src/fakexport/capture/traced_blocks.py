"""How far a trace is: the repeated blocks of a model, and those that were traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from fakexport._torch.traced_modules import traced_modules

# With fewer blocks than this, the blocks inside of them are counted.
_ENOUGH = 8


class TracedBlocks:
    """Counts the blocks that a trace has been through.

    Blocks are what lists of modules hold, such as the layers of a language model.

    Args:
        model: The model that is traced.
        on_count: Called with `done` when it has changed.
    """

    def __init__(self, model: nn.Module, on_count: Callable[[int], None] | None = None) -> None:
        self._on_count = on_count
        self._blocks = {id(block) for block in _blocks_of(model)}
        self._traced: set[int] = set()

    @property
    def total(self) -> int:
        """How many blocks the model has; 0 for one without lists of modules."""
        return len(self._blocks)

    @property
    def done(self) -> int:
        """How many of them were traced; what is traced twice counts once."""
        return len(self._traced)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """In this block the traces of this thread are counted; it costs a look-up per module."""
        with traced_modules(self._count):
            yield

    def _count(self, module: nn.Module) -> None:
        if id(module) in self._blocks and id(module) not in self._traced:
            self._traced.add(id(module))
            if self._on_count is not None:
                self._on_count(self.done)


def _blocks_of(model: nn.Module) -> list[nn.Module]:
    blocks = _nearest_blocks(model)
    while len(blocks) < _ENOUGH:
        finer = [inner for block in blocks for inner in (_nearest_blocks(block) or [block])]
        if len(finer) <= len(blocks):
            break
        blocks = finer
    return blocks


def _nearest_blocks(module: nn.Module) -> list[nn.Module]:
    """What the nearest lists of modules hold; lists in a list are looked into."""
    found: list[nn.Module] = []
    for child in module.children():
        is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        is_block = is_list and not isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        found += [child] if is_block and any(child.children()) else _nearest_blocks(child)
    return found
