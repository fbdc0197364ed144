"""The size of a shard that the code uses as a number is rejected, or the result is that of eager mode."""

import importlib
import math

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import bind
from tests.lockstep import run_ranks

pytest.importorskip("transformers")

FEATURES, HEADS, TOKENS = 48, 4, 6
HEAD = FEATURES // HEADS


class Block(nn.Module):
    """A projection into sharded features, code between, and a projection back."""

    def __init__(self, between, features=FEATURES):
        super().__init__()
        self.up, self.down = nn.Linear(8, features), nn.Linear(features, 8)
        self.between, self.features = between, features

    def forward(self, x):
        return self.down(self.between(self, self.up(x)))


def heads_of(x):
    return x.unflatten(-1, (-1, HEAD)).transpose(-2, -3)


def merged(x):
    return x.transpose(-2, -3).flatten(-2)


def by_heads(block, x):
    heads = heads_of(x)
    return merged(heads / heads.shape[1])


def by_root(block, x):
    heads = heads_of(x)
    return merged(heads * (1 / math.sqrt(heads.size(-1) * heads.size(1))))


def by_scale_of_attention(block, x):
    q = heads_of(x)
    scale = 1 / math.sqrt(q.size(1) * q.size(-1))
    return merged(nn.functional.scaled_dot_product_attention(q, q, q, scale=scale))


def by_dropped_first_half(block, x):
    mask = torch.zeros(x.shape[-1])
    mask[: x.shape[-1] // 2] = 1
    return x * mask


def by_joined_masks(block, x):
    half = x.shape[-1] // 2
    return x * torch.cat([torch.zeros(half), torch.ones(half)])


def by_loop(block, x):
    for _ in range(x.shape[-1] // 12):
        x = torch.tanh(x)
    return x


WRONG = {
    "width": lambda block, x: x / x.shape[-1],
    "bound_module": lambda block, x: x * block.up.weight.shape[0],
    "heads": by_heads,
    "root": by_root,
    "scale_of_attention": by_scale_of_attention,
    "full": lambda block, x: x * torch.full((x.shape[-1],), 1 / x.shape[-1]),
    "new_full": lambda block, x: x + x.new_full(x.shape, float(x.shape[-1])),
    "constant_tensor": lambda block, x: x * torch.tensor(1.0 / x.shape[-1]),
    "list_of_sizes": lambda block, x: x * torch.tensor([x.shape[-1]]),
    "sum_of_ones": lambda block, x: x / torch.ones(x.shape[-1]).sum(),
    "length_of_range": lambda block, x: x / torch.arange(x.shape[-1]).max(),
    "elements": lambda block, x: x / x.numel(),
    "elements_of_weight": lambda block, x: x * block.up.weight.numel() ** 0.5,
    "stride": lambda block, x: x / x.stride(-2),
    "power": lambda block, x: x.abs() ** (1 / x.shape[-1]),
    "dropped_first_half": by_dropped_first_half,
    "joined_masks": by_joined_masks,
    "other_path": lambda block, x: x * 2 if x.shape[-1] < 30 else x * 3,
    "loop": by_loop,
    "chosen_function": lambda block, x: torch.relu(x) if block.up.weight.shape[0] % 48 else torch.tanh(x),
    "token_of_width": lambda block, x: x * x[:, x.shape[-1] % 48 // 24 : x.shape[-1] % 48 // 24 + 1],
    "clamp": lambda block, x: x.clamp(max=x.shape[-1] / 100),
    "integer_division": lambda block, x: x * ((x.shape[0] * x.shape[-1]) // 7),
    "random_width": lambda block, x: x * torch.rand(x.shape[-1]).mean(),
    "handwritten_mean": lambda block, x: (
        x
        * (heads_of(x).sum(-1, keepdim=True).transpose(-2, -3) / x.shape[-1])
        .repeat_interleave(HEAD, -1)
        .flatten(-2)
    ),
}


def by_head_size(block, x):
    heads = heads_of(x)
    return merged(heads / math.sqrt(heads.size(-1)))


def by_attention(block, x):
    q = heads_of(x)
    return merged(nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))


def by_mean_of_head(block, x):
    heads = heads_of(x)
    return merged(heads - heads.sum(-1, keepdim=True) / heads.shape[-1])


def by_a_key_of_all_heads(block, x):
    heads = heads_of(x)
    shared = torch.linspace(-1, 1, HEAD).expand(*heads.shape[:2], heads.shape[2], -1)
    keys = torch.empty(*heads.shape[:-1], 2 * HEAD)
    keys[..., :HEAD], keys[..., HEAD:] = heads, shared
    return merged((keys[..., :HEAD] * keys[..., HEAD:]).tanh())


RIGHT = {
    "head_size": by_head_size,
    "config": lambda block, x: x / block.features,
    "out_features": lambda block, x: x / block.up.out_features,
    "tokens": lambda block, x: x / x.shape[1],
    "filled_width": lambda block, x: x + torch.full((x.shape[-1],), 0.5),
    "reshape": lambda block, x: (
        x.view(x.shape[0], x.shape[1], x.shape[-1] // HEAD, HEAD).softmax(-1).view(x.shape)
    ),
    "folded_elements": lambda block, x: x / (x.numel() // x.shape[-1]),
    "attention": by_attention,
    "mean_of_head": by_mean_of_head,
    "expanded_ones": lambda block, x: x * torch.ones(1, x.shape[-1]).expand(x.shape[1], -1),
    "a_key_of_all_heads": by_a_key_of_all_heads,
    "equal_path": lambda block, x: x * 2 if x.shape[-1] > 10 else x * 3,
}
PLAN = {"up": "colwise", "down": "rowwise"}


def model_of(between):
    torch.manual_seed(0)
    return Block(between).eval()


def programs_of(between, ranks=2):
    def factory():
        return model_of(between), (torch.zeros(2, TOKENS, 8),)

    return [
        fe.export(
            factory,
            parallel=f"tp={ranks}",
            parallel_plan=PLAN,
            rank=rank,
            dynamic_shapes=["x.0=1..8", "x.1=2..64"],
        )
        for rank in range(ranks)
    ]


def both_results(programs, between):
    """Return what the ranks compute together, and what eager mode computes, at a size of its own."""
    model, x = model_of(between), torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return run_ranks([bind(program, model.state_dict()) for program in programs], x), model(x)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if at > 11 else ()) for at, name in enumerate(WRONG)]
)
def test_a_number_from_a_local_size_is_rejected(name):
    with pytest.raises(ValueError, match="unsharded model") as caught:
        programs_of(WRONG[name])

    assert (caught.value.span.path, caught.value.span.function) == (__file__, "forward")


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_number_from_a_local_size_changes_the_result(name, monkeypatch):
    """Without the check, the ranks compute other values than eager mode."""
    between = WRONG[name]
    capture = importlib.import_module("fakexport.exporting.capture.capture")
    for name in ("check_rank_layouts", "check_constants"):
        monkeypatch.setattr(capture, name, lambda *programs: None)

    results, expected = both_results(programs_of(between), between)

    assert results[0][0].shape == expected.shape
    assert not torch.allclose(results[0][0], expected, atol=1e-3)


def assert_equal_to_eager(between, ranks):
    results, expected = both_results(programs_of(between, ranks), between)
    for (result,) in results:
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("name", RIGHT)
def test_a_number_of_the_model_is_exported(name):
    assert_equal_to_eager(RIGHT[name], 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_rank_with_a_single_head(name):
    assert_equal_to_eager(RIGHT[name], HEADS)
