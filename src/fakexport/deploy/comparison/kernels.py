"""Record the kernels of a run and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.tracing.dispatch_observer import kernels_observed

# These kernels return no tensor, or only an alias of their argument, which is already compared.
_NOT_COMPARED = frozenset(("aten.detach.default", "aten.alias.default", "aten.lift_fresh.default"))


@dataclass(eq=False, slots=True)
class Kernel:
    """One call of a kernel: its operator, the path of the module in which it ran, and copies of its results.

    `node` is the program's node that called the kernel; None in an eager run.
    """

    name: str
    path: str
    results: tuple[torch.Tensor, ...]
    node: Node | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Key for matching the kernels of two runs: results of kernels with equal keys can be compared."""
        return (self.name, *((tuple(each.shape), each.dtype) for each in self.results))

    @property
    def shape_key(self) -> tuple[object, ...]:
        """Like `key`, but without dtypes, for runs in different precisions."""
        return (self.name, *(tuple(each.shape) for each in self.results))


@dataclass
class KernelRecord:
    """Records the kernels of a run, in order.

    `where` returns the path of the running module and the running node. For a run in a different precision,
    `dtypes` maps dtypes in the arguments of kernels to their replacements.
    """

    where: Callable[[], tuple[str, Node | None]]
    dtypes: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)

    def __call__(
        self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]
    ) -> Any:
        """Run a kernel and record its results."""
        if self.dtypes:
            args, kwargs = tree_map(self._converted, (tuple(args), dict(kwargs)))
        result = run(*args, **kwargs)
        name = str(kernel)
        if name not in _NOT_COMPARED:
            tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            path, node = self.where()
            copies = tuple(tensor.detach().clone() for tensor in tensors)
            self.kernels.append(Kernel(name, path, copies, node))
        return result

    def _converted(self, value: Any) -> Any:
        return self.dtypes.get(value, value) if isinstance(value, torch.dtype) else value


@contextmanager
def recorded(record: KernelRecord) -> Iterator[None]:
    """Record kernels in this context, without gradients and with seed 0."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        with kernels_observed(record):
            yield
