"""The input that a user writes."""

import pytest
import torch

from fakexport.models.sources import InputSpec, SourceError, parse_input_spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("pixel_values=float32[1,3,224,224]", InputSpec("pixel_values", torch.float32, (1, 3, 224, 224))),
        ("input_ids=int64[2,16]", InputSpec("input_ids", torch.int64, (2, 16))),
        (" mask = bool [ 4 ] ", InputSpec("mask", torch.bool, (4,))),
        ("scale=bfloat16[]", InputSpec("scale", torch.bfloat16, ())),
        ("x=half[1]", InputSpec("x", torch.float16, (1,))),
        ("x=float8_e4m3fn[8,8]", InputSpec("x", torch.float8_e4m3fn, (8, 8))),
        ("z=complex64[3]", InputSpec("z", torch.complex64, (3,))),
    ],
)
def test_a_spec_is_read(text, spec):
    assert parse_input_spec(text) == spec


@pytest.mark.parametrize(
    "text", ["", "x", "x=float32", "float32[1,2]", "x=[1]", "a b=int64[1]", "x=int64[1][2]"]
)
def test_another_form_is_answered_with_the_form(text):
    with pytest.raises(SourceError) as caught:
        parse_input_spec(text)

    assert str(caught.value) == (
        f"input {text!r} does not have the form NAME=DTYPE[DIMS], as in pixel_values=float32[1,3,224,224]"
    )


@pytest.mark.parametrize("size", ["0", "-1", "2.5", "n", "", "٣", "9" * 5000])
def test_a_size_is_a_positive_whole_number(size):
    with pytest.raises(SourceError, match=f"'{size[:10]}.*' is not a size"):
        parse_input_spec(f"x=int64[2,{size}]")


def test_an_unknown_dtype_is_answered_with_the_nearest():
    with pytest.raises(SourceError, match=r"torch has no dtype 'flaot32': did you mean float32.*\?"):
        parse_input_spec("x=flaot32[1]")
