"""Find the nodes that torch's ONNX exporter cannot translate. Seen on torch 2.11 to 2.13.

The exporter itself stops at the first such node, and names it only in its error message.

Source: `torch/onnx/_internal/exporter/_core.py`, `_dispatching.py`, `_registration.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node


def prepared(program: ExportedProgram, translations: Mapping[Any, Callable[..., Any]]) -> ExportedProgram:
    """Decompose and functionalize a program, as the exporter does before it translates the nodes.

    Args:
        translations: Additional translations, in the format of `torch.onnx.export`'s argument
            `custom_translation_table`.
    """
    from torch.onnx._internal.exporter import _core

    with torch.no_grad():  # As in the conversion: attention then has the same layout.
        return _core._prepare_exported_program_for_export(program, registry=_registry(translations))


def untranslated_nodes(
    program: ExportedProgram, translations: Mapping[Any, Callable[..., Any]]
) -> Iterator[Node]:
    """Yield the nodes of a prepared program whose operators have no translation."""
    from torch.onnx._internal.exporter import _core, _dispatching

    registry = _registry(translations)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if (
                node.op != "call_function"
                or node.target is operator.getitem
                or _core._is_onnx_op(node.target)
            ):
                continue
            if _dispatching.dispatch(node, registry)[0] is None:
                yield node


def _registry(translations: Mapping[Any, Callable[..., Any]]) -> Any:
    from torch.onnx._internal.exporter import _registration

    registry = _registration.ONNXRegistry.from_torchlib()
    for target, function in translations.items():
        registry.register_op(target, function, is_complex=False)
    return registry


def node_of_failure(error: BaseException) -> Node | None:
    """Return the node at which a conversion failed, read from the frames of the error's traceback.

    If no frame contains the node, return None.
    """
    seen: BaseException | None = error
    while seen is not None:
        link = seen.__traceback__
        while link is not None:
            if link.tb_frame.f_code.co_name == "_translate_fx_graph":
                node = link.tb_frame.f_locals.get("node")
                return node if isinstance(node, Node) else None
            link = link.tb_next
        seen = seen.__cause__
    return None
