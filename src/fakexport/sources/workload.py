"""What a model is asked to do in the call that is exported or run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WorkloadName = Literal["forward", "prefill", "decode", "train"]


@dataclass(frozen=True)
class Workload:
    """The call of a model that its program is.

    Args:
        name: `forward`: without a cache. `prefill`: reads a prompt and returns the cache. `decode`: reads one
            token and a cache, and returns the cache. `train`: as forward, with labels where the
            model takes them.
        batch: First size of the example inputs; 2, since `torch.export` fixes sizes of 0 and 1.
        context: Tokens that the model attends to in the example, those of the cache included.
    """

    name: WorkloadName = "forward"
    batch: int = 2
    context: int = 16


FORWARD = Workload()
