"""The parts of an `ExportedProgram` that only private torch can put together. Seen on torch 2.11 to 2.13.

Source: `torch/export/exported_program.py`, `torch/_export/verifier.py`, `torch/_subclasses/fake_tensor.py`,
`torch/fx/_lazy_graph_module.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._export.verifier import load_verifier
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram, ExportGraphSignature
from torch.export.graph_signature import CustomObjArgument
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree

from .lazy_graph_module import programs_without_code

DIALECTS = ("ATEN", "TRAINING")
"""Names of the checks that a program may ask for."""


def guards_code(program: ExportedProgram) -> list[str]:
    """Return the conditions on inputs that `program.module()` checks, as Python expressions."""
    return list(program._guards_code)


def add_guards(program: ExportedProgram, guards: Sequence[str]) -> None:
    """Add conditions on inputs, as torch prints guards, to those that `program.module()` checks."""
    set_guards(program, list(dict.fromkeys((*program._guards_code, *guards))))


def set_guards(program: ExportedProgram, guards: list[str]) -> None:
    """Replace the conditions on inputs that `program.module()` checks."""
    program._guards_code = guards


def check_guards(module: torch.nn.Module, leaves: Sequence[Any]) -> None:
    """Check the flat inputs of a call as `program.module()` does, without calling it.

    Raises:
        AssertionError: names the condition that they do not fulfil.
    """
    guards = getattr(module, "_guards_fn", None)
    if guards is not None:
        guards(*leaves)


def plain_meta(sizes: Sequence[Any], strides: Sequence[Any], offset: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without data for `fake_of`.

    A symbolic offset into the storage is left out where telling how large the storage is would need the value
    of a symbol that has none.
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
    """Return a new fake tensor that shares its (empty) storage with `meta`; any device, without emulation.

    Some 20 times faster than `torch.empty_strided` under the mode where sizes are symbolic, since what torch
    concludes from strides (contiguity) is taken over from `meta`.
    """
    fake = FakeTensor(mode, meta, device)
    return fake.requires_grad_() if requires_grad else fake


def as_parameter(fake: torch.Tensor) -> torch.Tensor:
    """Return the same fake tensor, which is a `torch.nn.Parameter` from now on."""
    fake._is_param = True
    return fake


def new_subgraph(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Return the graph module of a subgraph; its code is generated when it is first asked for."""
    return _LazyGraphModule(root, graph)


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
    """Return the program, validated.

    Its code is generated when it is asked for. `root` holds the subgraphs.
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
    """Return a program like the first one, with another graph and other tensors; validated.

    The conditions on inputs are those of the first: torch derives them again from a shape environment that
    may have seen more in the meantime, and derives none for a program that was loaded.
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


def _copied(signature: ExportGraphSignature) -> ExportGraphSignature:
    """Return a copy that shares the fakes of C++ objects, whose tensors no copy can be made of."""
    fakes = [spec.arg.fake_val for spec in signature.input_specs if isinstance(spec.arg, CustomObjArgument)]
    return copy.deepcopy(signature, {id(fake): fake for fake in fakes})


def tree_spec(kind: type, context: Any, children: list[Any]) -> Any:
    """Return the structure of a container. `context` is torch's own, such as the list of a dict's keys."""
    return _pytree.TreeSpec(kind, context, children)


def leaf_spec() -> Any:
    """Return the structure of what is not a container."""
    return _pytree.treespec_leaf()


def tree_spec_text(spec: Any, version: int) -> str:
    """Return torch's own JSON of a structure."""
    return _pytree.treespec_dumps(spec, version)
