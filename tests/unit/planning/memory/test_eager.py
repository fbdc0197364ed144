"""What eager mode is predicted to hold is what torch's profiler records of a real call."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import BartConfig, BartModel

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build
from fakexport.models.sources import known_masks
from fakexport.planning.memory import eager_liveness, sizes_at
from tests.measured_memory import measured_peak


class Kept(nn.Module):
    """Keeps results in its frame that nothing needs any more, as a program does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        active = functional.gelu(hidden)
        rows = active.view(-1, 2, 20).transpose(1, 2).reshape(-1, 40)
        return self.second(rows).softmax(-1)


def _inputs() -> tuple[torch.Tensor]:
    return (torch.ones(50, 24),)


def test_what_frames_keep_alive_counts():
    with emulate("cpu"):
        built = build(lambda: (Kept(), _inputs()))
        predicted = sizes_at(eager_liveness(built, built.args, {}), {}).peak("cpu").run_bytes

    real, inputs = Kept(), _inputs()
    assert predicted == measured_peak(lambda: real(*inputs))


def test_gradients_are_not_recorded_whatever_the_caller_does():
    with emulate("cpu"), torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        built = build(lambda: (Kept(), _inputs()))
        found = eager_liveness(built, built.args, {})

    assert {step.name for step in found.steps} == {"forward"}
    assert "bfloat16" not in {storage.dtype for storage in found.storages}


def test_a_mask_that_the_model_makes_is_dropped_as_in_a_run():
    config = {"model_type": "bart", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 64}
    config |= {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in _SIDES.items()}
    module = BartModel(BartConfig(**config)).eval()
    given = {name: torch.ones(4, 24, dtype=torch.long) for name in ("input_ids", "decoder_input_ids")}

    with emulate("cpu"):
        built = build(lambda: (BartModel(BartConfig(**config)).eval(), (), _fakes(given)))
        with known_masks(built.mode, list(built.kwargs.values())):
            found = eager_liveness(built, (), built.kwargs)

    measured = measured_peak(lambda: module(**given))
    assert sizes_at(found, {}).peak("cpu").run_bytes == measured


_SIDES = {"ffn_dim": 32, "attention_heads": 2}


def _fakes(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(value.shape, dtype=value.dtype) for name, value in given.items()}
