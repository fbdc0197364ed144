"""What no checkpoint contains is compared with what the constructor computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from fakexport import verify_buffers
from fakexport.error import InvalidType, InvalidValue

TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 32,
}


def llama(**settings: object) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**TINY, **settings)).eval()


def left_as_memory_was(model: nn.Module) -> nn.Module:
    """What `to_empty` does after a construction on the meta device, with garbage that is surely there."""
    empty = model.to("meta").to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.fill_(77)
    return empty


class Block(nn.Module):
    """As in torchtitan: the constructor computes frequencies, and so should `init_weights`."""

    def __init__(self, args: dict[str, int]) -> None:
        super().__init__()
        self.args = args
        self.proj = nn.Linear(args["dim"], args["dim"])
        self.register_buffer("freqs_cis", self._frequencies(), persistent=False)
        mask = torch.full((args["length"], args["length"]), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("seen", torch.zeros(()))
        self.scale = torch.tensor(args["dim"]) ** -0.5
        self.offsets = [torch.arange(3), torch.ones(2)]

    def _frequencies(self) -> torch.Tensor:
        steps = torch.arange(0, self.args["dim"], 2).float()
        angles = torch.outer(torch.arange(self.args["length"]).float(), 1e4 ** -(steps / self.args["dim"]))
        return torch.polar(torch.ones_like(angles), angles)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x)


def block() -> Block:
    return Block({"dim": 8, "length": 4})


def test_a_right_model_has_nothing_wrong():
    for model in (llama(), block(), llama().to(torch.bfloat16), block().half(), llama().double()):
        report = verify_buffers(model)

        assert report.is_right, str(report)
        assert not report.unchecked
        assert report.right


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_frequencies_that_to_empty_left_are_wrong_and_repaired(dtype):
    right = llama().to(dtype)
    model = left_as_memory_was(llama().to(dtype))
    model.load_state_dict(right.state_dict())
    ids = torch.arange(8)[None]

    report = verify_buffers(model)

    assert {found.name for found in report.wrong} == {
        "model.rotary_emb.inv_freq",
        "model.rotary_emb.original_inv_freq",
    }
    assert all(found.difference > 70 for found in report.wrong)
    assert all(found.span.path.endswith("modeling_llama.py") for found in report.wrong)
    assert not torch.equal(model(ids).logits, right(ids).logits)

    assert verify_buffers(model, repair=True).is_repaired

    assert torch.equal(model(ids).logits, right(ids).logits)
    assert verify_buffers(model).is_right


def test_masks_complex_frequencies_and_plain_tensors_are_found():
    model = left_as_memory_was(block())
    model.scale = torch.tensor(0.0)
    model.offsets[1] = torch.zeros(2)

    report = verify_buffers(model)

    assert [found.name for found in report.wrong] == ["freqs_cis", "mask", "scale", "offsets[1]"]
    assert report.right == ("offsets[0]",)
    assert {d.code for d in report.diagnostics} == {"FE920"}
    assert "test_verify_buffers.py" in str(report)
    verify_buffers(model, repair=True)
    expected = block()
    assert torch.equal(model.freqs_cis, expected.freqs_cis)
    assert torch.equal(model.mask, expected.mask)
    assert torch.equal(model.offsets[1], torch.ones(2))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_no_garbage_equals_a_right_value(value):
    model = block()
    model.freqs_cis[1, 1] = value

    (found,) = verify_buffers(model).wrong

    assert found.name == "freqs_cis"


def test_frequencies_that_were_rounded_to_bfloat16_are_wrong_in_float32():
    model = llama()
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.bfloat16().float()

    (found,) = verify_buffers(model).wrong

    assert found.name == "model.rotary_emb.inv_freq"


def test_a_tensor_on_the_meta_device_is_wrong_and_gets_its_data():
    model = block()
    model.mask = model.mask.to("meta")

    (found,) = verify_buffers(model, repair=True).wrong

    assert found.fault == "it is on the meta device and has no data"
    assert torch.equal(model.mask, block().mask)


def test_weights_and_persistent_buffers_are_not_looked_at():
    model = block()
    with torch.no_grad():
        model.seen.fill_(5)
        model.proj.weight.fill_(float("nan"))

    report = verify_buffers(model)

    assert report.is_right
    assert "seen" not in report.right


def test_the_flat_weights_of_a_recurrent_layer_are_weights():
    report = verify_buffers(nn.LSTM(4, 4), lambda: nn.LSTM(4, 4))

    assert (report.right, report.wrong, report.unchecked) == ((), (), ())


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("noise", torch.randn(4), persistent=False)
        self.register_buffer("norm", self.linear.weight.detach().norm(dim=0), persistent=False)
        self.register_buffer("length", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("garbage", torch.zeros(2), persistent=False)

    def _grow(self, x: torch.Tensor) -> None:
        self.length += x.shape[0]
        self.garbage[0] = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._grow(x)
        self.cache = x
        return self.linear(x) + self.noise


def test_what_the_code_does_not_determine_is_neither_right_nor_wrong():
    torch.manual_seed(0)
    model = Drawn()
    model(torch.ones(3, 4))

    report = verify_buffers(model)

    assert {found.name: found.reason for found in report.unchecked} == {
        "noise": "it depends on aten.randn.default, which draws random numbers without a seed",
        "norm": "it is computed from the parameter linear.weight, which aten.linalg_vector_norm.default "
        "reads",
        "length": "forward changes it",
        "garbage": "forward changes it",
        "cache": "the constructor does not create it",
    }
    assert report.right == ()
    assert report.wrong == ()


def test_what_forward_changes_is_wrong_where_it_is_not_a_number():
    model = Drawn()
    model.garbage.fill_(float("nan"))

    (found,) = verify_buffers(model).wrong

    assert found.name == "garbage"


def test_frequencies_that_transformers_scales_for_long_inputs_are_not_wrong():
    model = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with torch.no_grad():
        model(torch.zeros(1, 48, dtype=torch.int64))

    report = verify_buffers(model)

    assert report.is_right, str(report)
    assert report.right == ("model.rotary_emb.original_inv_freq",)
    assert "forward changes it" in [found.reason for found in report.unchecked]


def test_what_a_constructor_draws_from_a_seed_of_its_own_is_checked():
    class Seeded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.signs = torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(3))

    state, model = torch.get_rng_state(), Seeded()

    assert verify_buffers(model).right == ("signs",)
    assert torch.equal(torch.get_rng_state(), state)
    model.signs = 1 - model.signs
    assert [found.name for found in verify_buffers(model).wrong] == ["signs"]


class Doubled(nn.Module):
    """Keeps something else than the argument under its name."""

    def __init__(self, base: float) -> None:
        super().__init__()
        self.base = 2 * base
        self.register_buffer("scale", torch.full((2,), base), persistent=False)


def test_an_argument_that_is_kept_as_another_value_builds_another_model() -> None:
    model = Doubled(3.0)

    with pytest.raises(InvalidValue, match="does not store its constructor argument base unchanged"):
        verify_buffers(model, repair=True)

    assert model.scale.tolist() == [3.0, 3.0]
    assert not verify_buffers(model, lambda: Doubled(3.0)).wrong


class Sized(nn.Module):
    def __init__(self, theta: float = 10.0, *, shared: object = None) -> None:
        super().__init__()
        self.steps = torch.arange(4) * theta


def test_a_model_that_does_not_keep_its_arguments_needs_a_reference():
    model = Sized(20.0)
    with pytest.raises(InvalidValue, match="does not store the arguments of its constructor: pass"):
        verify_buffers(model)

    assert verify_buffers(model, lambda: Sized(20.0)).is_right
    assert verify_buffers(model, Sized(20.0)).is_right
    assert [found.name for found in verify_buffers(model, lambda: Sized(10.0)).wrong] == ["steps"]


def test_a_constructor_that_raises_is_one_line():
    def broken() -> nn.Module:
        raise KeyError("no")

    with pytest.raises(InvalidValue, match=r"broken: the model cannot be built again: KeyError: 'no'"):
        verify_buffers(block(), broken)
    with pytest.raises(InvalidType, match="expects a module, not str"):
        verify_buffers("model")


def test_a_tensor_with_two_names_is_repaired_once_for_both():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            table = torch.arange(4.0)
            self.register_buffer("a", table, persistent=False)
            self.register_buffer("b", table, persistent=False)

    model = Shared()
    model.a.fill_(9)

    verify_buffers(model, repair=True)

    assert model.a is model.b
    assert model.a.tolist() == [0, 1, 2, 3]
