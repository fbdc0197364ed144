"""What transformers does to a checkpoint, written down and done again without it."""

from __future__ import annotations

import pytest
import torch

import fakexport as fe
from fakexport.archive.weights import BindError, recipes_of
from fakexport.archive.weights.expectation import Weight
from fakexport.archive.weights.layout import Conversion, ConversionFailed
from fakexport.archive.weights.recipe import OPERATORS, NotRecordable, by_recipes, recipe_of
from fakexport.exporting.program.program_facts import facts_of
from fakexport.files.documents.program_records import OPERATORS as WORDS
from fakexport.files.documents.program_records import Recipe, Step
from tests.known_facts import with_facts
from tests.unit.archive.weights.real_models import real_model


def only_moving(read):
    """Every way of moving elements that a recipe has a word for."""
    experts = torch.stack([read("a"), read("b")], dim=0).transpose(1, 2).contiguous()
    left, right = torch.chunk(experts.permute(2, 0, 1).reshape(3, 8), 2, dim=1)
    first, last = torch.split(right, [1, 2], dim=0)
    fused = torch.cat([left, first.unsqueeze(0).squeeze(0), last])
    return {"left": left, "fused": fused, "part": fused[1:3, 1:], "row": fused.t().select(1, 2).view(2, 2)}


def test_a_recipe_gives_what_the_conversion_gives():
    entries = {"a": torch.randn(3, 4), "b": torch.randn(3, 4)}
    shapes = {name: Weight(tuple(t.shape), t.dtype) for name, t in entries.items()}
    conversion = Conversion(("a", "b"), "left", only_moving, ("moving",))

    recipe = recipe_of(conversion, shapes)

    (again,) = by_recipes([recipe], ["a", "b"])
    found, expected = again.convert(entries.__getitem__), only_moving(entries.__getitem__)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "compute", [lambda t: t + 1, lambda t: t * 2, lambda t: t.to(torch.float16), lambda t: t[::2]]
)
def test_what_does_more_than_move_has_no_recipe(compute):
    conversion = Conversion(("a",), "w", lambda read: {"w": compute(read("a"))}, ("computing",))

    with pytest.raises(NotRecordable):
        recipe_of(conversion, {"a": Weight((4, 3), torch.float32)})


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([Step("select", (7,), (0, 0))], "conversion failed on"),
        ([Step("transpose", (0,), (5, 6))], "conversion failed on"),
        ([Step("reshape", (0,), (10**9, 10**9))], "conversion failed on"),
        ([Step("transpose", (0,), (1,))], "conversion failed on"),
        ([Step("cat", (0, 0), (0,))], "more elements than the entries have"),
        ([Step("stack", (0,) * 1000, (0,))], "more elements than the entries have"),
    ],
)
def test_a_recipe_that_does_not_fit_is_one_line(steps, message):
    recipe = Recipe(("a",), tuple(steps), (("w", 1),))
    (conversion,) = by_recipes([recipe], ["a"])

    with pytest.raises(ConversionFailed, match=message) as caught:
        conversion.convert(lambda name: torch.empty(4, 3, device="meta"))

    assert "\n" not in str(caught.value)


def test_every_word_means_something():
    assert OPERATORS.keys() == WORDS


def test_entries_that_no_recipe_names_are_weights_as_they_are():
    renamed = Recipe(("old",), (), (("new", 0),))
    lacking = Recipe(("a", "b"), (), (("c", 0),))

    conversions = by_recipes([renamed, lacking], ["old", "a", "plain"])

    targets = {conversion.entries: conversion.target for conversion in conversions}
    assert targets == {("old",): "new", ("a",): "a", ("plain",): "plain"}


def test_a_model_that_transformers_cannot_save_has_no_recipes(tmp_path):
    model = real_model("mixtral", tmp_path)
    program = fe.export(model.spec, target="cpu")
    for module in (facts_of(program).model, model.module):
        module.config.model_type = ["no", "type"]  # what the tables are looked up by

    with pytest.raises(TypeError):
        model.module.save_pretrained(tmp_path / "again")

    assert recipes_of(program) == ()


@pytest.mark.parametrize("model_type", ["mixtral", pytest.param("vit", marks=pytest.mark.slow)])
def test_a_loaded_program_binds_by_its_recipes(model_type, tmp_path):
    model = real_model(model_type, tmp_path)
    fe.save(model.program(), tmp_path / "model.pt2")
    (model.checkpoint / "config.json").unlink()  # transformers' own tables cannot be asked
    program = fe.load(tmp_path / "model.pt2")

    bound = fe.bind(program, model.checkpoint)

    expected = model.module.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in bound.state_dict.items())
    with pytest.raises(BindError, match="FE701"):
        fe.bind(with_facts(program, recipes=()), model.checkpoint)
