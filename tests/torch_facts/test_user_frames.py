"""What `_torch/user_frames.py` relies on."""

from __future__ import annotations

import inspect

from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files

from fakexport._torch import user_frames


def test_torch_keeps_one_set_of_its_own_files():
    assert uninteresting_files() is uninteresting_files()
    assert isinstance(uninteresting_files(), set)
    assert symbolic_shapes.__file__ in uninteresting_files()


def test_our_files_are_in_that_set_inside_and_not_afterwards():
    before = set(uninteresting_files())

    with user_frames.name_user_frames(lambda path: True):
        assert user_frames.__file__ in uninteresting_files()

    assert uninteresting_files() == before


def test_the_stack_summary_takes_the_place_that_it_is_given():
    parameters = inspect.signature(ShapeEnv._get_stack_summary).parameters
    assert list(parameters) == ["self", "is_debug", "framework_loc"]

    with user_frames.name_user_frames(lambda path: path == __file__):
        place, _ = ShapeEnv()._get_stack_summary()

    assert place.framework_loc.filename == __file__
    assert place.framework_loc.name == "test_the_stack_summary_takes_the_place_that_it_is_given"
