"""A static cache in buffers of the program: the tokens of transformers, and no clean wrong answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from transformers import StaticCache

import fakexport as fe
from fakexport.deploy import LoadedProgram, open_program
from fakexport.exporting.capture.constants import LARGEST_STATE_BYTES
from tests.generation.agreement import NEW_TOKENS, eager, prompt
from tests.generation.families import NAMED

CAPACITY = 60


def kept(folder: Path, call: Any, **options: Any) -> ExportedProgram:
    options = {"max_cache_len": CAPACITY, **options}
    return fe.export(f"hf:{folder}", workload=call, cache_form="buffers", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mistral")


@pytest.fixture(scope="module")
def model(folder: Path) -> nn.Module:
    """Every layer has a window of 8 tokens."""
    return NAMED["mistral"].saved(folder)


@pytest.fixture(scope="module")
def programs(model: nn.Module, folder: Path) -> dict[str, ExportedProgram]:
    return {call: kept(folder, call) for call in ("prefill", "decode")}


@pytest.fixture(scope="module")
def bound(programs: dict[str, ExportedProgram], folder: Path) -> fe.Bundle:
    """From its archive, without weights at first."""
    fe.save_bundle(programs, folder / "model.pt2")
    return fe.bind(fe.load_bundle(folder / "model.pt2"), folder)


def steps(program: Any, ids: torch.Tensor) -> list[int]:
    """Tokens of one program that reads the prompt, and then one token after another."""
    tokens: list[int] = []
    place = 0
    while len(tokens) < NEW_TOKENS:
        returned = program({"input_ids": ids, "cache_position": torch.tensor([place])})
        place += ids.shape[1]
        tokens.append(int(returned["logits"][0, -1].argmax()))
        ids = torch.tensor([tokens[-1:]])
    return tokens


@pytest.mark.parametrize("length", [21, 5, 1])
def test_the_tokens_are_those_of_transformers(length: int, bound: fe.Bundle, model: nn.Module) -> None:
    """Prompts longer than the window, and after a longer one has left its keys."""
    ids = prompt(length)

    found = fe.Generator(bound)(ids, max_new_tokens=NEW_TOKENS)

    assert [list(found.tokens[0])] == eager(model, ids)


def test_each_step_is_that_of_a_static_cache(bound: fe.Bundle, model: Any) -> None:
    """That of eager mode is cut to the window."""
    cache = StaticCache(config=model.config, max_cache_len=CAPACITY + 1)
    program = LoadedProgram(bound["prefill"])
    place = 0
    for ids in (prompt(9), prompt(1), prompt(1, seed=1), prompt(4)):
        inputs = {"input_ids": ids, "cache_position": torch.tensor([place])}
        place += ids.shape[1]
        with torch.no_grad():
            expected = model(ids, past_key_values=cache).logits[:, -1:]

        assert torch.allclose(program(inputs)["logits"], expected, atol=1e-6)


def test_a_bound_bundle_is_saved_with_one_cache(bound: fe.Bundle, model: nn.Module, folder: Path) -> None:
    fe.save_bundle(bound, folder / "bound.pt2")
    ids = prompt(6)

    found = fe.Generator(fe.load_bundle(folder / "bound.pt2"))(ids, max_new_tokens=NEW_TOKENS)

    assert [list(found.tokens[0])] == eager(model, ids)


def test_what_is_bound_twice_has_two_caches_of_zeros(
    programs: dict[str, ExportedProgram], folder: Path
) -> None:
    first, second = (fe.bind(fe.Bundle(programs), folder) for _ in range(2))
    fe.Generator(first)(prompt(5), max_new_tokens=4)

    for name, kind in programs["decode"].graph_signature.inputs_to_buffers.items():
        if "cache" in name:
            assert first["decode"].constants[kind].any()
            assert first["decode"].constants[kind] is first["prefill"].constants[kind]
            assert not second["decode"].constants[kind].any()


def test_programs_that_do_not_share_their_cache_are_refused(
    programs: dict[str, ExportedProgram], folder: Path
) -> None:
    apart = fe.Bundle({call: fe.bind(program, folder) for call, program in programs.items()})

    with pytest.raises(fe.DeployError, match="each have their own copy of the cache key_cache_0"):
        fe.Generator(apart)


def test_tokens_beyond_the_last_place_are_refused(bound: fe.Bundle) -> None:
    with pytest.raises(
        fe.InputMismatchError, match="62 tokens in total, but the static cache has room for 60"
    ):
        fe.Generator(bound)(prompt(40), max_new_tokens=22)
    inputs = {"input_ids": prompt(5), "cache_position": torch.tensor([CAPACITY - 2])}
    with pytest.raises(fe.DeployError, match=r"IndexError: .*index 61 is out of bounds"):
        fe.run(bound["prefill"], inputs)
    with pytest.raises(fe.InputMismatchError, match="do not pass cache_position: generate computes it"):
        fe.Generator(bound)(prompt(4), max_new_tokens=2, inputs={"cache_position": torch.tensor([1])})


def test_prompts_of_one_batch_are_read_one_after_the_other(bound: fe.Bundle, model: nn.Module) -> None:
    rows = [prompt(length)[0].tolist() for length in (3, 11)]

    found = fe.Generator(bound)(rows, max_new_tokens=NEW_TOKENS)

    assert [list(row) for row in found.tokens] == [eager(model, torch.tensor([row]))[0] for row in rows]


@pytest.mark.parametrize("target", [pytest.param("cpu", marks=pytest.mark.slow), "H100"])
def test_a_large_cache_takes_no_memory_before_it_is_bound(
    target: str, model: nn.Module, folder: Path, tmp_path: Path
) -> None:
    program = kept(folder, "decode", max_cache_len=2**14, target=target)
    size = program.constants["key_cache_0"].nbytes
    fe.save(program, tmp_path / "model.pt2")
    loaded = fe.load(tmp_path / "model.pt2")
    (point,) = fe.plan(tmp_path / "model.pt2").points

    bound = fe.bind(loaded, folder, devices="cpu")

    assert size > LARGEST_STATE_BYTES > (tmp_path / "model.pt2").stat().st_size
    assert all(fe.is_fake(held.constants["key_cache_0"]) for held in (program, loaded))
    assert 0 <= point.devices[0].state - 4 * size < 100
    weights = sum(held.nbytes for held in program.state_dict.values())
    assert 0 <= point.devices[0].weights - weights < 100  # With the rotary frequencies.
    cache = bound.constants["key_cache_0"]
    assert (cache.stride(), cache.count_nonzero().item()) == (program.constants["key_cache_0"].stride(), 0)
    fe.run(bound, {"input_ids": torch.tensor([[7]]), "cache_position": torch.tensor([2**14])})
    assert cache[:, :, 2**14].any()


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mamba", "MambaForCausalLM in buffers because the cache has a LinearAttentionLayer, not only keys"),
        ("t5", "T5ForConditionalGeneration has an encoder"),
    ],
)
def test_a_cache_that_is_more_than_keys_and_values_is_refused(
    family: str, reason: str, tmp_path: Path
) -> None:
    NAMED[family].saved(tmp_path)

    with pytest.raises(fe.SourceError, match=f"{reason}.*: remove --cache-form buffers"):
        kept(tmp_path, "decode")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workload": "decode"}, "buffers requires a static cache: add --workload .* and --max-cache-len N"),
        ({"max_cache_len": 40}, "buffers requires a static cache"),
        (
            {"workload": "decode", "max_cache_len": 40, "dynamic_shapes": ["input_ids.0=1..4"]},
            "size is always 1",
        ),
        (
            {"workload": "decode", "max_cache_len": 40, "cache_form": "state"},
            "inputs or buffers, not 'state'",
        ),
    ],
)
def test_a_cache_form_that_does_not_apply_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fe.export("hf:llama", **{"cache_form": "buffers", **options})


@pytest.mark.parametrize(
    ("form", "weights"),
    [
        pytest.param("aoti", "inside", marks=pytest.mark.exhaustive),
        pytest.param("aoti", "beside", marks=pytest.mark.exhaustive),
        pytest.param("executorch", None, marks=pytest.mark.slow),
    ],
)
def test_compiled_forms_keep_the_cache(
    form: Any, weights: Any, bound: fe.Bundle, model: nn.Module, tmp_path: Path
) -> None:
    if form == "executorch":
        pytest.importorskip("executorch")
    path = tmp_path / ("model.pte" if form == "executorch" else "model.pt2")
    fe.compile(bound["prefill"], path, to=form, weights=weights)

    opened = open_program(path, trust=True)

    for length in (21, 5):
        assert [steps(opened, prompt(length))] == eager(model, prompt(length))
