"""Run a whole model once on fake tensors, and record the calls of its parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fakexport._torch.fake_tensors import FakeTensor
from fakexport._torch.pytree import tree_flatten, tree_leaves, tree_unflatten
from fakexport._torch.real_execution import real_execution
from fakexport.sources.component_places import Place


@dataclass
class Call:
    """A call of a part while the whole model ran.

    Args:
        place: The part.
        names: Name of each positional argument.
        args, kwargs: As the model passed them.
        result: What the part returned.
        inside: Parts that were running.
        again: Whether another call has inputs of other shapes, dtypes or devices, or other constants.
        times: Number of calls.
        read: Tensors of the result that the model used afterwards, by identity.
        apart: Those that are not just concatenated as a whole along the first dimension.
    """

    place: Place
    names: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any = None
    inside: tuple[Place, ...] = ()
    again: bool = False
    times: int = 1
    read: set[int] = field(default_factory=set)
    apart: set[int] = field(default_factory=set)

    def inputs(self) -> dict[str, Any]:
        """Return the arguments that have tensors, by name."""
        named = {**dict(zip(self.names, self.args, strict=True)), **self.kwargs}
        return {name: value for name, value in named.items() if _has_tensor(value)}

    def constants(self) -> dict[str, Any]:
        """Return the other arguments, by name, that are not None."""
        named = {**dict(zip(self.names, self.args, strict=True)), **self.kwargs}
        return {n: value for n, value in named.items() if value is not None and not _has_tensor(value)}

    def arguments(self, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs of the same call on other tensors."""
        args = tuple(given.get(name, value) for name, value in zip(self.names, self.args, strict=True))
        return args, {name: given.get(name, value) for name, value in self.kwargs.items()}


@dataclass
class Run:
    """What happened in one forward pass of the whole model.

    Args:
        calls: The first call of each place that was called.
        touched: Inputs of the model that it used outside of each place, by name.
    """

    calls: dict[Place, Call]
    uses: dict[int, set[frozenset[Place]]]

    def touched(self, inputs: Mapping[str, Any], outside: Sequence[Place]) -> dict[str, Any]:
        """Return the inputs of which the model uses a tensor while none of these places runs."""
        others = set(outside)
        return {
            name: value
            for name, value in inputs.items()
            if any(
                not running & others
                for tensor in tree_leaves(value)
                if isinstance(tensor, torch.Tensor)
                for running in self.uses.get(id(tensor), ())
            )
        }


def recorded_run(module: nn.Module, kwargs: Mapping[str, Any], places: Sequence[Place]) -> Run:
    """Call the model, and return what it did with its inputs and with the results of its parts.

    Raises:
        Exception: What the model raises.
    """
    watch = _Watch()
    with torch.no_grad(), _replaced(module, dict.fromkeys(places, watch.recording)), ListedTensors(), watch:
        returned = module(**kwargs)
    leaves = {id(leaf) for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)}
    for call in watch.calls.values():
        # The result of the last part of a model is what the model returns.
        if not call.read:
            call.read = {id(leaf) for leaf in tree_leaves(call.result)} & leaves
            call.apart = set(call.read)
    return Run(watch.calls, watch.uses)


@contextmanager
def stand_ins(module: nn.Module, results: Mapping[Place, Callable[[], Any]]) -> Iterator[None]:
    """Enter a context in which each place returns what its function returns, whatever it is called with."""

    def standing(result: Callable[[], Any]) -> Callable[[Place, Any], Any]:
        return lambda place, original: lambda *args, **kwargs: result()

    with _replaced(module, {place: standing(result) for place, result in results.items()}):
        yield


class Unread:
    """Stands for a tensor that the model was not seen to use. Whatever needs a tensor raises."""


class _Watch(TorchFunctionMode):
    """Notes which tensors functions of torch are called with, and while which parts run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Place, Call] = {}
        self.uses: dict[int, set[frozenset[Place]]] = {}
        self._results: dict[int, list[Call]] = {}
        self._running: list[Place] = []
        self._alive: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        whole = _concatenated(func, args, kwargs)
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf, whole)
        return func(*args, **kwargs)

    def note(self, tensor: torch.Tensor, whole: tuple[int, ...] | None) -> None:
        """Note a use of a tensor; `whole` are the tensors that are concatenated with it."""
        self.uses.setdefault(id(tensor), set()).add(frozenset(self._running))
        self._alive.append(tensor)
        for call in self._results.get(id(tensor), ()):
            call.read.add(id(tensor))
            if whole is None or not any(whole == group for group in _groups(call.result)):
                call.apart.add(id(tensor))

    def recording(self, place: Place, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that records its calls."""
        names = _positional(original)

        def method(*args: Any, **kwargs: Any) -> Any:
            call = Call(place, tuple(names(len(args))), args, dict(kwargs), inside=tuple(self._running))
            first = self.calls.get(place)
            if first is not None:
                first.times += 1
                first.again |= _shape_of(first) != _shape_of(call)
            else:
                self.calls[place] = call
            self._running.append(place)
            try:
                result = original(*args, **kwargs)
            finally:
                self._running.pop()
            if first is None:
                call.result = tree_unflatten(
                    *tree_flatten(result)
                )  # The caller may put another tensor in it.
                self._alive.append(result)
                for leaf in tree_leaves(result):
                    if isinstance(leaf, torch.Tensor):
                        self._results.setdefault(id(leaf), []).append(call)
            return result

        return method


def _groups(result: Any) -> Iterator[tuple[int, ...]]:
    """Yield the identities of each tuple of tensors in a result."""
    values = result.values() if isinstance(result, Mapping) else [result]
    for value in values:
        if isinstance(value, (list, tuple)):
            yield tuple(map(id, value))


def _concatenated(func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    if func not in (torch.cat, torch.concat) or not args:
        return None
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return tuple(map(id, args[0])) if dim == 0 else None


@contextmanager
def _replaced(module: nn.Module, methods: Mapping[Place, Callable[[Place, Any], Any]]) -> Iterator[None]:
    """Replace methods of modules inside a model, on the instances."""
    undo: list[Callable[[], None]] = []
    try:
        for place, make in methods.items():
            owner = module.get_submodule(place.path)
            undo.append(_restoring(owner, place.method))
            object.__setattr__(owner, place.method, make(place, getattr(owner, place.method)))
        yield
    finally:
        for restore in reversed(undo):
            restore()


def _restoring(owner: nn.Module, method: str) -> Callable[[], None]:
    if method in vars(owner):
        own = vars(owner)[method]
        return lambda: object.__setattr__(owner, method, own)
    return lambda: object.__delattr__(owner, method)


def _positional(original: Callable[..., Any]) -> Callable[[int], list[str]]:
    parameters = list(inspect.signature(original).parameters.values())
    starred = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def names(count: int) -> list[str]:
        more = [f"{starred.name if starred else 'args'}_{index}" for index in range(count - len(plain))]
        return [*plain[:count], *more]

    return names


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))


def _shape_of(call: Call) -> list[Any]:
    """Return what a program of the call is specialized on."""
    leaves, spec = tree_flatten((call.args, dict(call.kwargs)))
    return [
        (tuple(leaf.shape), leaf.dtype, str(leaf.device)) if isinstance(leaf, torch.Tensor) else repr(leaf)
        for leaf in leaves
    ] + [str(spec)]


class ListedTensors(TorchFunctionMode):
    """Reads fake tensors in a list for `torch.tensor` and `torch.as_tensor`, in a mode that is recorded.

    torch reads them past every mode, and there they have no data
    (`torch/csrc/utils/tensor_new.cpp:internal_new_from_data`).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor) and args:
            args = (_readable(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def _readable(data: Any) -> Any:
    """Return the data with real tensors in the place of fake ones: their dtypes decide that of the result."""
    if isinstance(data, (list, tuple)):
        return [_readable_item(item) for item in data]
    return data


def _readable_item(item: Any) -> Any:
    if not isinstance(item, FakeTensor) or item.dim():
        return _readable(item)
    value = item.item()
    with real_execution():
        return torch.tensor(value, dtype=item.dtype, device="cpu")


@contextmanager
def restored_attributes(module: nn.Module) -> Iterator[None]:
    """Restore buffers and attributes of a module and its parts after the block, where these became tensors.

    Mimi keeps the codebook that it computes of its weights, for the next call: a program would have the
    codebook of the untrained weights.

    Other attributes stay as they are: transformers replaces methods in the first run, and notes that it did.
    """
    before = [(part, dict(vars(part)), dict(part._buffers)) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes, buffers in before:
            own = vars(part)
            for name in [name for name, value in own.items() if isinstance(value, torch.Tensor)]:
                if name not in attributes:
                    del own[name]
                elif own[name] is not attributes[name]:
                    own[name] = attributes[name]
            part._buffers.clear()
            part._buffers.update(buffers)
