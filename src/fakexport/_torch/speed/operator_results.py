"""Reproduce the results that the dispatcher would return for an operator with equivalent arguments.

If an operator reaches fake mode undecomposed, it is called again and its fake kernel returns the recorded
result, so autograd, views and version counters behave as in the real call. A composite operator is decomposed
earlier, so a substitute attaches its result to the autograd graph: a view becomes an alias of its base, and a
new tensor becomes a clone of one that requires a gradient. Only code that inspects a gradient function can
see the difference, and the inspection raises `TraceNeeded`.

Seen on torch 2.13. Source: `torch/csrc/autograd/VariableTypeUtils.h:as_view`,
`torch/_subclasses/fake_tensor.py:FakeTensorMode.dispatch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sympy.core.function import Application
from torch.fx.passes.shape_prop import TensorMetadata
from torch.utils._python_dispatch import TorchDispatchMode

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode, own_attributes
from fakexport._torch.kernels.kernel_mode import alias_of, kernel_mode
from fakexport._torch.tracing.dispatch_observer import observed

from .new_fakes import NewFakes, reserved
from .operator_call import OperatorCall, compare_later
from .symbolic_arithmetic import copy_of

_C: Any = torch._C
_DEVICE = torch.ops.prim.device.default


class NotRepeatable(Exception):
    """The results of a call cannot be reproduced from its arguments' metadata; the message says why."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A symbolic number of a result: the call's number with index `at`, or a new number if `at` is None."""

    at: int | None
    number: Any


@dataclass(frozen=True, slots=True)
class _Result:
    """One tensor returned by a call.

    Args:
        argument: Index of the argument that is returned itself, or None.
        sharing: Index of the argument whose storage the tensor shares, or None.
        is_view: Whether it is an autograd view of that argument.
        creation: Creation metadata, which restricts what autograd allows on a view.
        layout: Shape, strides, offset and storage size, as numbers and `_Number`.
        device: Its device, or an index in the call's `devices`.
        data: A meta tensor with these sizes, unless they are symbolic.
        is_compared: Whether its contiguity is already computed, so that a query leaves nothing in the trace.
    """

    argument: int | None
    sharing: int | None
    is_view: bool
    creation: Any
    layout: tuple[Any, Any, Any, Any]
    dtype: torch.dtype
    device: torch.device | int
    requires_grad: bool
    data: torch.Tensor | None
    is_compared: bool


class RepeatedResults:
    """The results of one call, described relative to its arguments.

    Attributes:
        is_direct: Whether the operator itself reaches fake mode.
        is_one: Whether it returns a single new tensor.
        tensor_meta: The metadata of that tensor.
        due: Indices of the new tensors whose contiguity stock torch computes.
    """

    def __init__(
        self,
        results: tuple[_Result, ...],
        container: type | None,
        is_direct: bool,
        meta: Any,
        writes: Sequence[int],
        compared: Sequence[int],
        fakes: NewFakes,
    ) -> None:
        self.results = results
        self.container = container
        self.is_direct = is_direct
        self.tensor_meta: TensorMetadata = meta
        self.compared = compared
        self.writes = [(at, count) for at, count in enumerate(writes) if count]
        self.is_one = container is None and results[0].argument is None
        self.due = [at for at, one in enumerate(results) if one.is_compared and one.argument is None]
        self._fakes = fakes

    @classmethod
    def of(
        cls,
        call: OperatorCall,
        result: Any,
        seen: Sequence[tuple[Any, Any]],
        tensor_meta: TensorMetadata | None,
        writes: Sequence[int],
        compared: Sequence[int],
        fakes: NewFakes,
    ) -> RepeatedResults:
        """Describe the results of a call that was just computed.

        Args:
            call: The call.
            result: The returned value.
            seen: The operators that reached fake mode, and their results.
            tensor_meta: The metadata that the call's node got.
            writes: For each tensor of the call, by how much its version counter increased.
            compared: Indices of the call's tensors whose contiguity the call computed.
            fakes: Creates fake tensors.
        Raises:
            NotRepeatable: The results do not follow from the key of the call.
        """
        container = type(result) if isinstance(result, (tuple, list)) else None
        made = [result] if container is None else list(result)
        is_direct = len(seen) == 1 and seen[0][0] is call.func and _same(seen[0][1], made)
        numbers = {id(number.node): at for at, number in reversed(list(enumerate(call.numbers)))}
        if any(writes) and not is_direct:
            raise NotRepeatable("a composite operator writes to its arguments")
        found = tuple(_result(tensor, call, is_direct, numbers) for tensor in made)
        memories = [
            tensor.untyped_storage()._cdata
            for tensor, one in zip(made, found, strict=True)
            if one.argument is None and one.sharing is None
        ]
        if len(set(memories)) < len(memories):
            raise NotRepeatable("its results share memory")
        return cls(found, container, is_direct, tensor_meta, writes, compared, fakes)

    def new_numbers(self) -> dict[int, Any]:
        """Return the symbolic numbers that no argument has, by the id of their nodes."""
        return {id(each.number.node): each.number for each in self._numbers() if each.at is None}

    def has_one_form(self) -> bool:
        """Return whether each size is a sum of products, which sympy always writes in the same form.

        A term with a division has several forms, and earlier simplifications determine which one a kernel
        produces.
        """
        return not any(each.number.node.expr.has(Application) for each in self._numbers())

    def _numbers(self) -> Iterator[_Number]:
        for one in self.results:
            for part in one.layout:
                yield from (n for n in (part if isinstance(part, tuple) else (part,)) if type(n) is _Number)

    def made(self, call: OperatorCall) -> tuple[list[FakeTensor], FakeTensor | None]:
        """Return the results of the fake kernel: tensors without autograd metadata.

        If the result is one tensor, also return a second tensor with the same storage, which becomes the
        value of the node.
        """
        fresh: dict[int, Any] = {}
        with kernel_mode(call.fake_mode):
            if not self.is_one:
                return [self._made(one, call, fresh) for one in self.results], None
            one = self.results[0]
            data = self._data(one, call, fresh)
            memory, device = self._memory(one, data, call), _device(one, call)
            made = self._fakes.new(call.fake_mode, alias_of(data), device, memory)
            return [made], self._fakes.new(call.fake_mode, alias_of(data), device, memory)

    def _made(self, one: _Result, call: OperatorCall, fresh: dict[int, Any]) -> FakeTensor:
        if one.argument is not None:
            return call.tensors[one.argument]
        data = self._data(one, call, fresh)
        memory = self._memory(one, data, call)
        return self._fakes.new(call.fake_mode, alias_of(data), _device(one, call), memory)

    def _memory(self, one: _Result, data: torch.Tensor, call: OperatorCall) -> torch.Tensor | None:
        """Return a tensor with the storage of a result."""
        if one.sharing is not None:
            return call.tensors[one.sharing]
        # Each call has its own sizes and its own storage.
        return data if one.data is None else reserved(data.untyped_storage().nbytes())

    def _data(self, one: _Result, call: OperatorCall, fresh: dict[int, Any]) -> torch.Tensor:
        """Return a tensor with the sizes of a result."""
        if one.data is not None:
            return one.data

        def number(value: Any) -> Any:
            if type(value) is not _Number:
                return value
            if value.at is not None:
                return call.numbers[value.at]
            node = value.number.node
            if id(node) not in fresh:
                fresh[id(node)] = torch.SymInt(copy_of(node))
            return fresh[id(node)]

        shape, strides, offset, bytes_ = one.layout
        sizes = tuple(map(number, shape)), tuple(map(number, strides)), number(offset)
        return reserved(number(bytes_), *sizes, one.dtype)


class AnsweredOperator(TorchDispatchMode):
    """A dispatch mode above the fake mode that returns the known result of the running operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_stood_in = False
        self._expected: Any = None
        self._answer: Any = None
        self._given: Sequence[Any] = ()
        self._sources: dict[Any, torch.Tensor] = {}

    def run(self, results: RepeatedResults, call: OperatorCall) -> tuple[Any, FakeTensor | None]:
        """Return the result of the call as the module's docstring describes, and the value of its node."""
        for at in results.compared:
            compare_later(call.tensors[at])
        found, value = self._found(results, call)
        for at in results.due:
            compare_later(found if results.container is None else found[at])
        return found, value

    def _found(self, results: RepeatedResults, call: OperatorCall) -> tuple[Any, FakeTensor | None]:
        made, value = results.made(call)
        if results.is_direct:
            answer = made[0] if results.container is None else results.container(made)
            # The fake kernel of a mutating operator increments the version counter again.
            versions = [(call.tensors[at], call.tensors[at]._version + count) for at, count in results.writes]
            found = self._run(call.func, answer, call.tensors, *call.args, **call.kwargs)
            for tensor, version in versions:
                _C._autograd._unsafe_set_version_counter((tensor,), (version,))
            return found, value
        given = [self._stand_in(one, tensor, call) for one, tensor in zip(results.results, made, strict=True)]
        return given[0] if results.container is None else results.container(given), value

    def _run(self, func: Any, answer: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        self._expected, self._answer, self._given = func, answer, tensors
        _C._push_on_torch_dispatch_stack(self)
        try:
            return func(*args, **kwargs)
        finally:
            _C._pop_torch_dispatch_stack(None)
            self._expected = self._answer = None
            self._given = ()

    def _stand_in(self, one: _Result, made: FakeTensor, call: OperatorCall) -> Any:
        if one.argument is not None:
            return made
        if one.is_view:
            assert one.sharing is not None
            self.has_stood_in = True
            base = call.tensors[one.sharing]
            found = self._run(torch.ops.aten.alias.default, made, [base], base)
            _C._autograd._set_creation_meta(found, one.creation)
            return found
        if not one.requires_grad:
            return made
        self.has_stood_in = True
        source = self._source(one.dtype, _device(one, call), call.fake_mode)
        return self._run(torch.ops.aten.clone.default, made, [source], source)

    def _source(self, dtype: torch.dtype, device: torch.device, mode: FakeTensorMode) -> torch.Tensor:
        key = (mode, dtype, device)
        found = self._sources.get(key)
        if found is None:
            with kernel_mode(mode):
                found = FakeTensor(mode, torch.empty((1,), dtype=dtype, device="meta"), device)
            found = self._sources[key] = found.requires_grad_()
        return found

    @contextmanager
    def observed(self, mode: FakeTensorMode) -> Iterator[list[tuple[Any, Any]]]:
        """Enter a context that yields the operators that reach fake mode, and their results.

        Operators that a fake kernel calls to compute such a result are excluded.
        """
        seen: list[tuple[Any, Any]] = []
        depth = 0

        def observer(run: Any, operator: Any, args: Any, kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                result = run()
            finally:
                depth -= 1
            if not depth:
                seen.append((operator, result))
            return result

        with observed(mode, observer):
            yield seen


def _answered(mode: AnsweredOperator, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    # If the base of a view was mutated, autograd first regenerates the view from its base.
    is_again = bool(args) and type(args[0]) is FakeTensor and not _is_in(args[0], mode._given)
    if func is mode._expected and not is_again:
        return mode._answer
    if func is _DEVICE:  # Autograd calls it on each result that requires a gradient.
        return args[0].fake_device
    return func(*args, **(kwargs or {}))  # Fake mode computes it.


# Set outside the class body, where torch would wrap it for TorchDynamo, which doubles the time.
AnsweredOperator.__torch_dispatch__ = _answered  # type: ignore[assignment,method-assign]


def _is_in(tensor: Any, tensors: Sequence[Any]) -> bool:
    return any(tensor is each for each in tensors)


def _same(answer: Any, made: Sequence[Any]) -> bool:
    answers = list(answer) if isinstance(answer, (tuple, list)) else [answer]
    return len(answers) == len(made) and all(a is b for a, b in zip(answers, made, strict=True))


def _result(tensor: Any, call: OperatorCall, is_direct: bool, numbers: dict[int, int]) -> _Result:
    at = next((at for at, argument in enumerate(call.tensors) if argument is tensor), None)
    if at is None:
        _check_plain(tensor, call)
    memory = tensor.untyped_storage()
    sharing = next(
        (i for i, a in enumerate(call.tensors) if a.untyped_storage()._cdata == memory._cdata), None
    )
    is_view = at is None and tensor._is_view()
    if at is None and not is_direct:
        sharing = _base(tensor, call, sharing)

    def number(value: Any) -> Any:
        if type(value) is int:
            return value
        return _Number(numbers.get(id(value.node)), value)

    layout = (
        tuple(map(number, tensor.shape)),
        tuple(map(number, tensor.stride())),
        number(tensor.storage_offset()),
        number(memory.nbytes()) if sharing is None else 0,
    )
    shape, strides, offset, bytes_ = layout
    is_static = all(type(each) is int for each in (*shape, *strides, offset, bytes_))
    data = None
    if is_static and at is None:
        with kernel_mode(call.fake_mode):
            data = reserved(bytes_, shape, strides, offset, tensor.dtype)
    creation = _C._autograd._get_creation_meta(tensor) if is_view else None
    is_compared = not is_static and call.is_compared(tensor)
    device = call.place_of(tensor.fake_device)
    if device is None:
        raise NotRepeatable("it returns a tensor on a device that no argument is on")
    facts = (tensor.dtype, device, tensor.requires_grad)
    return _Result(at, sharing, is_view, creation, layout, *facts, data, is_compared)


def _device(one: _Result, call: OperatorCall) -> torch.device:
    return call.devices[one.device] if isinstance(one.device, int) else one.device


def _check_plain(tensor: Any, call: OperatorCall) -> None:
    if (
        type(tensor) is not FakeTensor
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.constant is not None
        or tensor.real_tensor is not None
        or tensor.fake_mode is not call.fake_mode
        or own_attributes(tensor)
    ):
        raise NotRepeatable("it returns something other than a plain fake tensor")


def _base(tensor: Any, call: OperatorCall, sharing: int | None) -> int | None:
    """Return the argument that a composite operator returned a view of, or None for a new tensor."""
    if not tensor._is_view():
        if sharing is not None or tensor._version or (tensor.is_leaf and tensor.requires_grad):
            raise NotRepeatable("it returns a tensor whose place in autograd is unusual")
        return None
    for at, argument in enumerate(call.tensors):
        if tensor._base is (argument._base if argument._is_view() else argument):
            if sharing is None or tensor.dtype != argument.dtype:
                break
            return at
    raise NotRepeatable("it returns a view of a tensor that is not an argument")
