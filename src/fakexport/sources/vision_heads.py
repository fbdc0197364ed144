"""Vision attention whose heads are normalized, which `transformers.exporters` leaves out."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn


@contextmanager
def normalized_heads(module: nn.Module) -> Iterator[None]:
    """Enter a context in which the attention that `transformers.exporters` puts in place of chunked vision
    attention normalizes the heads of queries and keys, as eager does.

    The replacement normalizes them where a model has separate projections, and forgets it where one `qkv`
    projects all three: `glm_ocr` and `dots3_note` would export without an error, and compute other values.
    The projection's output is normalized instead. It can go with the last transformers that forgets it.

    Args:
        module: The model, under the patches of `transformers.exporters`.
    Source: transformers 5.17 to 5.23, `exporters/exporter_dynamo.py:_reshaped_vision_attention_forward`.
    """
    with ExitStack() as stack:
        for attention in module.modules() if _are_forgotten() else ():
            projection = getattr(attention, "qkv", None)
            if _is_replaced(attention) and isinstance(projection, nn.Module) and hasattr(attention, "q_norm"):
                stack.callback(projection.register_forward_hook(_normalizing(attention)).remove)
        yield


def _is_replaced(attention: nn.Module) -> bool:
    return "_patch_chunked_vision_attention" in type(attention).forward.__qualname__


def _normalizing(attention: Any) -> Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]:
    def hook(projection: nn.Module, args: Any, projected: torch.Tensor) -> torch.Tensor:
        heads = projected.reshape(projected.shape[0], 3, attention.num_heads, -1)
        query, key, value = heads.unbind(1)
        normalized = torch.stack([attention.q_norm(query), attention.k_norm(key), value], 1)
        return normalized.reshape(projected.shape)

    return hook


@cache
def _are_forgotten() -> bool:
    """Return whether the replacement names `q_norm` nowhere but where there is no `qkv`."""
    from transformers.exporters import exporter_dynamo

    replacement = getattr(exporter_dynamo, "_reshaped_vision_attention_forward", None)
    if replacement is None:
        return False
    tree = ast.parse(inspect.getsource(replacement))
    everywhere = _uses_of_norm(tree)
    without_qkv = sum(
        sum(map(_uses_of_norm, branch.orelse))
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "hasattr(self, 'qkv')"
    )
    return everywhere == without_qkv


def _uses_of_norm(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.Attribute) and node.attr == "q_norm" for node in ast.walk(tree))
