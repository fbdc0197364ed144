"""What `fakexport._torch.cpu_kernels` relies on: torch tells which dtypes oneDNN computes."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.cpu_kernels import is_computed_by_onednn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_convolution_calls_onednn_where_the_answer_says_so(dtype: torch.dtype) -> None:
    if dtype is torch.float16 and is_computed_by_onednn(dtype):
        pytest.skip("float16 is computed by oneDNN without gradients only")
    tensor, weight = torch.ones(2, 16, 12, 12, dtype=dtype), torch.ones(16, 16, 3, 3, dtype=dtype)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        torch.conv2d(tensor, weight)

    names = {event.name for event in recorded.events()}
    assert ("aten::mkldnn_convolution" in names) is is_computed_by_onednn(dtype)
