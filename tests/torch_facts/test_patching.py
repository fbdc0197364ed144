"""Attributes of torch's modules and classes can be set and put back as the very same objects."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.patching import Patches


@pytest.mark.parametrize(
    ("owner", "name"),
    [(torch.cuda, "is_available"), (FakeTensorMode, "avoid_device_init"), (torch.version, "cuda")],
)
def test_the_original_object_comes_back(owner, name):
    before = vars(owner)[name]

    with Patches({(owner, name): "replaced"}):
        inside = vars(owner)[name]

    assert inside == "replaced"
    assert vars(owner)[name] is before


def test_it_comes_back_when_the_block_raises():
    before = torch.cuda.is_available

    with pytest.raises(KeyError), Patches({(torch.cuda, "is_available"): "replaced"}):
        raise KeyError

    assert torch.cuda.is_available is before


def test_a_name_that_was_not_there_goes_again():
    with Patches({(torch.version, "not_there"): 1}):
        assert torch.version.not_there == 1

    assert not hasattr(torch.version, "not_there")


def test_an_inherited_name_is_not_left_on_the_subclass():
    class Below(FakeTensorMode):
        pass

    with Patches({(Below, "dispatch"): None}):
        assert Below.dispatch is None

    assert "dispatch" not in vars(Below)
    assert Below.dispatch is FakeTensorMode.dispatch
