"""Find attention that takes a slow kernel only because of strides: rule FE507."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from fakexport._torch.emulation.attention_backend import Attention, choose_backend
from fakexport.emulation.devices import Topology, attention_device
from fakexport.exporting.program import Visit
from fakexport.report.diagnose.labels import finding
from fakexport.rules.diagnostics import Diagnostic

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_NAMES = [argument.name for argument in _ATTENTION._schema.arguments]


def diagnose_attention(visits: Iterable[Visit], topology: Topology) -> Iterator[Diagnostic]:
    """Report attention that would take a fused kernel if its tensors had stride 1 in the last dimension.

    Reports:
        FE507. The kernel is selected twice by torch's rules for the device: for the strides in the program,
            and with stride 1 for all tensors. Attention that has no fused kernel either way is not reported.
    """
    for visit in visits:
        call = _attention(visit, topology)
        if call is None or choose_backend(call) != "math":
            continue
        tensors = {"query": call.query, "key": call.key, "value": call.value, "attn_mask": call.mask}
        strided = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor is not None and not guard_or_false(tensor.stride(-1) == 1)
        }
        query, key, value = (_dense(tensor) for tensor in (call.query, call.key, call.value))
        mask = None if call.mask is None else _dense(call.mask)
        kernel = choose_backend(replace(call, query=query, key=key, value=value, mask=mask))
        if kernel == "math":
            continue
        device = call.query.device
        yield finding(
            "strided_attention",
            visit.span,
            node=visit.name,
            module_path=visit.module_path,
            names=", ".join(f"`{name}`" for name in strided),
            strides=", ".join(dict.fromkeys(str(tensor.stride(-1)) for tensor in strided.values())),
            dense=", ".join(f"{name}.contiguous()" for name in strided),
            device=topology.device(str(device)).profile.name,
            kernel=kernel,
        )


def _attention(visit: Visit, topology: Topology) -> Attention | None:
    """Return the attention call of a node, or None if it is another operator or its device has no profile."""
    if visit.node.target is not _ATTENTION:
        return None
    given: dict[str, Any] = {**dict(zip(_NAMES, visit.node.args, strict=False)), **visit.node.kwargs}
    values: list[Any] = [getattr(given.get(name), "meta", {}).get("val") for name in _NAMES[:4]]
    query, key, value, mask = values
    if not all(isinstance(tensor, Tensor) for tensor in values[:3]):
        return None
    device = attention_device(query.device, topology)
    if device is None:
        return None
    dropout, is_causal = given.get("dropout_p", 0.0), given.get("is_causal", False)
    return Attention(query, key, value, mask, dropout, is_causal, device, given.get("enable_gqa", False))


def _dense(tensor: Tensor) -> Tensor:
    """Return a tensor on the meta device of the same shape, with the strides of a contiguous tensor."""
    return tensor.to("meta").contiguous()
