"""The experts of gpt-oss with weights in MXFP4, with the names and shapes of its checkpoints.

transformers makes others, whose weights have the layout of its Triton kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fakexport._torch.mxfp4_products import BLOCK, grouped_matmul, refuse_cpu, register_mxfp4_product
from fakexport._torch.patching import Patches
from fakexport.sources.source_error import SourceError


@contextmanager
def mxfp4_experts(quantizer: Any) -> Iterator[None]:
    """Enter a context in which transformers' quantizer needs neither Triton nor a kernel of the hub.

    What it asks of the device is answered as before.
    """
    if not hasattr(quantizer, "Mxfp4HfQuantizer"):
        yield
        return
    from transformers import integrations

    with Patches(
        {
            (quantizer, "is_triton_available"): lambda *args: True,
            (quantizer, "is_kernels_available"): lambda *args: True,
            (integrations, "replace_with_mxfp4_linear"): _replace_experts,
        }
    ):
        yield


class Mxfp4Experts(nn.Module):
    """Experts with two matrices each, whose names and shapes are those of a checkpoint.

    The router, the biases and what is between the products are those of the unquantized model.

    Args:
        experts: The unquantized ones. Their biases are taken over.
    Raises:
        SourceError: rows cannot be divided into blocks of 32.
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
                raise SourceError(f"MXFP4 has blocks of {BLOCK}, and {name} has rows of {width}")
            scales = (count, columns, width // BLOCK)
            for kind, shape in (("blocks", (*scales, BLOCK // 2)), ("scales", scales)):
                packed = nn.Parameter(torch.empty(shape, dtype=torch.uint8), requires_grad=False)
                self.register_parameter(f"{name}_{kind}", packed)
            self.register_parameter(f"{name}_bias", getattr(experts, f"{name}_bias"))

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        """Return the weighted sum of what the chosen experts make of each row.

        Args:
            hidden_states: `[T, H]`.
            router_indices: `[T, k]`: which experts.
            routing_weights: `[T, k]`.
        Raises:
            NotImplementedError: tensors on the CPU.
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
    """Do what the function of transformers of this name does."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
    from transformers.quantizers.quantizers_utils import should_convert_module

    if quantization_config.dequantize:
        return model
    own = {name: part for name, part in model.named_modules() if isinstance(part, GptOssExperts)}
    packed = [name for name in own if should_convert_module(name, modules_to_not_convert)]
    if not packed:
        left = "modules_to_not_convert leaves them out" if own else "this model has none"
        raise SourceError(f"only experts of gpt-oss are in MXFP4, and {left}")
    for name in packed:
        with torch.device("meta"):
            model.set_submodule(name, Mxfp4Experts(own[name]))
    return model
