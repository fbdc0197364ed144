"""What `_torch/active_modes.py` relies on."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.active_modes import active_fake_mode


def test_the_innermost_fake_mode_is_the_active_one():
    outer, inner = FakeTensorMode(), FakeTensorMode()

    assert active_fake_mode() is None
    with outer:
        assert active_fake_mode() is outer
        with inner:
            assert active_fake_mode() is inner
        assert active_fake_mode() is outer
    assert active_fake_mode() is None
