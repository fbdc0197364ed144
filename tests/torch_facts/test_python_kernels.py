"""What `fakexport._torch.python_kernels` relies on."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fakexport._torch.fake_tensors import new_fake_mode, quiet_fake_mode
from fakexport._torch.python_kernels import python_kernels


def test_a_size_that_depends_on_data_can_be_padded_with_them_alone():
    mode = new_fake_mode()
    size = mode.shape_env.create_unbacked_symint()
    with mode:
        torch._check(size >= 0)
        table = torch.empty(3, 1, size)
    pad = torch.ops.aten.constant_pad_nd.default

    with mode, quiet_fake_mode(), pytest.raises(GuardOnDataDependentSymNode):
        pad(table, [0, 0, 1, 0])
    with mode, python_kernels():
        padded = pad(table, [0, 0, 1, 0])

    assert padded.shape == (3, 2, size)
