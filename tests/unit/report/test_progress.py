"""What `on_progress` gets."""

import pytest

from fakexport.report import Progress


@pytest.mark.parametrize("index", [0, 4])
def test_the_target_is_one_of_those_that_there_are(index):
    with pytest.raises(ValueError, match="target_index counts from 1 to 3"):
        Progress(index, 3, "cpu", "build")


def test_an_unknown_step_is_refused():
    with pytest.raises(ValueError, match="step must be one of build, trace, explore, analyse, compare"):
        Progress(1, 1, "cpu", "dance")
