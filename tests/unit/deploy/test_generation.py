"""Generation with prefill and decode: next to transformers, and what would be a clean wrong answer."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from transformers.generation import TopKLogitsWarper, TopPLogitsWarper

import fakexport as fe
from fakexport.deploy.generation.sampling import Place, restricted
from fakexport.exporting.program import facts_of, keep_facts
from fakexport.files.documents import CallRecord, GenerationDefaults
from fakexport.models.sources import Workload, resolve
from fakexport.models.sources.generation.cache_slots import CacheLayout
from fakexport.models.sources.generation.generation_defaults import generation_defaults
from tests.architectures.architecture import Architecture
from tests.command_line import fakexport
from tests.generation.agreement import NEW_TOKENS, agreement, eager, exported, prompt
from tests.generation.families import NAMED
from tests.unit.models.sources.tiny_configs import TINY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> nn.Module:
    return NAMED["llama"].saved(folder)


@pytest.fixture(scope="module")
def unbound(model: nn.Module, folder: Path) -> fe.Bundle:
    """A bundle that takes any number of sequences."""
    return exported(folder, dynamic="auto")


@pytest.fixture(scope="module")
def bundle(unbound: fe.Bundle, folder: Path) -> fe.Bundle:
    """The same with its weights."""
    return fe.bind(unbound, folder)


@pytest.fixture(scope="module")
def half(model: nn.Module, folder: Path) -> ExportedProgram:
    """A decode in another dtype."""
    return fe.export(f"hf:{folder}", workload="decode", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def static(model: nn.Module, folder: Path) -> fe.Generator:
    """With a cache of 40 tokens."""
    calls: Any = ("prefill", "decode")
    programs = {call: fe.export(f"hf:{folder}", workload=call, max_cache_len=40) for call in calls}
    return fe.Generator(fe.bind(fe.Bundle(programs), folder))


@pytest.fixture(scope="module")
def generator(bundle: fe.Bundle) -> fe.Generator:
    return fe.Generator(bundle)


@pytest.fixture
def records(bundle: fe.Bundle) -> Iterator[dict[str, CallRecord]]:
    """The records of both programs; what a test makes of them is undone."""
    facts = {method: facts_of(bundle[method]) for method in bundle}
    yield {method: known.call for method, known in facts.items() if known.call is not None}
    for method, known in facts.items():
        keep_facts(bundle[method], known)


@contextmanager
def configured(model: Any, **settings: Any) -> Iterator[GenerationDefaults]:
    """Settings of the model's generation config, and what is recorded of them; undone afterwards."""
    before = copy.deepcopy(model.generation_config)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    try:
        yield generation_defaults(model)
    finally:
        model.generation_config = before


def recorded(bundle: fe.Bundle, method: str, **changes: Any) -> fe.Bundle:
    """The bundle, one of whose programs has another record."""
    known = facts_of(bundle[method])
    assert known.call is not None
    keep_facts(bundle[method], replace(known, call=replace(known.call, **changes)))
    return bundle


@pytest.mark.slow
def test_padded_prompts_of_one_batch_get_what_each_gets_alone(
    generator: fe.Generator, model: nn.Module
) -> None:
    prompts = [prompt(length, seed=length)[0].tolist() for length in (1, 4, 19)]

    found = generator(prompts, max_new_tokens=NEW_TOKENS)

    expected = [eager(model, torch.tensor([row]))[0] for row in prompts]
    assert [list(row) for row in found.tokens] == expected
    assert len({tuple(row) for row in expected}) == 3
    assert min(len(set(row)) for row in expected) > 2
    assert found.stops == ("length",) * 3


@pytest.mark.slow
def test_a_program_of_one_sequence_takes_several_one_after_the_other(
    folder: Path, generator: fe.Generator
) -> None:
    calls: Any = ("prefill", "decode")
    programs = {call: fe.export(f"hf:{folder}", workload=call) for call in calls}
    single = fe.Generator(fe.bind(fe.Bundle(programs), folder))
    prompts = [prompt(3)[0].tolist(), prompt(9)[0].tolist()]

    found = single(prompts, max_new_tokens=5)

    assert found == generator(prompts, max_new_tokens=5)


def test_a_sequence_that_ends_does_not_end_the_others(generator: fe.Generator, model: nn.Module) -> None:
    ids = prompt(5, batch=2)
    whole: Any = eager(model, ids)
    end = next(token for token in whole[0][2:] if token not in whole[1])

    found = generator(ids, max_new_tokens=NEW_TOKENS, eos=[end])

    assert list(found.tokens[0]) == whole[0][: whole[0].index(end) + 1]
    assert list(found.tokens[1]) == whole[1]
    assert found.stops == ("eos", "length")


def test_the_tokens_that_end_are_those_of_the_generation_config(
    bundle: fe.Bundle, records: dict[str, CallRecord], model: nn.Module
) -> None:
    ids = prompt(5)
    end = eager(model, ids)[0][4]
    defaults = GenerationDefaults(eos=(end,))

    found = fe.generate(recorded(bundle, "prefill", defaults=defaults), ids, max_new_tokens=NEW_TOKENS)
    without = fe.generate(bundle, ids, max_new_tokens=NEW_TOKENS, eos=())

    assert found.tokens[0][-1] == end
    assert len(found.tokens[0]) <= 5
    assert len(without.tokens[0]) == NEW_TOKENS


def test_more_tokens_than_positions_are_refused(generator: fe.Generator) -> None:
    generator(prompt(120), max_new_tokens=8)

    with pytest.raises(fe.InputMismatchError, match="129 tokens in total, but the model has 128 positions"):
        generator(prompt(120), max_new_tokens=9)


@pytest.mark.parametrize("length", [2, 5, 17])
def test_a_static_cache_writes_the_same_up_to_its_last_place(
    length: int, static: fe.Generator, generator: fe.Generator
) -> None:
    ids, most = prompt(length), 41 - length

    assert static(ids, max_new_tokens=most) == generator(ids, max_new_tokens=most)
    with pytest.raises(
        fe.InputMismatchError, match="42 tokens in total, but the static cache has room for 40"
    ):
        static(ids, max_new_tokens=most + 1)


@pytest.mark.slow
def test_a_static_cache_of_a_model_with_windows_keeps_every_token(tmp_path: Path) -> None:
    """transformers' own is cut to the window, and counts in Python. The longer prompt exceeds the window."""
    found = agreement(NAMED["gemma3"], tmp_path, max_cache_len=60)

    assert found.is_equal
    assert found.variety > 3


def test_a_static_cache_that_counts_in_python_is_refused() -> None:
    layout = CacheLayout(None, (), {"layers.0.max_cache_len": 40, "layers.0.count": 16})
    after = CacheLayout(None, (), {"layers.0.max_cache_len": 40, "layers.0.count": 17})

    layout.refuse_counting(layout, "Model")
    with pytest.raises(
        fe.SourceError,
        match=r"layers.0.count as a Python number \(16 before a call, 17 after.*: remove --max-cache-len$",
    ):
        layout.refuse_counting(after, "Model")


@pytest.mark.parametrize("workload", ["prefill", "decode"])
def test_a_model_that_writes_several_codes_at_a_time_is_refused(workload: Any, tmp_path: Path) -> None:
    config = {"model_type": "dia", "architectures": ["DiaForConditionalGeneration"], **TINY["dia"][0]}
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(
        fe.SourceError,
        match=r"does not generate one token per step .*: use --workload forw",
    ):
        fe.export(f"hf:{tmp_path}", workload=workload)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_cache_len": 40}, "--max-cache-len requires --workload prefill, decode or generate"),
        ({"workload": "decode", "max_cache_len": 17}, "the example inputs: use at least 18"),
        (
            {"workload": "train"},
            "workload 'train' cannot be exported; the supported ones are forward, prefill, decode",
        ),
        (
            {"workload": "decode", "dynamic_shapes": {"input_ids": None}},
            "requires dynamic dimensions as text",
        ),
    ],
)
def test_an_export_that_there_is_not_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fe.export("hf:llama", **options)


def test_the_state_goes_by_name_not_by_order(bundle: fe.Bundle, records: dict[str, CallRecord]) -> None:
    ids = prompt(5)
    expected = fe.generate(bundle, ids, max_new_tokens=8)

    state = tuple(reversed(records["decode"].state))
    found = fe.generate(recorded(bundle, "decode", state=state), ids, max_new_tokens=8)

    assert found == expected


def test_keys_in_the_place_of_values_are_another_model(
    bundle: fe.Bundle, records: dict[str, CallRecord]
) -> None:
    """They have one shape and dtype: nothing but the record tells them apart."""
    ids = prompt(5)
    expected = fe.generate(bundle, ids, max_new_tokens=8)
    state = records["decode"].state
    exchanged = {one.name: other for one, other in zip(state, (*state[1::2], *state[::2]), strict=True)}
    assert {tensor.name for tensor in state} == exchanged.keys()

    swapped = tuple(replace(tensor, input=exchanged[tensor.name].input) for tensor in state)
    found = fe.generate(recorded(bundle, "decode", state=swapped), ids, max_new_tokens=8)

    assert found != expected


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        *(
            ("decode", {name: "elsewhere"}, "lists elsewhere, but decode has no such input or output")
            for name in ("tokens", "mask", "logits")
        ),
        ("decode", {"positions": None}, "does not list the input position_ids of decode"),
        ("prefill", {"state": ()}, "prefill does not return past_key_values"),
    ],
)
@pytest.mark.usefixtures("records")
def test_a_record_that_does_not_fit_its_program_is_refused(
    method: str, changes: dict[str, Any], message: str, bundle: fe.Bundle
) -> None:
    with pytest.raises(fe.DeployError, match=message):
        fe.Generator(recorded(bundle, method, **changes))


def test_prompts_that_cannot_be_padded_are_refused(bundle: fe.Bundle, records: dict[str, CallRecord]) -> None:
    generator = fe.Generator(bundle)
    generator._prefill = replace(generator._prefill, record=replace(records["prefill"], positions=None))

    with pytest.raises(fe.InputMismatchError, match="2 to 3 tokens, but the program has no mask"):
        generator([[5, 6], [5, 6, 7]], max_new_tokens=2)


def test_a_cache_of_another_dtype_is_refused(
    unbound: fe.Bundle, half: ExportedProgram, bundle: fe.Bundle
) -> None:
    """With prefixes, no weight is shared: only the cache shows it."""
    programs = {"prefill": unbound["prefill"], "decode": half}
    with pytest.raises(ValueError, match=r"float32.* in prefill but bfloat16.* in decode"):
        fe.Bundle(programs)
    weights = bundle["prefill"].state_dict
    both = {f"a.{name}": tensor for name, tensor in weights.items()}
    both |= {f"b.{name}": tensor.bfloat16() for name, tensor in weights.items()}
    made = fe.bind(fe.Bundle(programs, prefixes={"prefill": "a.", "decode": "b."}), both)

    with pytest.raises(fe.DeployError, match="as float32, but decode expects bfloat16"):
        fe.Generator(made)


def test_a_bundle_that_does_not_generate_is_refused() -> None:
    program = fe.export(lambda: (nn.Linear(2, 2), (torch.zeros(1, 2),)))

    with pytest.raises(
        fe.DeployError, match=r"no program for prefill \(its methods are one\): use `fakexport export SOURCE"
    ):
        fe.Generator(fe.Bundle({"one": program}))


def test_without_weights_nothing_is_generated(folder: Path) -> None:
    with pytest.raises(fe.WeightsNotBoundError):
        fe.generate(folder / "model.pt2", [5, 6], max_new_tokens=2)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (None, "there is no prompt: the program expects input_ids"),
        ([], "there is no prompt"),
        ([[]], "a prompt has no tokens"),
        ([5, -1], "-1 is not a token id"),
        ([[5, "6"]], "'6' is not a token id"),
        ([[5, True]], "True is not a token id"),
        (torch.zeros(2), "0.0 is not a token id"),
        ([[5], [6, 96]], "the token 96 does not exist: the model has 96 tokens, starting at 0"),
    ],
)
def test_a_prompt_that_is_none_is_refused(prompts: Any, message: str, generator: fe.Generator) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        generator(prompts, max_new_tokens=2)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0},
        {"top_p": 1.5},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_a_number_out_of_its_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is .*, but must be"):
        fe.Sampling(**options)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}])
def test_drawing_from_one_token_is_greedy(options: dict[str, Any], generator: fe.Generator) -> None:
    ids = prompt(4, batch=2)

    found = generator(ids, max_new_tokens=8, sampling=fe.Sampling(**options))

    assert found == generator(ids, max_new_tokens=8)


@pytest.mark.parametrize(
    ("options", "warper"),
    [({"top_k": 3}, TopKLogitsWarper(3)), ({"top_p": 0.7}, TopPLogitsWarper(0.7))],
    ids=["top_k", "top_p"],
)
def test_tokens_are_drawn_from_those_that_transformers_leaves(options: dict[str, Any], warper: Any) -> None:
    scores = torch.randn(1, 12, generator=torch.Generator().manual_seed(3))
    left = warper(torch.zeros(1, 1, dtype=torch.long), scores).isfinite().nonzero()[:, 1].tolist()

    numbers = torch.Generator().manual_seed(0)
    drawn = fe.Sampling(**options).chosen(scores.expand(3000, -1), numbers).tolist()

    assert sorted(set(drawn)) == left
    assert 1 < len(left) < 12


def test_what_the_generation_config_forces_and_forbids() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    defaults = GenerationDefaults(suppressed=(0, 99), suppressed_first=(1,), forced_last=3)

    def best(**place: Any) -> int:
        return int(restricted(scores, defaults, Place([[1]], **place)).argmax())

    assert best(generated=0, is_last=False) == 2
    assert best(generated=1, is_last=False) == 1
    assert best(generated=1, is_last=True) == 3
    defaults = replace(defaults, forced_first=2)
    assert best(generated=0, is_last=True) == 2


def test_scores_that_are_no_numbers_are_refused() -> None:
    """The greatest of them would be the first NaN."""
    scores = torch.tensor([[0.0, 1.0], [0.0, float("nan")]])

    with pytest.raises(fe.DeployError, match="the scores of the tokens are NaN"):
        restricted(scores, GenerationDefaults(), Place([[0], [1]], generated=1, is_last=False))


def test_a_config_that_forbids_every_token_is_refused() -> None:
    """The greatest of equal scores would be token 0."""
    scores = torch.zeros(2, 3)
    defaults = GenerationDefaults(no_repeat_ngram_size=1)

    restricted(scores, defaults, Place([[0, 1], [1, 2]], generated=0, is_last=False))
    with pytest.raises(fe.DeployError, match="forbids every token"):
        restricted(scores, defaults, Place([[0, 1], [1, 2, 0]], generated=0, is_last=False))


def _first_of(model: nn.Module, ids: torch.Tensor) -> int:
    return eager(model, ids)[0][0]


@pytest.mark.parametrize(
    "name",
    [
        "bad_words_ids",
        "suppress_tokens",
        "begin_suppress_tokens",
        "forced_eos_token_id",
        "forced_bos_token_id",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "min_length",
        "min_new_tokens",
    ],
)
def test_settings_do_what_they_do_in_transformers(
    name: str, model: Any, bundle: fe.Bundle, records: dict[str, CallRecord]
) -> None:
    """The first token of the model, where it is forbidden; one that ends may never be."""
    ids = prompt(5)
    first = _first_of(model, ids)
    plain = eager(model, ids)[0]
    end = plain[-1 if name == "no_repeat_ngram_size" else 3]
    values: dict[str, Any] = {
        "bad_words_ids": [[first], [end], plain[4:7], [int(ids[0, -1]), first], [17, *plain[:3]]],
        "repetition_penalty": 1.7,
        "no_repeat_ngram_size": 2,
        "min_length": 12,
        "min_new_tokens": 9,
        "suppress_tokens": [first],
        "begin_suppress_tokens": [first],
        "forced_eos_token_id": [40, 30],
        "forced_bos_token_id": 30,
    }
    without = [plain[: plain.index(end) + 1]]
    with configured(model, **{name: values[name], "eos_token_id": [end]}) as defaults:
        made = fe.Generator(recorded(bundle, "prefill", defaults=defaults))(ids, max_new_tokens=NEW_TOKENS)
        expected = eager(model, ids)

    assert [list(row) for row in made.tokens] == expected
    assert name.startswith("forced") or expected != without
    assert defaults.not_applied == (("forced_bos_token_id",) if name == "forced_bos_token_id" else ())


def test_a_generate_of_the_model_itself_is_named(bundle: fe.Bundle, records: dict[str, CallRecord]) -> None:
    """Whisper's writes a language and a task before the text."""
    defaults = generation_defaults(NAMED["whisper"].build())

    made = fe.generate(recorded(bundle, "prefill", defaults=defaults), prompt(5), max_new_tokens=2)

    assert made.notes == (
        "WhisperForConditionalGeneration has its own generate, which is not used: generation calls its "
        "forward",
    )
    assert generation_defaults(NAMED["mistral"].build()).own_generate == ""


def test_settings_that_are_not_followed_are_named(model: Any) -> None:
    settings = {
        "min_p": 0.1, "stop_strings": ["."], "cache_implementation": "quantized", "max_time": 1.0,
    }  # fmt: skip
    with configured(model, **settings, num_beams=1, min_length=0, temperature=0.7) as defaults:
        assert set(defaults.not_applied) == settings.keys()


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_k": 7},
        {"temperature": 1.5, "top_p": 0.6},
        {"top_k": 3, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_what_is_drawn_is_what_transformers_draws(
    settings: dict[str, Any], model: Any, bundle: fe.Bundle, records: dict[str, CallRecord]
) -> None:
    """With the same random numbers; the generation config completes what the caller leaves open."""
    ids = prompt(5)
    with configured(model, **settings, do_sample=True) as defaults:
        generator = fe.Generator(recorded(bundle, "prefill", defaults=defaults))
        made = generator(ids, max_new_tokens=NEW_TOKENS, sampling=fe.Sampling(top_p=0.9, seed=4))
        greedy = generator(ids, max_new_tokens=NEW_TOKENS)
        torch.manual_seed(4)
        options = {"max_new_tokens": NEW_TOKENS, "top_p": 0.9, "top_k": settings.get("top_k", 0)}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    assert list(made.tokens[0]) == expected[0, 5:].tolist() != list(greedy.tokens[0])
    assert made.notes == ()
    assert greedy.notes == (
        "do_sample of the model's generation config is not applied: pass temperature, top_k or top_p to "
        "sample",
    )


def test_a_mask_of_the_caller_places_the_tokens(generator: fe.Generator, model: nn.Module) -> None:
    rows = [prompt(4)[0].tolist(), prompt(7)[0].tolist()]
    padded = torch.tensor([[0, 0, 0, *rows[0]], rows[1]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])

    found = generator(padded, max_new_tokens=NEW_TOKENS, inputs={"attention_mask": mask})

    assert [list(row) for row in found.tokens] == [eager(model, torch.tensor([row]))[0] for row in rows]
    with pytest.raises(fe.InputMismatchError, match="excludes the last token of a prompt"):
        generator(padded.flip(1), max_new_tokens=2, inputs={"attention_mask": mask.flip(1)})


@pytest.mark.parametrize("rows", [[[30, 30, 5]], [[30, 5, 6], [7, 8, 9]], [[5, 6, 30]]])
def test_prompts_that_contain_padding_are_refused(
    rows: list[list[int]], bundle: fe.Bundle, records: dict[str, CallRecord]
) -> None:
    generator = fe.Generator(recorded(bundle, "prefill", defaults=GenerationDefaults(pad=30, eos=(31,))))

    with pytest.raises(fe.InputMismatchError, match=r"a prompt contains padding \(the token 30\)"):
        generator(rows, max_new_tokens=2)

    assert generator([[30, 5, 6], [30, 7, 8]], max_new_tokens=2).tokens  # Texts begin with this token.


def test_a_penalty_leaves_out_the_padding_of_a_batch(
    model: Any, bundle: fe.Bundle, records: dict[str, CallRecord]
) -> None:
    prompts = [prompt(length, seed=length)[0].tolist() for length in (1, 4, 19)]
    defaults = GenerationDefaults(repetition_penalty=1.7, no_repeat_ngram_size=2, pad=30)
    generator = fe.Generator(recorded(bundle, "prefill", defaults=defaults))

    found = generator(prompts, max_new_tokens=NEW_TOKENS)

    options = {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2}
    expected = [eager(model, torch.tensor([row]), **options)[0] for row in prompts]
    assert [list(row) for row in found.tokens] == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"repetition_penalty": -1.0},
            "repetition_penalty of the generation config is -1.0, but must be above 0",
        ),
        (
            {"repetition_penalty": "much"},
            "the generation config of LlamaForCausalLM cannot be read: ValueError: could not",
        ),
        (
            {"bad_words_ids": [["a"]]},
            "the generation config of LlamaForCausalLM cannot be read: ValueError: invalid literal",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str, model: Any) -> None:
    with pytest.raises(fe.SourceError, match=message), configured(model, **settings):
        pass


@pytest.mark.slow
def test_a_first_token_is_forced_after_one_alone(tmp_path: Path) -> None:
    model: Any = NAMED["marian"].build()
    model.generation_config.update(forced_bos_token_id=30)
    model.save_pretrained(tmp_path)
    generator = fe.Generator(fe.bind(exported(tmp_path), tmp_path))
    ids = prompt(5)
    start = torch.tensor([[0, 17]])

    alone = generator(ids, max_new_tokens=NEW_TOKENS)
    more = generator(ids, max_new_tokens=NEW_TOKENS, inputs={"decoder_input_ids": start})

    assert list(alone.tokens[0]) == eager(model, ids)[0]
    assert list(more.tokens[0]) == eager(model, ids, decoder_input_ids=start)[0][1:]
    assert alone.tokens[0][0] == 30 != more.tokens[0][0]


@pytest.mark.slow
def test_transformers_is_not_needed(model: nn.Module, folder: Path, bundle: fe.Bundle) -> None:
    fe.save_bundle(bundle, folder / "bound.pt2")
    ids = prompt(6)
    code = (
        "import sys, fakexport as fe\n"
        f"found = fe.generate({str(folder / 'bound.pt2')!r}, {ids.tolist()}, max_new_tokens=6)\n"
        "assert 'transformers' not in sys.modules\n"
        "print(*found.tokens[0])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert [int(token) for token in done.stdout.split()] == eager(model, ids)[0][:6]


@pytest.mark.slow
def test_text_goes_on_after_the_greatest_position_of_an_image(tmp_path: Path) -> None:
    """Qwen2-VL's positions have a time, a height and a width; the caller passes those of the prompt."""
    spec = Architecture("qwen2_vl", "AutoModelForImageTextToText", True).source(tmp_path)
    path = Path(spec.split(":")[1])
    config = json.loads(path.read_text())
    config["text_config"]["max_position_embeddings"] = 512
    path.write_text(json.dumps(config))
    source = resolve(spec, workload=Workload("prefill", 1, is_generated=True))
    torch.manual_seed(0)
    model: Any = source.factory()
    with torch.no_grad():
        for matrix in (weight for weight in model.parameters() if weight.dim() > 1):
            matrix.normal_(std=0.15)
    example = dict(source.example_inputs(model, "cpu", None).kwargs)
    example["pixel_values"].normal_()
    ids = torch.cat([example.pop("input_ids")[:, :64], torch.randint(20, 40, (1, 9))], dim=1)
    mask, kinds = torch.ones_like(ids), (ids == model.config.image_token_id).long()
    assert kinds.sum() == 64
    grid = {"image_grid_thw": example["image_grid_thw"], "mm_token_type_ids": kinds}
    example["position_ids"] = model.model.get_rope_index(ids, attention_mask=mask, **grid)[0]
    del example["attention_mask"]

    calls: Any = ("prefill", "decode")
    programs = {call: fe.export(spec, workload=call) for call in calls}
    bundle = fe.bind(fe.Bundle(programs), dict(model.state_dict()))
    found = fe.Generator(bundle)(ids, max_new_tokens=8, inputs=example, eos=())

    pixels = {"pixel_values": example["pixel_values"], **grid}
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    made = model.generate(input_ids=ids, attention_mask=mask, **pixels, **options)
    assert list(found.tokens[0]) == made[0, ids.shape[1] :].tolist()
    assert len(set(found.tokens[0])) > 2


@pytest.mark.slow
def test_one_bundle_for_one_sequence_and_for_several(model: nn.Module, folder: Path, tmp_path: Path) -> None:
    """The number of sequences decides which programs of prefill and decode run."""
    bundle = tmp_path / "model.pt2"
    dynamic = ("--dynamic", "input_ids.0=1|2..4")
    fakexport("export", f"hf:{folder}", "--workload", "generate", *dynamic, "-o", bundle)
    bound = fe.bind(fe.load_bundle(bundle), folder)
    generator = fe.Generator(bound)

    assert list(bound) == ["prefill_range0", "prefill_range1", "decode_range0", "decode_range1"]
    for batch in range(1, 5):
        ids = prompt(7, batch)
        found = generator(ids, max_new_tokens=NEW_TOKENS).tokens
        assert list(map(list, found)) == eager(model, ids)
    with pytest.raises(fe.InputMismatchError, match=r"size 5 .* the programs are for 1 and 2\.\.4"):
        generator(prompt(7, 5), max_new_tokens=2)
