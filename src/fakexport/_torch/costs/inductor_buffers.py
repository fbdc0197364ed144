"""Read AOTInductor's memory plan without generating or compiling C++. Seen on torch 2.13.

Inductor lowers a graph to loops and kernel calls, orders them, and plans which buffers are allocated, which
buffers reuse the memory of others, and when each buffer is freed. The plan is a list of wrapper lines. The
generated C++ wrapper follows the plan, with an owning handle for each buffer. Sizes are sympy expressions.

Source: `torch/_inductor/graph.py:GraphLowering.codegen`, `torch/_inductor/codegen/wrapper.py` (the lines),
`torch/_inductor/codegen/cpp_wrapper_cpu.py:generate_c_shim_fallback_kernel` (results of kernels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import sympy
import torch
from torch.fx import GraphModule, Node

from fakexport._torch.operators.inductor import Stopped, compile_options, stopped_with, without_compiler
from fakexport._torch.patching import Patches
from fakexport._torch.tracing.symbolic_numbers import expression_of

from .operator_memory import Workspace

Act: TypeAlias = Literal["take", "alias", "rename", "free", "call"]


@dataclass(frozen=True, slots=True)
class BufferLine:
    """The effect of one line of the wrapper on memory.

    Args:
        act: `take` allocates the memory of `name`, `free` frees it, `alias` and `rename` make `name` use the
            memory of `other`, and `call` runs a kernel.
        workspace: Device and bytes of each workspace that a called kernel allocates.
    """

    act: Act
    name: str  # Name of the buffer, or of the kernel.
    other: str = ""  # The buffer whose memory `name` uses.
    bytes: Any = 0  # Size of the allocation: a number, or an expression over the input sizes.
    shape: tuple[Any, ...] = ()  # Shape of the buffer: numbers or expressions.
    dtype: torch.dtype | None = None  # Dtype of the buffer.
    device: str = ""  # Device of the buffer.
    node: Node | None = None  # The graph node that Inductor lowered to this buffer.
    workspace: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class PlannedWrapper:
    """Allocations and frees of one wrapper call.

    Args:
        returned: For each graph output, the name of its buffer, or "" for an input, a weight or a number.
    """

    lines: tuple[BufferLine, ...]  # In execution order.
    returned: tuple[str, ...]
    unread: tuple[str, ...]  # Names of kernels whose workspace is unknown.


class UnplannedGraph(Exception):
    """Inductor's plan contains lines that this module cannot read."""


def planned_wrapper(
    graph: GraphModule,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    workspace: Workspace,
    *,
    has_weights: bool,
) -> PlannedWrapper:
    """Return the memory plan of the wrapper for a CPU graph. No C++ compiler is needed.

    Raises:
        UnplannedGraph: The graph has control flow.
    """
    from torch._inductor import aot_compile
    from torch._inductor.graph import GraphLowering

    def plan(lowering: Any) -> Any:
        try:
            raise Stopped(_planned(lowering, workspace))
        except UnplannedGraph as reason:
            raise Stopped(reason) from None

    options = compile_options(graph, has_weights=has_weights)
    replacements = {(GraphLowering, "codegen_with_cpp_wrapper"): plan, **without_compiler()}
    with torch.no_grad(), Patches(replacements):
        try:
            aot_compile(graph, args, dict(kwargs), options=options)
        except Exception as error:
            match stopped_with(error):
                case Stopped(value=PlannedWrapper() as wrapper):
                    return wrapper
                case Stopped(value=UnplannedGraph() as reason):
                    raise reason from error
            raise
    raise UnplannedGraph("Inductor did not lower the program")


def _planned(lowering: Any, workspace: Workspace) -> PlannedWrapper:
    lowering.init_wrapper_code()
    lowering._update_scheduler()
    wrapper = lowering.wrapper_code
    wrapper.push_codegened_graph(lowering)
    lowering.scheduler.codegen()
    wrapper.run_wrapper_ir_passes(lowering.is_inference)
    unread: dict[str, None] = {}
    lines = tuple(_read(wrapper.lines, lowering, workspace, unread))
    made = {line.name for line in lines if line.act != "call"}
    names = (_buffer_name(output) for output in lowering.graph_outputs)
    return PlannedWrapper(lines, tuple(name if name in made else "" for name in names), tuple(unread))


def _buffer_name(output: Any) -> str:
    """Return the name of the buffer that contains an output, or "" for a number."""
    try:
        return str(output.get_name())
    except (AttributeError, NotImplementedError):
        return ""


def _read(
    lines: Iterable[Any], lowering: Any, workspace: Workspace, unread: dict[str, None]
) -> Iterator[BufferLine]:
    from torch._inductor.codegen import wrapper as known

    # `ConditionalLine` is `SwitchLine` from torch 2.14 on.
    names = ("EnterSubgraphLine", "ConditionalLine", "SwitchLine")
    branches = tuple(getattr(known, name) for name in names if hasattr(known, name))
    for line in lines:
        match line:
            case _ if isinstance(line, branches):
                raise UnplannedGraph("the program has data-dependent control flow")
            case known.AllocateLine():
                yield _taken(line.node, lowering)
            case known.ReuseLine():
                act: Act = "rename" if line.delete_old else "alias"
                yield BufferLine(act, line.reused_as.get_name(), other=line.node.get_name())
            case known.ReinterpretLine():
                yield BufferLine("alias", line.reused_as.get_name(), other=line.node.get_name())
            case known.FreeIfNotReusedLine() if not line.is_reused:
                yield BufferLine("free", line.node.get_name())
            case known.FreeLine():
                yield BufferLine("free", line.node.get_name())
            case known.KernelCallLine():
                yield BufferLine("call", line.kernel_name)
            case known.ExternKernelAllocLine():
                # The kernel allocates its workspace while its results are already allocated.
                yield from (_taken(node, lowering) for node in _results(line.node))
                yield _call(line.node, workspace, unread)
            case known.ExternKernelOutLine() | known.ExternKernelMultiOutLine():
                yield _call(line.node, workspace, unread)
            case known.IndexPutFallbackLine() | known.ScatterFallbackLine():
                yield _call(line.node, workspace, unread)


def _taken(node: Any, lowering: Any) -> BufferLine:
    return BufferLine(
        "take",
        node.get_name(),
        bytes=_plain(lowering.get_allocation_storage_size(node)) * node.get_dtype().itemsize,
        shape=tuple(map(_plain, node.get_size())),
        dtype=node.get_dtype(),
        device=str(node.get_device()),
        node=_origin(node),
    )


def _plain(size: Any) -> Any:
    """Return the expression as an int if it is constant, otherwise unchanged."""
    expression = sympy.expand(size)
    return int(expression) if expression.is_Integer else expression


def _results(node: Any) -> list[Any]:
    """Return the outputs of a kernel that own memory. Even an unused output has a handle."""
    from torch._inductor import ir

    if not isinstance(node.layout, ir.MultiOutputLayout):
        return [] if isinstance(node.layout, (ir.NoneLayout, ir.NonOwningLayout)) else [node]
    outputs = [output for output in node.outputs if isinstance(output, ir.MultiOutput)]
    return [output for output in outputs if not output.get_inputs_that_alias_output()]


def _origin(node: Any) -> Node | None:
    found = getattr(node, "fx_node", None) or node.get_origin_node()
    return found if isinstance(found, Node) else next(iter(node.get_origins()), None)


def _call(node: Any, workspace: Workspace, unread: dict[str, None]) -> BufferLine:
    name = str(node.get_kernel_name() or type(node).__name__)
    operator = node.op_overload
    taken: tuple[tuple[str, Any], ...] = ()
    if isinstance(operator, torch._ops.OpOverload):
        name = str(operator)
        try:
            found = tuple(_workspace(node, operator, workspace))
            taken = tuple((device, size) for device, size in found if size is not None)
            if taken != found:
                unread[name] = None
        except Exception:  # If anything fails, the workspace of this kernel is unknown.
            unread[name] = None
    return BufferLine("call", name, node=_origin(node), workspace=taken)


def _workspace(node: Any, operator: Any, workspace: Workspace) -> Iterator[tuple[str, Any]]:
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    with V.fake_mode:
        inputs = [ir.ir_node_to_tensor(one) if isinstance(one, ir.IRNode) else one for one in node.inputs]
        results = [ir.ir_node_to_tensor(one) for one in _results(node)]
        if isinstance(node, ir.FallbackKernel):
            args, kwargs = node.unflatten_args(inputs, node.constant_args)
        else:
            args, kwargs = (*inputs, *node.constant_args), dict(node.kwargs)
        arguments = operator._schema.arguments
        bound = {**dict(zip((one.name for one in arguments), args, strict=False)), **kwargs}
        given = [bound.get(one.name, one.default_value) for one in arguments]
        result = results[0] if len(results) == 1 else tuple(results)
        for device, size in workspace(operator, given, {}, result):
            yield device, _plain(expression_of(size)) if isinstance(size, torch.SymInt) else size
