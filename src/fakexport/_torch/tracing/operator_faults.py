"""Continue a trace after an operator that cannot be traced, with a plausible result or moved tensors.

Every operator of a trace reaches `FakeTensorMode.dispatch`, including those inside a decomposition. In the
context `traced_past_faults`, five kinds of errors are passed to a handler, which may let the trace continue.
To only find the errors of a trace, `ended_after_trace` stops the export before it processes the graph, which
takes as long as the trace. Seen on torch 2.11 to 2.13.

Source: `torch/_subclasses/fake_tensor.py:FakeTensorMode.dispatch, _dispatch_impl, _find_common_device`;
`torch/_library/custom_ops.py:CustomOpDef`; `torch/export/_trace.py:_non_strict_export`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import _trace
from torch.utils._pytree import tree_iter, tree_map_only

from fakexport._torch.emulation.absent_devices import AbsentDevice
from fakexport._torch.patching import Patches, in_force

FaultKind = Literal["kernel", "shape", "value", "devices", "absent"]

_BY_CLASS: dict[type[BaseException], FaultKind] = {
    fake_tensor.UnsupportedOperatorException: "kernel",
    fake_tensor.UnsupportedFakeTensorException: "kernel",
    fake_tensor.DynamicOutputShapeException: "shape",
    fake_tensor.DataDependentOutputException: "value",
    AbsentDevice: "absent",
}
_BY_TEXT: tuple[tuple[re.Pattern[str], FaultKind], ...] = (
    (re.compile(r"There was no fake impl registered|with Meta tensors|from the 'Meta' backend"), "kernel"),
    (re.compile(r"found at least two devices|found two different devices"), "devices"),
)

_NUMBERS = {"int": 1, "SymInt": 1, "bool": False, "float": 1.0, "number": 1.0, "str": ""}


@dataclass(frozen=True)
class OperatorFault:
    """An operator that cannot be traced.

    Args:
        kind: Why the operator cannot be traced. `kernel`: it has no fake kernel. `shape`, `value`: the shape
            or value of its result is data-dependent. `devices`: its tensors are on different devices.
            `absent`: it names a device that does not exist.
        remedy: What the operator returns or gets so that the trace continues, as text: a result such as
            `a tensor like its first argument`, or arguments on a different device.
        args, kwargs: The arguments of the call, such as fake tensors and numbers.
    """

    kind: FaultKind
    operator: str  # For example `acme::scale`.
    remedy: str
    error: RuntimeError  # The error that torch raised.
    overload: Any  # The operator overload.
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def traced_past_faults(
    may_go_on: Callable[[OperatorFault], bool], *, before_each: Callable[[], None]
) -> Patches:
    """Return a context in which a trace continues after an untraceable operator if `may_go_on` returns true.

    Args:
        before_each: Called before each operator.
    """
    stock = in_force(FakeTensorMode, "dispatch")

    def dispatch(
        mode: FakeTensorMode, func: Any, classes: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        before_each()
        try:
            return stock(mode, func, classes, args, kwargs)
        except RuntimeError as error:
            kind = _kind(error)
            if kind is None or not hasattr(func, "_schema"):
                raise
            kwargs = kwargs or {}
            device = _common_device(func, args, kwargs)
            remedy = _moved(func, args, kwargs, device) if kind == "devices" else _result_text(func)
            if isinstance(error, AbsentDevice):
                device = error.instead
                remedy = f"a result on {device} instead of {error.device}"
            fault = OperatorFault(kind, func._schema.name, remedy, error, func, tuple(args), kwargs)
            if not may_go_on(fault):
                raise
        if kind == "absent":
            named = tree_map_only(torch.device, lambda _: device, (args, kwargs))
            return dispatch(mode, func, classes, *named)
        if kind != "devices":
            return _plausible_result(mode, func, args, kwargs)
        with mode:
            args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), (args, kwargs))
        return stock(mode, func, classes, args, kwargs)

    return Patches({(FakeTensorMode, "dispatch"): dispatch})


def _kind(error: RuntimeError) -> FaultKind | None:
    by_class = _BY_CLASS.get(type(error))
    return by_class or next((kind for pattern, kind in _BY_TEXT if pattern.search(str(error))), None)


def _named_tensors(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, FakeTensor]]:
    """Yield each fake tensor in the arguments as a pair: the argument in the schema, and the tensor."""
    given = zip(func._schema.arguments, args, strict=False)
    named = (
        (argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs
    )
    for argument, value in (*given, *named):
        yield from ((argument, leaf) for leaf in tree_iter(value) if isinstance(leaf, FakeTensor))


def _common_device(func: Any, args: Any, kwargs: Mapping[str, Any]) -> torch.device | None:
    """Return the device of the first mutated tensor.

    If no tensor is mutated, return the first accelerator, or the first device if there is no accelerator.
    """
    tensors = list(_named_tensors(func, args, kwargs))
    written = [tensor.device for argument, tensor in tensors if argument.is_write]
    accelerators = [tensor.device for _, tensor in tensors if tensor.device.type != "cpu"]
    return next(iter((*written, *accelerators, *(tensor.device for _, tensor in tensors))), None)


def _moved(func: Any, args: Any, kwargs: Mapping[str, Any], device: torch.device | None) -> str:
    names = [argument.name for argument, t in _named_tensors(func, args, kwargs) if t.device != device]
    return f"{' and '.join(f'`{name}`' for name in dict.fromkeys(names))} on {device}"


_LIKE_FIRST = "a tensor like its first argument"


def _result_text(func: Any) -> str:
    kinds = [str(returned.type) for returned in func._schema.returns]
    texts = (_LIKE_FIRST if "Tensor" in kind else str(_NUMBERS.get(kind)) for kind in kinds)
    return " and ".join(dict.fromkeys(texts)) or "nothing"


def _plausible_result(mode: FakeTensorMode, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return a result with the types that the schema declares. Tensors are like the first tensor argument."""
    tensors = list(_named_tensors(func, args, kwargs))
    with mode:
        results = [_plausible(returned, tensors) for returned in func._schema.returns]
    return results[0] if len(results) == 1 else tuple(results) or None


def _plausible(returned: Any, tensors: list[tuple[Any, FakeTensor]]) -> Any:
    if returned.alias_info is not None:
        for argument, tensor in tensors:
            if (
                argument.alias_info is not None
                and returned.alias_info.before_set == argument.alias_info.before_set
            ):
                return tensor
    like = torch.empty_like(tensors[0][1]) if tensors else torch.empty(())
    kind = str(returned.type)
    if kind.startswith("List["):
        return [like] if "Tensor" in kind else [_NUMBERS.get(kind[5:-1])]
    return like if "Tensor" in kind else _NUMBERS.get(kind)


class TraceFinished(BaseException):
    """The trace is complete. This is not an `Exception`, so that no code in the export catches it."""


def ended_after_trace() -> Patches:
    """Return a context in which a non-strict export raises `TraceFinished` after checking the dimensions."""
    stock = in_force(_trace, "produce_guards_and_solve_constraints")

    def produce_guards_and_solve_constraints(*args: Any, **kwargs: Any) -> None:
        stock(*args, **kwargs)
        raise TraceFinished

    return Patches({(_trace, "produce_guards_and_solve_constraints"): produce_guards_and_solve_constraints})
