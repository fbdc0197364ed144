"""The kernels that a run consists of, with what they gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.kernel_observer import kernels_observed
from fakexport._torch.pytree import tree_leaves, tree_map

# They return no tensor, or only another look at the one that they take, whose values are compared already.
_NOT_COMPARED = frozenset(("aten.detach.default", "aten.alias.default", "aten.lift_fresh.default"))


@dataclass(eq=False, slots=True)
class Kernel:
    """One kernel that ran.

    Args:
        name: `aten.addmm.default`.
        path: The module in which it ran.
        results: Copies of the tensors that it gave.
        node: The node of the program that ran it; None in an eager run.
    """

    name: str
    path: str
    results: tuple[torch.Tensor, ...]
    node: Node | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for kernels of two runs of one model that can be compared with each other."""
        return (self.name, *((tuple(each.shape), each.dtype) for each in self.results))

    @property
    def shape_key(self) -> tuple[object, ...]:
        """As `key`, for runs in two dtypes."""
        return (self.name, *(tuple(each.shape) for each in self.results))


@dataclass
class KernelRecord:
    """The kernels of a run, in order.

    Args:
        where: Returns the module and the node that are running.
        dtypes: What takes the place of a dtype that a kernel is asked for, as in a run in another precision.
    """

    where: Callable[[], tuple[str, Node | None]]
    dtypes: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)

    def __call__(
        self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]
    ) -> Any:
        """Run a kernel and remember what it gave."""
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
    """Enter the context whose kernels are recorded, without gradients, under seed 0."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        with kernels_observed(record):
            yield
