"""torch's default dtype is global to the process, so a block restores it."""

import threading

import pytest
import torch

from fakexport._torch.default_dtype import default_dtype


def test_the_default_dtype_is_one_per_process():
    seen = []

    with default_dtype(torch.float64):
        thread = threading.Thread(target=lambda: seen.append(torch.get_default_dtype()))
        thread.start()
        thread.join()

    assert seen == [torch.float64]


@pytest.mark.parametrize(("dtype", "within"), [(torch.bfloat16, torch.bfloat16), (None, torch.float32)])
def test_a_block_that_fails_restores_the_default_dtype(dtype, within):
    def build():
        seen.append(torch.zeros(1).dtype)
        torch.set_default_dtype(torch.float64)
        raise ZeroDivisionError

    seen = []
    with pytest.raises(ZeroDivisionError), default_dtype(dtype):
        build()

    assert seen == [within]
    assert torch.get_default_dtype() is torch.float32
