"""Assemble the parts of an `ExportedProgram` that need private torch APIs. Seen on torch 2.11 to 2.13.

Source: `torch/export/exported_program.py`, `torch/_export/verifier.py`,
`torch/_subclasses/fake_tensor.py`, `torch/fx/_lazy_graph_module.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import torch
from torch._decomp import get_decompositions
from torch._export.verifier import load_verifier
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram, ExportGraphSignature, default_decompositions
from torch.export.graph_signature import CustomObjArgument
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree

from fakexport._torch.speed.lazy_graph_module import graph_module_of, programs_without_code

DIALECTS = ("ATEN", "TRAINING")
"""Names of the verifiers that a program may use."""
_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def guards_code(program: ExportedProgram) -> list[str]:
    """Return the input guards that `program.module()` checks, as Python expressions."""
    return list(program._guards_code)


def add_guards(program: ExportedProgram, guards: Sequence[str]) -> None:
    """Add input guards to those that `program.module()` checks.

    Args:
        guards: Python expressions, in the format in which torch prints guards.
    """
    set_guards(program, list(dict.fromkeys((*program._guards_code, *guards))))


def set_guards(program: ExportedProgram, guards: list[str]) -> None:
    """Replace the input guards that `program.module()` checks."""
    program._guards_code = guards


def check_guards(module: torch.nn.Module, leaves: Sequence[Any]) -> None:
    """Check the flat inputs of a call as `program.module()` does, without calling the module.

    Raises:
        AssertionError: A guard fails. The message names the guard.
    """
    guards = getattr(module, "_guards_fn", None)
    if guards is not None:
        guards(*leaves)


def plain_meta(sizes: Sequence[Any], strides: Sequence[Any], offset: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a meta tensor for `fake_of`.

    If the size of the storage depends on the value of an unbacked symbol, the storage offset is dropped.
    """
    sizes, strides = tuple(sizes), tuple(strides)
    if type(offset) is not int or offset != 0:
        try:
            last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
            flat = torch.empty_strided((offset + last + 1,), (1,), dtype=dtype, device="meta")
            return flat.as_strided(sizes, strides, offset)
        except GuardOnDataDependentSymNode:
            pass
    return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")


def fake_of(
    mode: FakeTensorMode, meta: torch.Tensor, device: torch.device, requires_grad: bool
) -> torch.Tensor:
    """Return a new fake tensor with the empty storage of `meta`, on any device, even without emulation.

    With symbolic sizes, this is about 20 times faster than `torch.empty_strided` in the fake mode, because
    properties that torch derives from strides, such as contiguity, are copied from `meta`.
    """
    fake = FakeTensor(mode, meta, device)
    return fake.requires_grad_() if requires_grad else fake


def as_parameter(fake: torch.Tensor) -> torch.Tensor:
    """Mark the fake tensor as a `torch.nn.Parameter` and return it."""
    fake._is_param = True
    return fake


def new_subgraph(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Return the graph module of a subgraph, which generates its code on first use."""
    return graph_module_of(root, graph)


def assemble(
    *,
    root: torch.nn.Module,
    graph: torch.fx.Graph,
    signature: ExportGraphSignature,
    state_dict: Mapping[str, Any],
    constants: Mapping[str, Any],
    range_constraints: dict[Any, Any],
    module_call_graph: list[Any],
    dialects: Sequence[str],
    guards: list[str],
    meta: Mapping[str, Any],
) -> ExportedProgram:
    """Assemble and validate a program. It generates its code on first use.

    Args:
        root: The module that contains the subgraphs.
    """
    with programs_without_code():
        program = ExportedProgram(
            root=root,
            graph=graph,
            graph_signature=signature,
            state_dict=dict(state_dict),
            range_constraints=range_constraints,
            module_call_graph=module_call_graph,
            constants=dict(constants),
            verifiers=[load_verifier(dialect) for dialect in dialects],
        )
    program.graph_module.meta.update(meta)
    program._guards_code = guards
    return program


def reassemble(
    program: ExportedProgram,
    *,
    graph_module: torch.fx.GraphModule,
    state_dict: Mapping[str, Any],
    constants: Mapping[str, Any],
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None,
    signature: ExportGraphSignature | None = None,
) -> ExportedProgram:
    """Return a validated copy of a program with a different graph and different tensors.

    The guards are copied. torch would derive them from the shape environment, which may have changed, and
    which has no guards if the program was loaded from a file.
    """
    with programs_without_code():
        made = ExportedProgram(
            root=graph_module,
            graph=graph_module.graph,
            graph_signature=_copied(program.graph_signature) if signature is None else signature,
            state_dict=dict(state_dict),
            range_constraints=dict(program.range_constraints),
            module_call_graph=[copy.copy(entry) for entry in program.module_call_graph],
            example_inputs=example_inputs,
            constants=dict(constants),
            verifiers=program.verifiers,
        )
    made._guards_code = list(program._guards_code)
    return made


def partly_decomposed(
    program: ExportedProgram, decomposed: Collection[str], kept: Collection[str]
) -> ExportedProgram:
    """Decompose composite operators and the operators in `decomposed`, but none in `kept`.

    An operator is named like `aten.fill`, for all its overloads, or like `aten.fill.Scalar`.
    """
    every: Mapping[Any, Any] = default_decompositions()
    composite = {operator: how for operator, how in every.items() if operator._can_decompose()}
    table = {**composite, **get_decompositions([*filter(None, map(_operator, decomposed))])}
    chosen = {operator: how for operator, how in table.items() if not _is_named(operator, kept)}
    return cast(ExportedProgram, program.run_decompositions(chosen))


def _operator(name: str) -> Any:
    """Return an operator or an overload by name, or None if this torch does not have it."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_named(operator: Any, names: Collection[str]) -> bool:
    return str(operator) in names or str(operator).rpartition(".")[0] in names


def _copied(signature: ExportGraphSignature) -> ExportGraphSignature:
    """Return a copy that shares the fakes of TorchBind objects, because their tensors cannot be copied."""
    fakes = [spec.arg.fake_val for spec in signature.input_specs if isinstance(spec.arg, CustomObjArgument)]
    return copy.deepcopy(signature, {id(fake): fake for fake in fakes})


def tree_spec(kind: type, context: Any, children: list[Any]) -> Any:
    """Return the `TreeSpec` of a container. `context` is torch's context for it, such as a dict's keys."""
    return _pytree.TreeSpec(kind, context, children)


def leaf_spec() -> Any:
    """Return the `TreeSpec` of a leaf."""
    return _pytree.treespec_leaf()


def functional_program(program: ExportedProgram) -> ExportedProgram:
    """Return the functionalized program, in which attention is decomposed.

    Mutations of buffers and inputs become outputs. In programs with attention, each `view` is replaced with
    `reshape`. The reason is that the result of the decomposed attention has the memory layout `[query, batch,
    head, dim]`, unlike that of the operator. The `view` that merges the heads would be invalid for batch
    sizes above one, and torch's `run_decompositions` would fail. A functional program does not mutate views,
    so `reshape` is equivalent, and copies if necessary. Seen on torch 2.13. Source:
    `torch/_decomp/decompositions.py:scaled_dot_product_flash_attention_for_cpu`.
    """
    functional = cast(ExportedProgram, program.run_decompositions({}))
    if not functional.graph.find_nodes(op="call_function", target=_ATTENTION):
        return functional
    for node in functional.graph.find_nodes(op="call_function", target=_VIEW):
        node.target = _RESHAPE
    table = default_decompositions()
    return cast(
        ExportedProgram, functional.run_decompositions({op: table[op] for op in (_ATTENTION, _FLASH)})
    )
