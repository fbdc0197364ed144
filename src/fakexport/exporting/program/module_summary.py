"""The module tree of a model. Repeated blocks are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fakexport._torch.emulation.wrapper_subclasses import inner_tensors
from fakexport.exporting.program.tensor_identity import tensor_identity
from fakexport.exporting.program.tensor_spec import plain_name


@dataclass(frozen=True)
class ModuleSummary:
    """One module, or a run of identical modules in a list.

    Counts and bytes are for **one** module of the run, so `total = own + sum(child.total * child.count)`
    holds exactly for every entry.

    Args:
        name: Name in the parent, such as `"0-125"` for a run. "" for the root.
        path: Path of the (first) module: `model.layers.0`.
        class_name: Name of its class.
        count: Number of modules in the run.
        own_parameters: Number of elements in the parameters registered on the module itself.
        total_parameters: The same, including all submodules.
        own_buffers: Number of elements in the buffers registered on the module itself, persistent or not.
        total_buffers: The same, including all submodules.
        own_bytes: Bytes of the module's own parameters and buffers.
        total_bytes: The same, including all submodules.
        dtypes: Dtypes of all tensors in the module and its submodules, sorted: `("bfloat16", "float32")`.
        bytes_per_device: `total_bytes` of the **whole run** by device, sorted.
        tied_to: Names of weights that this module shares with an earlier module, such as
            `("model.embed_tokens.weight",)`. They are counted only in the earlier module.
        children: The submodules in order of registration.
    """

    name: str
    path: str
    class_name: str
    count: int
    own_parameters: int
    total_parameters: int
    own_buffers: int
    total_buffers: int
    own_bytes: int
    total_bytes: int
    dtypes: tuple[str, ...]
    bytes_per_device: Mapping[str, int]
    tied_to: tuple[str, ...]
    children: tuple[ModuleSummary, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices of all tensors in the module, sorted."""
        return tuple(self.bytes_per_device)


def inspect_module(module: nn.Module) -> ModuleSummary:
    """Return the tree of a module and its submodules.

    Consecutive items of a module list are merged if they have the same classes, shapes, dtypes and ties,
    recursively; devices may differ. A tied weight is counted only in its first module. Uninitialized lazy
    modules count as empty. No data is read, so real, fake and meta modules are all supported.
    """
    return _Inspection().entry(module, name="", path="").summary


class _Inspection:
    def __init__(self) -> None:
        self._first_names: dict[Hashable, str] = {}
        self._structures: dict[Hashable, int] = {}

    def entry(self, module: nn.Module, name: str, path: str) -> _Entry:
        own = self._own(module, path)
        entries = [
            self.entry(child, child_name, _join(path, child_name))
            for child_name, child in module.named_children()
        ]
        children = _fold(entries)
        summary = ModuleSummary(
            name=name,
            path=path,
            class_name=type(module).__name__,
            count=1,
            own_parameters=own.parameters,
            total_parameters=own.parameters + sum(child.total_parameters * child.count for child in children),
            own_buffers=own.buffers,
            total_buffers=own.buffers + sum(child.total_buffers * child.count for child in children),
            own_bytes=own.bytes_per_device.total(),
            total_bytes=own.bytes_per_device.total()
            + sum(child.total_bytes * child.count for child in children),
            dtypes=tuple(sorted(own.dtypes.union(*(child.dtypes for child in children)))),
            bytes_per_device=_added(own.bytes_per_device, *(child.bytes_per_device for child in children)),
            tied_to=tuple(own.tied_to),
            children=children,
        )
        below = tuple((entry.summary.name, entry.structure) for entry in entries)
        structure = (type(module), tuple(own.structure), below)
        return _Entry(summary, self._structures.setdefault(structure, len(self._structures)))

    def _own(self, module: nn.Module, path: str) -> _Own:
        own = _Own()
        for tensor_name, tensor in _registered(module):
            full_name = _join(path, tensor_name)
            identity = id(tensor) if is_lazy(tensor) else tensor_identity(tensor)
            first_name = self._first_names.setdefault(identity, full_name)
            own.add(tensor_name, tensor, tied_to=None if first_name == full_name else first_name)
        return own


@dataclass(frozen=True, slots=True)
class _Entry:
    """A module's summary, and a number that is the same for all modules with the same structure."""

    summary: ModuleSummary
    structure: int


class _Own:
    """Sums over the tensors registered on one module."""

    def __init__(self) -> None:
        self.parameters = self.buffers = 0
        self.dtypes: set[str] = set()
        self.bytes_per_device: Counter[str] = Counter()
        self.tied_to: list[str] = []
        self.structure: list[Hashable] = []

    def add(self, name: str, tensor: torch.Tensor, tied_to: str | None) -> None:
        for path, inner in inner_tensors(
            tensor
        ):  # A tensor subclass: its inner tensors count, not the tensor that it represents.
            self._add_plain(".".join((name, *path)), inner, isinstance(tensor, nn.Parameter), tied_to)
        if tied_to is not None:
            self.tied_to.append(tied_to)

    def _add_plain(self, name: str, tensor: torch.Tensor, is_parameter: bool, tied_to: str | None) -> None:
        shape = () if is_lazy(tensor) else tuple(tensor.shape)
        elements = 0 if is_lazy(tensor) else tensor.numel()
        self.structure.append((name, is_parameter, shape, tensor.dtype, tied_to))
        self.dtypes.add(plain_name(tensor.dtype))
        if tied_to is not None:
            return
        self.bytes_per_device[str(tensor.device)] += elements * tensor.itemsize
        if is_parameter:
            self.parameters += elements
        else:
            self.buffers += elements


def _registered(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _fold(entries: Iterable[_Entry]) -> tuple[ModuleSummary, ...]:
    runs: list[list[_Entry]] = []
    for entry in entries:
        if runs and _continues(runs[-1][-1], entry):
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return tuple(_as_one([entry.summary for entry in run]) for run in runs)


def _continues(before: _Entry, entry: _Entry) -> bool:
    """Return whether a module list's item is identical to the item before it, with consecutive indices."""
    names = (before.summary.name, entry.summary.name)
    is_next = all(map(str.isdecimal, names)) and int(names[0]) + 1 == int(names[1])
    return is_next and before.structure == entry.structure


def _as_one(run: list[ModuleSummary]) -> ModuleSummary:
    if len(run) == 1:
        return run[0]
    return replace(
        run[0],
        name=f"{run[0].name}-{run[-1].name}",
        count=len(run),
        bytes_per_device=_added(*(module.bytes_per_device for module in run)),
    )


def _added(*parts: Mapping[str, int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
