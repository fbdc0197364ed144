"""Run a whole model once on fake tensors, and record the calls of its parts and the use of their results.

transformers' `_capture_forward` cannot be used because it copies tensors, and this module compares tensors of
calls by identity. See docs/notes/components.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fakexport._torch.emulation.fake_tensors import FakeTensor
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.pytree import has_tensor, tree_flatten, tree_leaves, tree_unflatten
from fakexport.models.sources.components.component_places import Place
from fakexport.models.sources.patched_forward import patched_forward

ALONE = "features"


@dataclass
class Call:
    """A recorded call of a part during a run of the whole model.

    Args:
        place: The method that was called.
        names: Name of each positional argument.
        args, kwargs: The arguments that the model passed.
        result: The result of the part.
        inside: Parts that were running when the model made this call.
        again: Whether a later call of the same method differs from this call in its constants, or in the
            shapes, dtypes or devices of its inputs.
        times: Number of calls of the same method.
        read: Ids of the tensors of the result that the model used later.
        apart: Ids of the tensors in `read` that the model used individually. A tensor is left out if the
            model only concatenated the whole list or tuple that contains it, along the first dimension.
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
        """Return the arguments that contain tensors, by name."""
        named = {**dict(zip(self.names, self.args, strict=True)), **self.kwargs}
        return {name: value for name, value in named.items() if has_tensor(value)}

    def constants(self) -> dict[str, Any]:
        """Return the arguments that contain no tensors and are not None, by name."""
        named = {**dict(zip(self.names, self.args, strict=True)), **self.kwargs}
        return {n: value for n, value in named.items() if value is not None and not has_tensor(value)}

    def arguments(self, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the args and kwargs of this call, with the given tensors instead of the recorded tensors."""
        args = tuple(given.get(name, value) for name, value in zip(self.names, self.args, strict=True))
        return args, {name: given.get(name, value) for name, value in self.kwargs.items()}


@dataclass(frozen=True)
class ReadField:
    """A field in the result of a part. The model uses some or all of the field's tensors.

    Args:
        indices: Indices of the used leaves of the field.
        is_tensor: Whether the field is a tensor.
        is_joined: Whether the model only concatenates the field's tensors along the first dimension. The
            program then returns the concatenated tensor, and the number of tensors is dynamic.
    """

    indices: tuple[int, ...]
    is_tensor: bool
    is_joined: bool


def read_fields(call: Call) -> dict[str, ReadField]:
    """Return the used fields of a call's result; `features` if the result is not a mapping."""
    found = {}
    for name, value in _fields(call.result).items():
        leaves = tree_leaves(value)
        indices = tuple(index for index, leaf in enumerate(leaves) if id(leaf) in call.read)
        if not indices:
            continue
        is_plain = type(value) in (list, tuple) and all(isinstance(item, torch.Tensor) for item in value)
        is_whole = is_plain and len(indices) == len(leaves)
        is_joined = is_whole and not any(id(leaf) in call.apart for leaf in leaves)
        found[name] = ReadField(indices, isinstance(value, torch.Tensor), is_joined)
    return found


def taken(result: Any, fields: Mapping[str, ReadField]) -> dict[str, Any]:
    """Return the tensors that the model uses from each field, as one tensor or as a tuple."""
    values = _fields(result)
    return {name: _taken(values[name], field) for name, field in fields.items()}


def put_back(result: Any, fields: Mapping[str, ReadField], given: Mapping[str, Any]) -> Any:
    """Return a recorded result with its used tensors replaced by `given`, and unused ones by `Unread`."""
    values = {
        name: _put_back(value, fields.get(name), given.get(name)) for name, value in _fields(result).items()
    }
    if not isinstance(result, Mapping):
        return values[ALONE]
    return values if type(result) is dict else type(result)(**values)


def _fields(result: Any) -> dict[str, Any]:
    return dict(result.items()) if isinstance(result, Mapping) else {ALONE: result}


def _taken(value: Any, field: ReadField) -> Any:
    if field.is_tensor:
        return value
    leaves = tree_leaves(value)
    kept = tuple(leaves[index] for index in field.indices)
    return torch.cat(kept, dim=0) if field.is_joined else kept


def _put_back(value: Any, field: ReadField | None, given: Any) -> Any:
    if field is not None and field.is_tensor:
        return given
    if field is not None and field.is_joined:
        return type(value)([given])
    leaves, spec = tree_flatten(value)
    tensors = dict(zip(field.indices, given, strict=True)) if field is not None else {}
    filled = [
        tensors.get(index, Unread() if isinstance(leaf, torch.Tensor) else leaf)
        for index, leaf in enumerate(leaves)
    ]
    return tree_unflatten(filled, spec)


@dataclass
class Run:
    """Record of one forward pass of the whole model.

    Args:
        calls: Maps each place to its first call.
        uses: Maps the `id` of each used tensor to sets of places. There is one set for each use: the places
            that were running at that time.
    """

    calls: dict[Place, Call]
    uses: dict[int, set[frozenset[Place]]]

    def touched(self, inputs: Mapping[str, Any], outside: Sequence[Place]) -> dict[str, Any]:
        """Return the inputs with a tensor that is used while none of the methods in `outside` is running."""
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
    """Call the model, and return a record of how it used its inputs and the results of its parts."""
    watch = _Watch()
    with torch.no_grad(), _replaced(module, dict.fromkeys(places, watch.recording)), ListedTensors(), watch:
        returned = module(**kwargs)
    leaves = {id(leaf) for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)}
    for call in watch.calls.values():
        # The result of the last part of a model is the result of the model.
        if not call.read:
            call.read = {id(leaf) for leaf in tree_leaves(call.result)} & leaves
            call.apart = set(call.read)
    return Run(watch.calls, watch.uses)


@contextmanager
def stand_ins(module: nn.Module, results: Mapping[Place, Callable[[], Any]]) -> Iterator[None]:
    """Enter a context in which each method in `results` ignores its arguments and returns its result."""

    def standing(result: Callable[[], Any]) -> Callable[[Place, Any], Any]:
        return lambda place, original: lambda *args, **kwargs: result()

    with _replaced(module, {place: standing(result) for place, result in results.items()}):
        yield


class Unread:
    """A stand-in for a tensor that the model did not use. Using it as a tensor raises an error."""


class _Watch(TorchFunctionMode):
    """Records the tensors that are passed to torch functions, and the parts that are running at that time."""

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
        """Record a use of a tensor. If it is concatenated, `whole` has the ids of the whole list."""
        self.uses.setdefault(id(tensor), set()).add(frozenset(self._running))
        self._alive.append(tensor)
        for call in self._results.get(id(tensor), ()):
            call.read.add(id(tensor))
            if whole is None or not any(whole == group for group in _groups(call.result)):
                call.apart.add(id(tensor))

    def recording(self, place: Place, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that calls `original` and records the calls."""
        signature = inspect.signature(original)

        def method(*args: Any, **kwargs: Any) -> Any:
            names = [*signature.bind_partial(*args).arguments]
            names += [f"{names[-1]}_{index}" for index in range(len(names), len(args))]  # from `*args`
            call = Call(place, tuple(names), args, dict(kwargs), inside=tuple(self._running))
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
                call.result = tree_unflatten(*tree_flatten(result))  # Copied: the caller may change it.
                self._alive.append(result)
                for leaf in tree_leaves(result):
                    if isinstance(leaf, torch.Tensor):
                        self._results.setdefault(id(leaf), []).append(call)
            return result

        return method


def _groups(result: Any) -> Iterator[tuple[int, ...]]:
    """Yield the ids of the tensors in each list or tuple of a result."""
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
    """Enter a context in which methods of submodules are replaced on the instances."""
    with ExitStack() as stack:
        for place, make in methods.items():
            owner = module.get_submodule(place.path)
            replacement = make(place, getattr(owner, place.method))
            stack.enter_context(patched_forward(owner, replacement, place.method))
        yield


def _shape_of(call: Call) -> list[Any]:
    """Return the properties of a call on which an exported program would be specialized."""
    leaves, spec = tree_flatten((call.args, dict(call.kwargs)))
    return [
        (tuple(leaf.shape), leaf.dtype, str(leaf.device)) if isinstance(leaf, torch.Tensor) else repr(leaf)
        for leaf in leaves
    ] + [str(spec)]


class ListedTensors(TorchFunctionMode):
    """Lets `torch.tensor` and `torch.as_tensor` read lists of fake tensors whose values are recorded.

    torch itself bypasses every mode when it reads list items, and outside of a mode, fake tensors have no
    data (`torch/csrc/utils/tensor_new.cpp:internal_new_from_data`).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor) and args:
            args = (_readable(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def _readable(data: Any) -> Any:
    """Replace fake tensors in a list with real ones. Their dtypes determine the dtype of the new tensor."""
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
    """Enter a context that, on exit, restores the buffers and tensor attributes of all submodules.

    For example, Mimi computes a codebook from its weights and caches it for the next call. Without this
    context, a program would contain the codebook of untrained weights. Other attributes stay, because
    transformers replaces methods during the first run and sets flags to record that it did.
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
