"""Track the progress of a trace: count the repeated blocks of the model that have been traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from fakexport._torch.tracing.watched_calls import traced_modules

# If there are fewer blocks than this, the blocks inside of these blocks are counted instead.
_ENOUGH = 8


class TracedBlocks:
    """Count the blocks that a trace has passed, and name the module that is traced.

    Blocks are the items of module lists, such as the layers of a language model.

    Args:
        model: The traced model.
        on_change: Called with `done` and the path of the innermost module that is being traced.
    """

    def __init__(self, model: nn.Module, on_change: Callable[[int, str], None] | None = None) -> None:
        self._on_change = on_change
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._open: list[str] = []
        self._blocks = {id(block) for block in _blocks_of(model)}
        self._traced: set[int] = set()

    @property
    def total(self) -> int:
        """Number of blocks in the model. It is 0 for a model without module lists."""
        return len(self._blocks)

    @property
    def done(self) -> int:
        """Number of traced blocks. A block that is traced twice counts once."""
        return len(self._traced)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Enter a context that counts blocks in the traces of this thread, at one lookup per module call."""
        with traced_modules(self._start, self._end):
            yield

    def _start(self, module: nn.Module) -> None:
        self._open.append(self._paths.get(id(module), type(module).__name__))
        self._report()

    def _end(self, module: nn.Module) -> None:
        self._open.pop()
        if id(module) in self._blocks:
            self._traced.add(id(module))
        self._report()

    def _report(self) -> None:
        if self._on_change is not None:
            self._on_change(self.done, self._open[-1] if self._open else "")


def _blocks_of(model: nn.Module) -> list[nn.Module]:
    blocks = _nearest_blocks(model)
    while len(blocks) < _ENOUGH:
        finer = [inner for block in blocks for inner in (_nearest_blocks(block) or [block])]
        if len(finer) <= len(blocks):
            break
        blocks = finer
    return blocks


def _nearest_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the items of the outermost module lists. A list in a list is replaced by its items."""
    found: list[nn.Module] = []
    for child in module.children():
        is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        is_block = is_list and not isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        found += [child] if is_block and any(child.children()) else _nearest_blocks(child)
    return found
