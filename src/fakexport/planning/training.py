"""How a model is trained, as far as its memory depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from fakexport.error import InvalidValue, type_and_line
from fakexport.memory import OptimizerName

# Of transformers, its former name there, and of timm.
_CHECKPOINTING = (
    "activation_checkpointing_enable",
    "gradient_checkpointing_enable",
    "set_grad_checkpointing",
)


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    Args:
        optimizer: One of torch's, with its defaults.
        checkpointing: Whether the model recomputes the activations of its blocks in the backward pass.
        autocast: Dtype of mixed precision; None: everything is computed in the dtype of the weights.
    """

    optimizer: OptimizerName = "adamw"
    checkpointing: bool = False
    autocast: torch.dtype | None = None

    def __str__(self) -> str:
        """Name it for a title: `AdamW, checkpointing`."""
        parts = [_NAMES[self.optimizer]]
        parts += ["checkpointing"] if self.checkpointing else []
        parts += [f"autocast to {str(self.autocast).removeprefix('torch.')}"] if self.autocast else []
        return ", ".join(parts)


_NAMES: Mapping[OptimizerName, str] = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}


def enable_checkpointing(module: nn.Module, spec: str) -> None:
    """Let a model recompute the activations of its blocks.

    Raises:
        ValueError: it has no method for that, or refuses. One line.
    """
    enable = next(filter(callable, (getattr(module, name, None) for name in _CHECKPOINTING)), None)
    if enable is None:
        raise InvalidValue(
            f"--checkpointing: {spec} has no {_CHECKPOINTING[0]}; call "
            "torch.utils.checkpoint in its forward and leave the option out"
        )
    try:
        enable()
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise InvalidValue(f"--checkpointing: {spec}: {type_and_line(error)}") from error
