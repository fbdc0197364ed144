"""Which symbol a batch, a context and a named size are, and what is refused."""

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.planning.memory import ProgramSizes, SizeRequest, parse_bounds, parse_dims


class Decoder(nn.Module):
    """Reads tokens, a mask over the cache and them, and two caches, of which one keeps a window."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, input_ids, attention_mask, past_key_values):
        x = self.embed(input_ids)
        full, window = past_key_values
        return x.sum() + attention_mask.sum(), (torch.cat([full, full[:, :, :1]], 2), window + 1)


@pytest.fixture(scope="module")
def decoder():
    inputs = {
        "input_ids": torch.zeros(2, 1, dtype=torch.long),
        "attention_mask": torch.ones(2, 40, dtype=torch.long),
        "past_key_values": (torch.zeros(2, 3, 39, 4), torch.zeros(2, 3, 8, 4)),
    }
    return ProgramSizes(fe.export(Decoder, (), inputs, dynamic_shapes="auto"))


@pytest.fixture(scope="module")
def image():
    def factory():
        return nn.Conv2d(3, 4, 3), (torch.zeros(2, 3, 32, 48),)

    return ProgramSizes(fe.export(factory, dynamic_shapes="auto"))


def sizes_of(found, request):
    values = found.chosen(request).values
    return {str(dim): dim.size if isinstance(dim.size, int) else values[dim.size.name] for dim in found.dims}


def test_a_batch_is_dimension_0_of_every_input_and_a_context_the_tokens_with_the_cache(decoder):
    sizes = sizes_of(decoder, SizeRequest(batch=5, context=100))

    assert sizes["input_ids.0"] == sizes["attention_mask.0"] == sizes["past_key_values_0.0"] == 5
    assert (sizes["input_ids.1"], sizes["attention_mask.1"], sizes["past_key_values_0.2"]) == (1, 100, 99)


def test_a_cache_that_was_shorter_in_the_example_keeps_a_window(decoder):
    assert sizes_of(decoder, SizeRequest(context=100))["past_key_values_1.2"] == 8
    assert sizes_of(decoder, SizeRequest(context=6))["past_key_values_1.2"] == 5


def test_a_first_dimension_that_is_the_context_is_no_batch():
    class Positions(nn.Module):
        def forward(self, input_ids, cache_position):
            return input_ids + cache_position

    inputs = (torch.zeros(2, 12, dtype=torch.long), torch.zeros(12, dtype=torch.long))
    found = ProgramSizes(fe.export(lambda: (Positions(), inputs), dynamic_shapes="auto"))

    sizes = sizes_of(found, SizeRequest(batch=5))

    assert sizes == {"input_ids.0": 5, "input_ids.1": 12, "cache_position.0": 12}


def test_a_batch_is_refused_where_a_first_dimension_may_be_a_length():
    class Shifted(nn.Module):
        def forward(self, x, table):
            return x + table

    inputs = (torch.zeros(2, 12, 3), torch.zeros(12, 3))
    found = ProgramSizes(fe.export(lambda: (Shifted(), inputs), dynamic_shapes=["x.0=2..64", "x.1=2..64"]))

    with pytest.raises(ValueError, match=r"--batch 5: table.0 is also x.1, so it may not be a batch"):
        found.chosen(SizeRequest(batch=5))
    assert sizes_of(found, SizeRequest(dims={("x", 0): 5}))["table.0"] == 12


def test_where_every_cache_keeps_a_window_the_mask_tells_it():
    inputs = {
        "input_ids": torch.zeros(2, 1, dtype=torch.long),
        "attention_mask": torch.ones(2, 40, dtype=torch.long),
        "past_key_values": (torch.zeros(2, 3, 8, 4), torch.zeros(2, 3, 8, 4)),
    }
    windows = ProgramSizes(fe.export(Decoder, (), inputs, dynamic_shapes="auto"))

    for context, kept in ((6, 5), (9, 8), (10, 8), (1000, 8)):
        sizes = sizes_of(windows, SizeRequest(context=context))
        assert (sizes["attention_mask.1"], sizes["past_key_values_0.2"]) == (context, kept)
        assert sizes["past_key_values_1.2"] == kept


def test_a_mask_tells_no_window_where_the_new_tokens_are_not_known():
    class Embedded(Decoder):
        def forward(self, hidden, attention_mask, past_key_values):
            (full, other), total = past_key_values, attention_mask.sum()
            return hidden.sum() + total, (torch.cat([full, full[:, :, :1]], 2), other + 1)

    inputs = {
        "hidden": torch.zeros(2, 1, 4),
        "attention_mask": torch.ones(2, 40, dtype=torch.long),
        "past_key_values": (torch.zeros(2, 3, 39, 4), torch.zeros(2, 3, 39, 4)),
    }
    embedded = ProgramSizes(fe.export(Embedded, (), inputs, dynamic_shapes="auto"))

    sizes = sizes_of(embedded, SizeRequest(context=100))
    assert sizes["past_key_values_0.2"] == sizes["past_key_values_1.2"] == 100


def test_a_context_is_refused_where_an_encoder_and_a_decoder_have_one_each():
    class Both(Decoder):
        def forward(self, decoder_input_ids, attention_mask, past_key_values):
            return super().forward(decoder_input_ids, attention_mask, past_key_values)

    inputs = {
        "decoder_input_ids": torch.zeros(2, 1, dtype=torch.long),
        "attention_mask": torch.ones(2, 40, dtype=torch.long),
        "past_key_values": (torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 40, 4)),
    }
    both = ProgramSizes(fe.export(Both, (), inputs, dynamic_shapes="auto"))

    with pytest.raises(
        ValueError, match=r"have separate contexts \(past_key_values_0.2, past_key_values_1.2\)"
    ):
        both.chosen(SizeRequest(context=100))


@pytest.mark.parametrize(("context", "windows"), [(100, {"past_key_values_1.2": 8}), (40, {}), (6, {})])
def test_a_window_is_named_where_it_is_assumed(decoder, context, windows):
    """Not where the sizes are those of the example, and not where the context is within the window."""
    found = decoder.chosen(SizeRequest(batch=5, context=context)).windows

    assert {str(dim): size for dim, size in found} == windows


class Compressing(nn.Module):
    """Keeps a window of tokens, and an entry for every fourth token, as DeepSeek-V4 does."""

    def forward(self, input_ids, attention_mask, past_key_values):
        window, compressed = past_key_values
        return input_ids + attention_mask.sum(), window + 1, compressed + 1


def test_a_context_does_not_tell_the_size_of_a_compressed_cache():
    inputs = {
        "input_ids": torch.zeros(2, 1, dtype=torch.long),
        "attention_mask": torch.ones(2, 40, dtype=torch.long),
        "past_key_values": (torch.zeros(2, 3, 7, 4), torch.zeros(2, 9, 4)),
    }
    sizes = ProgramSizes(fe.export(Compressing, (), inputs, dynamic_shapes="auto"))

    with pytest.raises(ValueError, match=r"number of entries in past_key_values_1.1 is unknown for this"):
        sizes.chosen(SizeRequest(context=100))
    chosen = sizes.chosen(
        SizeRequest(context=100, dims={("past_key_values_1", 1): 25, ("past_key_values_1", 2): 4})
    )
    assert {str(dim) for dim, _ in chosen.windows} == {"past_key_values_0.2"}
    assert sizes.chosen(SizeRequest(batch=5)).context == 40
    assert sizes.chosen(SizeRequest(context=40)).context == 40


def test_a_compressed_cache_next_to_one_of_all_tokens_is_not_known_either():
    inputs = {
        "input_ids": torch.zeros(2, 1, dtype=torch.long),
        "attention_mask": torch.ones(2, 40, dtype=torch.long),
        "past_key_values": (torch.zeros(2, 3, 39, 4), torch.zeros(2, 9, 4)),
    }
    sizes = ProgramSizes(fe.export(Compressing, (), inputs, dynamic_shapes="auto"))

    with pytest.raises(ValueError, match=r"number of entries in past_key_values_1.1 is unknown for this"):
        sizes.chosen(SizeRequest(context=100))


def test_what_was_chosen_is_told_in_the_words_of_the_question(decoder):
    chosen = decoder.chosen(SizeRequest(batch=5, context=100))

    assert (chosen.batch, chosen.context) == (5, 100)
    assert {dim.role for dim, _ in chosen.as_in_example} == {""}


def test_sizes_that_are_not_asked_for_are_those_of_the_example(image):
    chosen = image.chosen(SizeRequest(dims=parse_dims(["input.2=64"])))

    assert {str(dim): size for dim, size in chosen.as_in_example} == {"input.0": 2, "input.3": 48}
    assert chosen.context is None


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (SizeRequest(batch=1), "input.0 = 1 is outside the range that the program accepts: 2.."),
        (SizeRequest(context=7), "--context 7: the program has no text input; use --size"),
        (SizeRequest(dims={("input", 1): 4}), "input.1 is 3 in this program, not 4"),
        (
            SizeRequest(dims={("x", 0): 4}),
            "--size x.0: the program has no such input dimension; it has input.0",
        ),
        (
            SizeRequest(bounds={"u0": 4}),
            "--bound u0: the program has no such data-dependent size; it has none",
        ),
    ],
)
def test_a_size_that_the_program_does_not_accept_is_refused_in_one_line(image, request_, words):
    with pytest.raises(fe.InvalidValue) as refused:
        image.chosen(request_)

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_fixed_size_is_accepted_if_it_is_the_one_that_is_asked_for():
    def factory():
        return nn.Embedding(10, 4), (torch.zeros(2, 7, dtype=torch.long),)

    found = ProgramSizes(fe.export(factory))

    assert found.chosen(SizeRequest(batch=2, context=7)).context == 7
    with pytest.raises(fe.InvalidValue, match=r"input\.1 is 7 in this program, not 8"):
        found.chosen(SizeRequest(context=8))


class Several(nn.Module):
    """Reads new tokens and a cache, both of any length."""

    def forward(self, input_ids, past_key_values):
        return torch.cat([past_key_values, past_key_values[:, :, :1]], 2) + input_ids.sum()


def test_a_context_is_refused_where_new_tokens_and_the_cache_both_vary():
    inputs = {"input_ids": torch.zeros(2, 5, dtype=torch.long), "past_key_values": torch.zeros(2, 3, 7, 4)}
    found = ProgramSizes(fe.export(Several, (), inputs, dynamic_shapes="auto"))

    with pytest.raises(
        fe.InvalidValue,
        match=r"\(input_ids\.1\) and the cache \(past_key_values\.2\) both have dynamic sizes",
    ):
        found.chosen(SizeRequest(context=100))
    dims = {("input_ids", 1): 5, ("past_key_values", 2): 95}
    assert sizes_of(found, SizeRequest(dims=dims))["past_key_values.2"] == 95


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pixel_mask", torch.ones(2, 32, 48, dtype=torch.long)),
        ("bool_masked_pos", torch.ones(2, 32, dtype=torch.bool)),
        ("image_grid_thw", torch.ones(2, 3, dtype=torch.long)),
    ],
)
def test_a_picture_has_no_context(name, value):
    class Pictures(nn.Module):
        def forward(self, **inputs):
            return inputs[name] + 1

    found = ProgramSizes(fe.export(Pictures, (), {name: value}, dynamic_shapes="auto"))

    assert not found.has_role("context")
    assert found.chosen(SizeRequest(batch=4)).context is None


def test_a_dimension_that_depends_on_another_follows_it():
    class Pairs(nn.Module):
        def forward(self, pairs, single):
            return pairs[::2] + single

    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"pairs": {0: 2 * rows}, "single": {0: rows}}
    found = ProgramSizes(fe.export(Pairs, (torch.zeros(8, 3), torch.zeros(4, 3)), dynamic_shapes=shapes))

    chosen = found.chosen(SizeRequest(batch=16))

    assert chosen.batch == 16
    assert [chosen.valued(dim.size) for dim in found.dims] == [32, 3, 16, 3]
    with pytest.raises(fe.InvalidValue, match=r"pairs\.0 is 2\*\w+ in this program, not 8"):
        found.chosen(SizeRequest(dims={("pairs", 0): 8}))


class Chosen(nn.Module):
    def forward(self, x):
        return torch.nonzero(x)


def test_a_size_that_only_a_run_tells_needs_a_bound():
    found = ProgramSizes(fe.export(Chosen, (torch.ones(4, 4),), dynamic_shapes="auto"))

    with pytest.raises(
        fe.InvalidValue, match=r"the size u\d+ is known only at run time: set its maximum with --bound"
    ):
        found.chosen(SizeRequest())
    assert found.chosen(SizeRequest(bounds={"u0": 16})).values["u0"] == 16


@pytest.mark.parametrize("text", ["x", "x=3", "x.1", "x.1=-2", "x.a=2"])
def test_a_size_of_another_form_is_refused(text):
    with pytest.raises(fe.InvalidValue, match=r"write NAME\.DIM=N"):
        parse_dims([text])


def test_a_bound_of_another_form_is_refused():
    assert parse_bounds(["u0=5"]) == {"u0": 5}
    with pytest.raises(fe.InvalidValue, match="write SYMBOL=N"):
        parse_bounds(["s0=5"])


def test_a_size_without_a_range_needs_a_bound_as_well():
    program = fe.export(lambda: (nn.Conv2d(3, 4, 3), (torch.zeros(2, 3, 32, 48),)))
    found = ProgramSizes(program, needed=["s3", "u7"])

    with pytest.raises(fe.InvalidValue, match="the size u7 is known only at run time"):
        found.chosen(SizeRequest())
    assert found.chosen(SizeRequest(bounds={"u7": 9})).values == {"u7": 9}
