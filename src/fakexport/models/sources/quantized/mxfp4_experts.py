"""Experts of gpt-oss with MXFP4 weights. The names and shapes of the weights match checkpoints.

transformers' own class stores the weights in the layout of its Triton kernels instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fakexport._torch.kernels.mxfp4_products import BLOCK, grouped_matmul, refuse_cpu, register_mxfp4_product
from fakexport.models.sources.source_error import SourceError


def mxfp4_experts(quantizer: Any) -> dict[tuple[Any, str], Any]:
    """Return patches that let the quantizer run without Triton and the hub. Its device checks still apply."""
    if not hasattr(quantizer, "Mxfp4HfQuantizer"):
        return {}
    from transformers import integrations

    return {
        (quantizer, "is_triton_available"): lambda *args: True,
        (quantizer, "is_kernels_available"): lambda *args: True,
        (integrations, "replace_with_mxfp4_linear"): _replace_experts,
    }


class Mxfp4Experts(nn.Module):
    """Experts with two matrices each. The names and shapes of the weights match a checkpoint.

    The router, the biases and the operators between the matrix products are the same as in the unquantized
    model.

    Args:
        experts: The unquantized experts, whose biases are reused.
    Raises:
        SourceError: the row length of a matrix is not a multiple of 32, the size of a block.
    """

    def __init__(self, experts: Any) -> None:
        super().__init__()
        register_mxfp4_product()
        self.num_experts: int = experts.num_experts
        self.alpha, self.limit = experts.alpha, experts.limit
        self._gate: Callable[..., Tensor] = type(experts)._apply_gate
        for name in ("gate_up_proj", "down_proj"):
            count, width, columns = getattr(experts, name).shape
            if width % BLOCK:
                raise SourceError(
                    f"MXFP4 requires a row length that is a multiple of {BLOCK}, but {name} has {width}"
                )
            scales = (count, columns, width // BLOCK)
            for kind, shape in (("blocks", (*scales, BLOCK // 2)), ("scales", scales)):
                packed = nn.Parameter(torch.empty(shape, dtype=torch.uint8), requires_grad=False)
                self.register_parameter(f"{name}_{kind}", packed)
            self.register_parameter(f"{name}_bias", getattr(experts, f"{name}_bias"))

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        """Return the weighted sum of the selected experts' outputs for each row.

        Args:
            hidden_states: `[T, H]`.
            router_indices: `[T, k]`: the selected experts.
            routing_weights: `[T, k]`.
        Raises:
            NotImplementedError: the tensors are on the CPU.
        """
        refuse_cpu(hidden_states)
        chosen = router_indices.shape[-1]
        experts, order = torch.sort(router_indices.reshape(-1))
        numbers = torch.arange(self.num_experts, device=experts.device)
        ends = (experts <= numbers.unsqueeze(-1)).sum(dim=1, dtype=torch.int32)
        rows = hidden_states[order // chosen]
        rows = self._gate(self, self._linear("gate_up_proj", rows, experts, ends))
        rows = self._linear("down_proj", rows, experts, ends)
        rows = rows * routing_weights.reshape(-1)[order].unsqueeze(-1)
        sums: Tensor = rows[torch.sort(order).indices].unflatten(0, (-1, chosen)).sum(dim=1)
        return sums.to(hidden_states.dtype)

    def _linear(self, name: str, rows: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
        blocks, scales = getattr(self, f"{name}_blocks"), getattr(self, f"{name}_scales")
        bias: Tensor = getattr(self, f"{name}_bias")[experts]
        return grouped_matmul(rows, blocks, scales, ends) + bias


def _replace_experts(
    model: nn.Module, quantization_config: Any, modules_to_not_convert: Sequence[str] | None
) -> nn.Module:
    """Replace the experts of a model. This function replaces transformers' `replace_with_mxfp4_linear`."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
    from transformers.quantizers.quantizers_utils import should_convert_module

    if quantization_config.dequantize:
        return model
    own = {name: part for name, part in model.named_modules() if isinstance(part, GptOssExperts)}
    packed = [name for name in own if should_convert_module(name, modules_to_not_convert)]
    if not packed:
        left = "modules_to_not_convert excludes them" if own else "this model has none"
        raise SourceError(f"MXFP4 only applies to experts of gpt-oss, and {left}")
    for name in packed:
        with torch.device("meta"):
            model.set_submodule(name, Mxfp4Experts(own[name]))
    return model
