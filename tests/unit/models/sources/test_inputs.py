"""Inputs made from specs, checked against the module that takes them."""

from typing import TypedDict, Unpack

import pytest
import torch
from torch import nn

from fakexport.models.sources import ExampleInputs, SourceError, inputs_from_specs, parse_input_spec


class Net(nn.Module):
    def forward(self, input_ids, attention_mask=None, *, scale=None):
        return input_ids


class Flags(TypedDict, total=False):
    output_attentions: bool


class TypedKeywords(nn.Module):
    def forward(self, input_ids, **kwargs: Unpack[Flags]):
        return input_ids


class AnyKeywords(nn.Module):
    def forward(self, input_ids, bias=None, **kwargs):
        return input_ids


class PositionalOnly(nn.Module):
    def forward(self, x, y, /):
        return x + y


def inputs(module, *texts, **options):
    return inputs_from_specs([parse_input_spec(text) for text in texts], module, "cpu", **options)


def message_of(module, *texts, **options) -> str:
    with pytest.raises(SourceError) as caught:
        inputs(module, *texts, **options)
    return str(caught.value)


def test_inputs_are_keywords_in_the_order_of_forward():
    made = inputs(Net(), "scale=float16[]", "attention_mask=int64[2,3]", "input_ids=int32[2,3]")

    assert made.args == ()
    assert list(made.kwargs) == ["input_ids", "attention_mask", "scale"]
    assert made.kwargs["input_ids"].dtype is torch.int32
    assert made.kwargs["attention_mask"].shape == (2, 3)
    assert made.kwargs["scale"].dim() == 0


def test_masks_let_everything_through():
    made = inputs(Net(), "input_ids=int64[2]", "attention_mask=int64[2]")

    assert made.kwargs["input_ids"].tolist() == [0, 0]
    assert made.kwargs["attention_mask"].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "bfloat16", "complex64", "float8_e4m3fn", "float64"])
def test_every_dtype_can_be_made(dtype):
    made = inputs(Net(), f"input_ids={dtype}[3]")

    assert made.kwargs["input_ids"].dtype is getattr(torch, dtype)


def test_inputs_stand_on_the_device():
    made = inputs_from_specs([parse_input_spec("input_ids=int64[1]")], Net(), "meta")

    assert made.kwargs["input_ids"].is_meta


def test_positional_only_inputs_are_given_by_position():
    made = inputs(PositionalOnly(), "y=float32[2]", "x=float64[2]")

    assert [tensor.dtype for tensor in made.args] == [torch.float64, torch.float32]
    assert made.kwargs == {}


def test_a_wrong_name_is_answered_with_the_nearest():
    message = message_of(Net(), "input_idz=int64[1]")

    assert message == "the forward of Net has no input 'input_idz': did you mean input_ids?"


def test_a_wrong_name_unlike_any_is_answered_with_all():
    message = message_of(Net(), "zzz=int64[1]")

    assert message == "the forward of Net has no input 'zzz': it has attention_mask, input_ids, scale"


def test_typed_keywords_take_their_names_only():
    assert (
        "output_attentions"
        in inputs(TypedKeywords(), "input_ids=int64[1]", "output_attentions=bool[1]").kwargs
    )
    assert "has no input 'pixels'" in message_of(TypedKeywords(), "input_ids=int64[1]", "pixels=int64[1]")


def test_untyped_keywords_take_any_name_that_is_not_misspelt():
    assert "pixels" in inputs(AnyKeywords(), "input_ids=int64[1]", "pixels=int64[1]").kwargs
    assert "did you mean bias?" in message_of(AnyKeywords(), "input_ids=int64[1]", "biass=int64[1]")


def test_a_missing_required_input_is_named():
    message = message_of(Net(), "attention_mask=int64[1]")

    assert message == "the forward of Net also requires input_ids: add --input input_ids=DTYPE[DIMS]"


def test_an_input_named_twice_is_an_error():
    assert message_of(Net(), "input_ids=int64[1]", "input_ids=int64[2]") == "input 'input_ids' is given twice"


@pytest.mark.parametrize(
    "expected",
    [ExampleInputs((torch.ones(2, 16),)), ExampleInputs(kwargs={"input_ids": torch.ones(2, 16)})],
    ids=["positional", "keyword"],
)
def test_another_rank_than_the_expected_one_is_an_error(expected):
    message = message_of(Net(), "input_ids=int64[16]", expected=expected)

    assert message == "input 'input_ids' has 1 dimensions, but Net expects 2, such as [2, 16]"


def test_other_sizes_than_the_expected_ones_are_fine():
    made = inputs(Net(), "input_ids=int64[4,99]", expected=ExampleInputs((torch.ones(2, 16),)))

    assert made.kwargs["input_ids"].shape == (4, 99)
