"""Attention whose decomposition has the layout that the program expects. Seen on torch 2.13.

Source: `scaled_dot_product_flash_attention_for_cpu` in `torch/_decomp/decompositions.py`, which permutes its
result to `[query, batch, head, dim]` in memory; the operator itself gives `[batch, query, head, dim]`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch.export import ExportedProgram, default_decompositions

_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def functional_program(program: ExportedProgram) -> ExportedProgram:
    """Return the program functionalized, with its attention decomposed and with views that fit the result.

    What the program writes into buffers and inputs is among its outputs then. The `view` that merges the
    heads behind attention cannot be made of the decomposition's layout for a batch of more than one, and
    torch's `run_decompositions` fails. Where nothing is written in place, `reshape` means the same as `view`,
    and copies where it has to.
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
