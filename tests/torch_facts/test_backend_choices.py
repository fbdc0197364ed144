"""Whatever chooses kernels by a public name calls one of a few functions of C++."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fakexport._torch.backend_choices import backend_choices_watched


def enters(context):
    with context:
        pass


CHOICES = {
    "sdpa_kernel": lambda: enters(sdpa_kernel(SDPBackend.MATH)),
    "enable_flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(torch.backends.cuda.flash_sdp_enabled()),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision(
        torch.get_float32_matmul_precision()
    ),
    "__setattr__": lambda: setattr(
        torch.backends.cuda.matmul, "allow_tf32", torch.backends.cuda.matmul.allow_tf32
    ),
    "flags": lambda: enters(torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_told_with_the_frame_of_torch_that_makes_it(name):
    told = []

    with backend_choices_watched(told.append):
        CHOICES[name]()

    callers = []
    for frame in told:
        while frame is not None and frame.f_globals["__name__"].partition(".")[0] in ("torch", "contextlib"):
            callers.append(frame.f_code.co_name)
            frame = frame.f_back
    assert name in callers
