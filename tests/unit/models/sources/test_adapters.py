"""LoRA adapters: a bound program returns what peft's own model returns, or the adapter is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("peft")

import fakexport as fe
from fakexport.cli import main
from tests import peft_adapters
from tests.peft_adapters import adapted, loaded, saved_adapter, saved_base
from tests.unit.exporting.capture.memo_models import exported_both_ways

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MODES = ("separate", "merged", "inputs")
Saved = Callable[[str], tuple[Path, Path]]
Archived = Callable[[str, str], Path]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"task_type": "CAUSAL_LM", "lora_dropout": 0.5}),
    "half": ("half", {}),
    "dora": ("llama", {"target_modules": ["q_proj", "down_proj"], "use_dora": True, "use_rslora": True}),
    "whole": ("llama", {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]}),
    "patterns": ("llama", {"rank_pattern": {"up_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 5}}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "bias": "all"}),
    "gpt2 as peft guesses": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "lora_bias": True}),
    "bert": ("bert", {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"}),
    "t5": ("t5", {"target_modules": ["q", "v", "wi"], "task_type": "SEQ_2_SEQ_LM"}),
    "mixtral": ("mixtral", {"target_modules": ["q_proj", "v_proj"]}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("adapters")
    bases: dict[str, Path] = {}
    adapters: dict[str, Path] = {}

    def get(case: str) -> tuple[Path, Path]:
        name, settings = CASES[case]
        if name not in bases:
            bases[name] = saved_base(folder, name)
        if case not in adapters:
            adapters[case] = saved_adapter(folder / f"adapter of {case}", bases[name], **settings)
        return bases[name], adapters[case]

    return get


def given(base: Path, *, batch: int = 3, length: int = 7) -> dict[str, torch.Tensor]:
    """Inputs of other sizes than those of the example."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(2, 32, (batch, length), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return {**inputs, "decoder_input_ids": ids[:, :4]} if base.name == "t5" else inputs


def eager(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


@pytest.fixture(scope="module")
def archived(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    folder = tmp_path_factory.mktemp("archives")

    def get(case: str, mode: str) -> Path:
        """The archive of a case, exported once."""
        path = folder / f"{case}-{mode}.pt2"
        if not path.exists():
            base, adapter = saved(case)
            fe.save(exported(base, adapter, mode), path)
        return path

    return get


def exported(base: Path, adapter: Path | str | None = None, mode: Any = "separate") -> Any:
    return fe.export(f"hf:{base}", adapter=adapter, adapter_mode=mode, dynamic_shapes="auto")


QUICK = {"llama": MODES}


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, marks=() if mode in QUICK.get(case, ()) else pytest.mark.slow)
        for case in CASES
        for mode in MODES
    ],
)
def test_a_bound_program_returns_what_peft_returns(saved: Saved, archived: Archived, case: str, mode: str):
    base, adapter = saved(case)
    program = fe.load(archived(case, mode))
    inputs = given(base)

    if mode == "inputs":
        bound = fe.bind(program, base)
        inputs_of_program = {**inputs, **fe.adapter_inputs(adapter, bound)}
    else:
        bound, inputs_of_program = fe.bind(program, fe.open_checkpoint(base, adapter=adapter)), inputs
    found = fe.run(bound, inputs_of_program)["logits"]

    expected = eager(adapted(base, adapter, is_merged=mode == "merged"), inputs)
    assert torch.equal(found, expected)
    assert not torch.allclose(found, eager(loaded(base), inputs), atol=0.1)


@pytest.mark.slow
def test_a_fresh_program_binds_as_its_archive(saved: Saved):
    base, adapter = saved("mixtral")
    inputs = given(base, batch=2, length=16)
    for mode in MODES:
        program = exported_both_ways(f"hf:{base}", adapter=adapter, adapter_mode=mode)

        checkpoint = base if mode == "inputs" else fe.open_checkpoint(base, adapter=adapter)
        own = fe.adapter_inputs(adapter, program) if mode == "inputs" else {}
        found = fe.run(fe.bind(program, checkpoint), {**inputs, **own})["logits"]

        assert torch.equal(found, eager(adapted(base, adapter, is_merged=mode == "merged"), inputs)), mode


def test_one_program_serves_adapters_of_other_ranks_and_layers(
    saved: Saved, archived: Archived, tmp_path: Path
):
    base, _ = saved("llama")
    program = fe.bind(archived("llama", "inputs"), base)
    others = {
        "smaller": {"r": 2, "use_rslora": True, "target_modules": ["q_proj", "up_proj"]},
        "patterns": CASES["patterns"][1],
        "one layer": {
            "target_modules": ["o_proj"],
            "layers_to_transform": [1],
            "init_lora_weights": "gaussian",
        },
    }
    for seed, (name, settings) in enumerate(others.items(), start=5):
        other = saved_adapter(tmp_path / name, base, seed=seed, **settings)

        found = fe.run(program, {**given(base), **fe.adapter_inputs(other, program)})["logits"]

        torch.testing.assert_close(found, eager(adapted(base, other), given(base)), rtol=0, atol=1e-5)


def test_an_adapter_that_is_no_input_of_the_program_is_refused(
    saved: Saved, archived: Archived, tmp_path: Path
):
    base, _ = saved("dora")
    program = fe.load(archived("dora", "inputs"))
    larger = saved_adapter(tmp_path / "larger", base, r=8, target_modules=["q_proj"], use_dora=True)

    with pytest.raises(fe.InputMismatchError, match="or a smaller rank"):
        fe.adapter_inputs(larger, program)
    with pytest.raises(fe.InputMismatchError, match="but the program has no input for it"):
        fe.adapter_inputs(saved("llama")[1], program)
    plain = saved_adapter(tmp_path / "plain", base, target_modules=["q_proj", "down_proj"])
    with pytest.raises(fe.InputMismatchError, match=r"no tensor for the input .*magnitude"):
        fe.adapter_inputs(plain, program)
    apart = fe.load(archived("llama", "separate"))
    with pytest.raises(fe.InputMismatchError, match="has no adapter inputs"):
        fe.adapter_inputs(saved("llama")[1], apart)


def test_the_base_model_alone_is_never_bound_silently(saved: Saved, archived: Archived):
    base, adapter = saved("llama")
    merged = archived("llama", "merged")

    for used in (fe.load(merged), merged):
        with pytest.raises(ValueError, match=r"exported with a merged adapter, but .* given without one"):
            fe.bind(used, base)
        with pytest.raises(ValueError, match="exported with a merged adapter"):
            fe.verify_weights(used, base)
    with pytest.raises(fe.BindError, match="lora_A"):
        fe.bind(archived("llama", "separate"), base)
    with pytest.raises(ValueError, match="takes its adapter as inputs"):
        fe.bind(archived("llama", "inputs"), fe.open_checkpoint(base, adapter=adapter))


@pytest.mark.usefixtures("torchlib_read_once")
def test_an_onnx_file_records_how_its_program_uses_the_adapter(
    saved: Saved, archived: Archived, tmp_path: Path
):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    base, adapter = saved("llama")
    both = fe.open_checkpoint(base, adapter=adapter)
    for mode in ("separate", "merged"):
        fe.compile(archived("llama", mode), tmp_path / f"{mode}.onnx", to="onnx")
    adapted(base, adapter, is_merged=True).save_pretrained(tmp_path / "whole")
    whole = fe.open_checkpoint(tmp_path / "whole", adapter="merged")
    expected = eager(adapted(base, adapter), given(base))

    with pytest.raises(ValueError, match=r"exported with a merged adapter, but .* given without one"):
        fe.open_program(tmp_path / "merged.onnx", base)
    with pytest.raises(fe.BindError, match="lora_A"):
        fe.open_program(tmp_path / "separate.onnx", base)
    for name, checkpoint in {"merged.onnx": whole, "separate.onnx": both}.items():
        found = fe.open_program(tmp_path / name, checkpoint)(given(base))["logits"]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_checkpoint_that_peft_merged_is_bound_when_it_is_said_to_be_one(
    saved: Saved, archived: Archived, tmp_path: Path
):
    base, adapter = saved("llama")
    model = adapted(base, adapter, is_merged=True)
    model.save_pretrained(tmp_path / "merged")

    bound = fe.bind(archived("llama", "merged"), fe.open_checkpoint(tmp_path / "merged", adapter="merged"))

    assert torch.equal(fe.run(bound, given(base))["logits"], eager(model, given(base)))


def test_an_adapter_is_merged_into_a_program_of_the_base_model(saved: Saved):
    base, adapter = saved("llama")
    program = fe.export(f"hf:{base}", dynamic_shapes="auto")

    bound = fe.bind(program, fe.open_checkpoint(base, adapter=adapter))

    expected = eager(adapted(base, adapter, is_merged=True), given(base))
    assert torch.equal(fe.run(bound, given(base))["logits"], expected)


@pytest.mark.slow
def test_adapters_of_a_bundle_share_the_base_model(saved: Saved, tmp_path: Path):
    base, first = saved("llama")
    second = saved_adapter(tmp_path / "second", base, seed=9, r=2)
    adapters = {"first": first, "second": second}
    programs = {
        name: fe.export(f"hf:{base}", adapter=f"{name}={path}", dynamic_shapes="auto")
        for name, path in adapters.items()
    }
    fe.save_bundle(programs, tmp_path / "bundle.pt2")

    both = fe.open_checkpoint(base, adapter=[f"{name}={path}" for name, path in adapters.items()])
    bound = fe.bind(fe.load_bundle(tmp_path / "bundle.pt2"), both)

    for name, path in adapters.items():
        expected = eager(adapted(base, path), given(base))
        assert torch.equal(fe.run(bound[name], given(base))["logits"], expected), name
    weights = [program.state_dict["model.norm.weight"] for program in bound.values()]
    assert weights[0].data_ptr() == weights[1].data_ptr()


@pytest.mark.slow
def test_tied_weights_are_not_changed_in_two_places(tmp_path: Path):
    base = saved_base(tmp_path, "tied")
    for name, settings in {
        "head": {"target_modules": ["lm_head"]},
        "embeddings": {"target_modules": ["embed_tokens"]},
        "whole": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    }.items():
        adapter = saved_adapter(tmp_path / name, base, **settings)
        program = exported(base, adapter)

        bound = fe.bind(program, fe.open_checkpoint(base, adapter=adapter))

        assert torch.equal(fe.run(bound, given(base))["logits"], eager(adapted(base, adapter), given(base)))
        with pytest.raises(fe.SourceError, match=r"tied to .*: merging the adapter would change both"):
            fe.export(f"hf:{base}", adapter=adapter, adapter_mode="merged")
        with pytest.raises(fe.SourceError, match="tied to"):
            fe.bind(fe.export(f"hf:{base}"), fe.open_checkpoint(base, adapter=adapter))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"peft_type": "IA3"}, "of type IA3: only LORA"),
        ({"peft_type": "PREFIX_TUNING"}, "of type PREFIX_TUNING"),
        ({"init_lora_weights": "pissa"}, "'pissa' also changes the base model's weights"),
        ({"layer_replication": [[0, 1], [0, 2]]}, "layer_replication is not supported"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is not supported"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is not supported"),
        ({"a_setting_of_next_year": 1}, "a_setting_of_next_year is not supported"),
        ({"target_modules": ["nothing"]}, "Target modules .*nothing.* not found in the base model"),
        ({"target_modules": ["q_proj"]}, "unexpected keys: "),
        ({"target_modules": ["q_proj"], "r": 3}, "unexpected keys|has shape"),
        ({"use_dora": True}, "missing keys: .*lora_magnitude_vector and 13 more"),
        ({"r": 2}, r"has shape \[4, 16\], but the model expects \[2, 16\]"),
    ],
)
def test_what_is_not_supported_or_does_not_fit_is_one_line(
    saved: Saved, settings: dict[str, Any], reason: str, tmp_path: Path
):
    base, adapter = saved("llama")
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "adapter_model.safetensors").symlink_to(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (changed / "adapter_config.json").write_text(json.dumps({**config, **settings}))

    for mode in MODES:
        with pytest.raises(fe.SourceError, match=reason) as caught:
            fe.check(f"hf:{base}", adapter=changed, adapter_mode=mode)
        assert "\n" not in str(caught.value)


def test_an_adapter_of_another_base_model_is_refused(saved: Saved, tmp_path: Path):
    wide = saved_base(tmp_path, "wide")
    _, adapter = saved("llama")

    with pytest.raises(fe.SourceError, match=r"has shape \[4, 16\], but the model expects \[4, 32\]"):
        fe.export(f"hf:{wide}", adapter=adapter)
    with pytest.raises(fe.SourceError, match="has shape"):
        fe.bind(fe.export(f"hf:{wide}"), fe.open_checkpoint(wide, adapter=adapter))


def test_options_that_do_not_go_together_are_one_line(saved: Saved, tmp_path: Path):
    base, adapter = saved("llama")
    for arguments, reason in (
        ({"adapter_mode": "merged"}, "--adapter-mode requires --adapter"),
        ({"adapter": adapter, "adapter_mode": "both"}, "unknown adapter mode"),
        ({"adapter": tmp_path}, "no adapter_config.json$"),
        (
            {"adapter": "org/lora"},
            "no adapter_config.json; for an adapter on the hub, run `hf download org/lora --local-dir",
        ),
        ({"adapter": f"a={adapter}", "adapter_mode": "merged"}, "requires --adapter-mode separate"),
        ({"adapter": adapter, "component": "language"}, "cannot be combined with --adapter"),
        (
            {"adapter": adapter, "adapter_mode": "inputs", "workload": "decode"},
            "supports --workload forward",
        ),
    ):
        with pytest.raises(ValueError, match=reason):
            fe.check(f"hf:{base}", **arguments)
    with pytest.raises(fe.SourceError, match="--adapter supports hf: models"):
        fe.check(lambda: torch.nn.Linear(2, 2), adapter=adapter)


def test_without_its_file_an_adapter_exports_with_a_note(saved: Saved, tmp_path: Path):
    base, adapter = saved("llama")
    (tmp_path / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())

    report = fe.check(f"hf:{base}", adapter=tmp_path)

    assert report.is_clean
    assert "names and shapes of the adapter were not checked" in str(report.verdicts[0].target.assumptions)


def test_the_cases_use_every_base() -> None:
    assert {name for name, _ in CASES.values()} == peft_adapters.BASES.keys() - {"wide", "tied"}


@pytest.mark.slow
def test_an_adapter_generates_what_peft_generates(saved: Saved, tmp_path: Path):
    base, adapter = saved("dora")
    prompt = given(base, batch=1, length=5)["input_ids"]
    expected = adapted(base, adapter).generate(
        input_ids=prompt, max_new_tokens=8, do_sample=False, eos_token_id=None
    )
    for mode in ("separate", "merged"):
        calls = ("prefill", "decode")
        programs = {
            call: fe.export(f"hf:{base}", adapter=adapter, adapter_mode=mode, workload=call) for call in calls
        }
        fe.save_bundle(programs, tmp_path / "model.pt2")
        bound = fe.bind(fe.load_bundle(tmp_path / "model.pt2"), fe.open_checkpoint(base, adapter=adapter))

        found = fe.generate(bound, [prompt[0].tolist()], max_new_tokens=8, eos=())

        assert list(found.tokens[0]) == expected[0, 5:].tolist(), mode


def test_the_commands_take_an_adapter(saved: Saved, archived: Archived, tmp_path: Path, capsys: Any):
    base, adapter = (str(path) for path in saved("llama"))
    merged, inputs = (str(archived("llama", mode)) for mode in ("merged", "inputs"))
    given_file, bound = str(tmp_path / "inputs.safetensors"), str(tmp_path / "bound.pt2")
    save_file(given(Path(base)), given_file)

    def outcome(*arguments: str) -> tuple[int, str]:
        code = main([*arguments])
        written = capsys.readouterr()
        return code, written.out + written.err

    assert outcome("verify-weights", merged, base)[0] == 2
    assert outcome("verify-weights", merged, base, "--adapter", adapter)[0] == 0
    assert "given without one" in outcome("bind", merged, base, "-o", bound)[1]
    assert outcome("bind", merged, base, "--adapter", adapter, "-o", bound)[0] == 0
    assert outcome("run", bound, "--inputs", given_file)[0] == 0
    assert (
        "also pass the checkpoint of the base model"
        in outcome("run", bound, "--inputs", given_file, "--adapter", adapter)[1]
    )
    assert "is missing" in outcome("run", inputs, base, "--inputs", given_file)[1]
    assert outcome("run", inputs, base, "--inputs", given_file, "--adapter", adapter)[0] == 0
