"""Find the first value in a run of a program that differs from a run of its eager model."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.pytree import tree_flatten, tree_leaves, tree_map
from fakexport._torch.tracing.program_assembly import check_guards
from fakexport.error import InvalidValue, type_and_line
from fakexport.exporting.capture import plain_forward
from fakexport.exporting.program import calling_of, checked_module, operator_name, output_names, source_span
from fakexport.report import Comparison, ModuleComparison, OutputComparison, Place, TensorError

from .error import tensor_error
from .kernels import Kernel, KernelRecord, recorded
from .pairing import Gap, Pair, paired
from .program_run import program_run


def compare(
    module: nn.Module,
    program: ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare a program's values with eager mode, kernel by kernel, and find the first difference.

    Both run without gradients and with the same seed. Their results are compared with each other and, if the
    model supports double precision, with a run in double precision. The program's error may be up to 4 times
    the error of eager mode, or 4 times the rounding error of the largest element. The comparison keeps the
    results of all kernels of all three runs in memory.

    Args:
        module: The eager model, with the weights of the program. Its buffers are restored afterwards.
        program: The program, bound to weights, on devices of this machine.
        args, kwargs: Arguments for both. They are copied.

    Returns:
        The number of compared kernels, and the first difference.

    Raises:
        WeightsNotBoundError: The program has no weights.
        ValueError, TypeError: The program was not exported for these inputs, the numbers of outputs differ,
            or the program has an effect token.
        Exception: Any exception that the model or the program raises.

    Example:
        >>> import torch
        >>> model = nn.Linear(4, 2)
        >>> program = torch.export.export(model, (torch.ones(3, 4),))
        >>> compare(model, program, (torch.rand(3, 4),)).is_identical
        True
    """
    kwargs = dict(kwargs or {})
    leaves = _checked_leaves(program, args, kwargs)
    eager, expected = _eager_run(module, args, kwargs)
    exact, exact_outputs, assumptions = _reference(module, args, kwargs)
    ours = program_run(program, leaves)
    if len(expected) != len(ours.outputs):
        raise InvalidValue(
            f"the model returns {len(expected)} outputs, but the program returns {len(ours.outputs)}"
        )
    pairs, rest = paired(eager, ours.kernels, exact, ours.nodes)
    exact_outputs = exact_outputs if len(exact_outputs) == len(expected) else [None] * len(expected)
    triples = zip(output_names(program), expected, ours.outputs, exact_outputs, strict=True)
    outputs = tuple(OutputComparison(name, tensor_error(a, b, c)) for name, a, b, c in triples)
    results = list(zip(outputs, ours.results, strict=True))
    first = functools.partial(_first, pairs, rest, results)
    return Comparison(
        kernels=len(pairs),
        unmatched=len(ours.kernels) - len(pairs),
        modules=tuple(_modules(pairs)),
        outputs=outputs,
        first_difference=first(lambda error: error.is_equal),
        first_divergence=first(lambda error: error.is_close),
        assumptions=assumptions,
    )


def _checked_leaves(program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the flat inputs of a call. Raises what the call raises for missing weights and wrong inputs."""
    module, calling = checked_module(program), calling_of(program)
    leaves, structure = tree_flatten(calling.canonical(tuple(args), kwargs))
    if structure != calling.structure:
        raise InvalidValue(f"the arguments are {structure}, but the program expects {calling.structure}")
    try:
        check_guards(module, leaves)
    except AssertionError as error:
        raise InvalidValue(f"the program was not exported for these inputs: {error}") from None
    return leaves


def _reference(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Kernel], list[Any], tuple[str, ...]]:
    """Run a copy of a module, its inputs, casts and new tensors in float64; or return why that fails."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        given = tree_map(_exact, (tuple(args), dict(kwargs)))
        return (*_eager_run(copy.deepcopy(module).double(), *given, dtypes=_HALVES), ())
    except Exception as error:
        return [], [], (f"reference: none; the model does not run in float64: {type_and_line(error)}",)
    finally:
        torch.set_default_dtype(before)


def _exact(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def _modules(pairs: Sequence[Pair]) -> Iterator[ModuleComparison]:
    by_path: dict[str, list[TensorError]] = {}
    for pair in pairs:
        by_path.setdefault(pair.ours.path, []).append(pair.error)
    for path, errors in by_path.items():
        yield ModuleComparison(
            path,
            kernels=len(errors),
            differing=sum(not error.is_equal for error in errors),
            diverging=sum(not error.is_close for error in errors),
            error=max((error.program for error in errors if error.program is not None), default=None),
            eager_error=max((error.eager for error in errors if error.eager is not None), default=None),
        )


def _first(
    pairs: Sequence[Pair],
    rest: Gap,
    outputs: Sequence[tuple[OutputComparison, Any]],
    is_fine: Callable[[TensorError], bool],
) -> Place | None:
    """Return the place of the first kernel whose error is too large, or None if there is none.

    If an earlier kernel that only the program runs caused the error, return its place instead. If all pairs
    of kernels are fine, errors of the outputs are also traced back to kernels that only the program runs.
    """
    right: set[Node | None] = set()
    gaps: list[Gap] = []
    for pair in pairs:
        gaps.append(pair.gap)
        if not is_fine(pair.error):
            found = _replaced(gaps, pair.ours.node, right)
            return _place(*found, pair.error) if found else _place(pair.ours, "", pair.error)
        if _is_floating(pair.ours):
            right.add(pair.ours.node)
    for output, value in outputs:
        if not is_fine(output.error) and (found := _replaced([*gaps, rest], value, right)):
            return _place(*found, output.error)
    return None


def _replaced(gaps: Sequence[Gap], value: Any, right: Set[Node | None]) -> tuple[Kernel, str] | None:
    """Return the first kernel that `value` depends on and that eager mode does not run, and the name of the
    kernel that eager mode runs instead. Return None if there is no such kernel.

    Dependencies are followed back to values that are known to be correct. A program may compute masks
    differently, so kernels with integer and boolean results count only if eager mode ran equally many kernels
    at that point.
    """
    sources = _sources(value, right) if isinstance(value, Node) else ()
    for gap in gaps:
        for kernel in gap.ours if gap.eager else ():
            is_alike = _is_floating(kernel) or len(gap.ours) == len(gap.eager)
            is_source = kernel.node in sources
            if is_source and is_alike and not any(_gives_the_same(kernel, other) for other in gap.eager):
                return kernel, gap.eager[0].name
    return None


def _sources(node: Node, right: Set[Node | None]) -> set[Node]:
    found, waiting = {node}, [node]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found and source not in right:
                found.add(source)
                waiting.append(source)
    return found


def _is_floating(kernel: Kernel) -> bool:
    return any(each.is_floating_point() for each in kernel.results)


def _gives_the_same(kernel: Kernel, other: Kernel) -> bool:
    return len(kernel.results) == len(other.results) and all(
        tensor_error(a, b).is_equal for a, b in zip(kernel.results, other.results, strict=True)
    )


def _place(kernel: Kernel, eager_name: str, error: TensorError) -> Place:
    node = kernel.node
    assert node is not None
    return Place(
        node=node.name,
        operator=operator_name(node),
        kernel=kernel.name,
        eager_kernel="" if eager_name == kernel.name else eager_name,
        module_path=kernel.path,
        span=source_span(node),
        error=error,
    )


_HALVES = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64)


def _eager_run(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dtypes: Mapping[torch.dtype, torch.dtype] | None = None,
) -> tuple[list[Kernel], list[Any]]:
    """Run a module on copies of the inputs, and restore its buffers. Return its kernels, and its outputs."""
    path: list[str] = [""]
    record = KernelRecord(lambda: (path[-1], None), dtypes or {})
    args, kwargs = copy.deepcopy((tuple(args), dict(kwargs)))
    state = {name: tensor.detach().clone() for name, tensor in module.named_buffers()}
    try:
        with plain_forward(module, args, kwargs), _hooks(module, path), recorded(record):
            result = module(*args, **kwargs)
    finally:
        for name, tensor in module.named_buffers():
            if name in state:
                tensor.detach().copy_(state[name])
    return record.kernels, tree_leaves(result)


@contextmanager
def _hooks(module: nn.Module, path: list[str]) -> Iterator[None]:
    """Enter a context in which `path` is a stack of the paths of the running modules."""

    def leave(*_: Any) -> None:
        path.pop()  # The hook must return None: any other value would replace the output.

    handles = []
    for name, inner in module.named_modules():
        handles.append(inner.register_forward_pre_hook(lambda *_, name=name: path.append(name)))
        handles.append(inner.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
