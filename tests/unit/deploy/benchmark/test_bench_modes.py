"""Each part of the benchmark, in this process: what a mode writes, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fakexport.cli.bench_command import _ALL
from fakexport.deploy.benchmark import worker
from fakexport.deploy.benchmark.model import Request
from fakexport.deploy.benchmark.modes import MODES
from fakexport.deploy.benchmark.outcome import Outcome
from fakexport.deploy.benchmark.reference import Facts

MODELS = Path(__file__).with_name("bench_models.py")
IN_PYTHON = ("eager", "weights", "torchscript-trace", "torchscript-script", "export")

# TorchScript is deprecated and there; a tracer says what it burns in. The worker drops both.
pytestmark = pytest.mark.filterwarnings("ignore")


def begun(folder: Path, factory: str, **request: object) -> Outcome:
    """The reference of a model."""
    Request(f"{MODELS}:{factory}", warmup=1, repeat=2, **request).write(folder)  # type: ignore[arg-type]
    worker.work(folder, "reference")
    return Outcome(folder / "reference-.json")


def done(folder: Path, mode: str) -> tuple[dict, list[tuple[str, str]]]:
    """The facts and the failures of a mode."""
    parts = ("make", "use") if MODES[mode].make is not None else ("use",)
    facts, failures = {}, []
    for part in parts:
        worker.work(folder, part, mode)
        outcome = Outcome(folder / f"{part}-{mode}.json")
        facts |= outcome.facts
        failures += [(failure.step, failure.reason) for failure in outcome.failures]
        if failures:
            break
    return facts, failures


@pytest.mark.parametrize("mode", [mode for mode in IN_PYTHON if mode != "torchscript-script"])
def test_a_mode_gives_what_eager_gives_in_other_sizes_too(mode: str, tmp_path: Path) -> None:
    begun(tmp_path, "mlp", dynamic=("x.0=2..64",))

    facts, failures = done(tmp_path, mode)

    assert failures == []
    assert facts["is_equal"]
    assert facts["difference"] < 1e-6
    assert facts["keeps_dynamic"]
    assert facts["needs_code"] == (mode in ("eager", "weights"))
    assert facts["latency_s"]["count"] == facts["ratio"]["count"] == 2
    assert ("size_bytes" in facts) == (mode != "eager")
    if mode == "eager":
        assert facts["ratio"]["median"] == 1.0


def test_the_reference_says_what_was_run(tmp_path: Path) -> None:
    begun(tmp_path, "mlp", dynamic=("x.0=2..64",))

    facts = Facts.read(tmp_path)

    assert facts.inputs == ("x=float32[6,8]", "scale=float32[4]")
    assert facts.other_inputs == ("x=float32[7,8]", "scale=float32[4]")
    assert facts.assumptions == ("the model was in training mode and was switched to eval mode",)


@pytest.mark.parametrize("mode", IN_PYTHON[2:])
def test_inputs_without_names_are_given_by_position(mode: str, tmp_path: Path) -> None:
    begun(tmp_path, "nameless", dynamic=("x_0.0", "x_1.0"))

    facts, failures = done(tmp_path, mode)

    assert Facts.read(tmp_path).other_inputs == ("x_0=float32[4,4]", "x_1=float32[4,4]")
    if mode == "torchscript-script":  # torch.jit.script knows no *args
        assert [step for step, _ in failures] == ["make"]
    else:
        assert failures == []
        assert facts["is_equal"]
        assert facts["keeps_dynamic"]


@pytest.mark.parametrize("mode", IN_PYTHON)
def test_a_state_and_an_input_that_is_written_into_do_not_disturb(mode: str, tmp_path: Path) -> None:
    """What is traced is run while it is traced, so that its state is written one call late."""
    begun(tmp_path, "counter")

    facts, failures = done(tmp_path, mode)

    assert failures == []
    assert facts["is_equal"] == (mode != "torchscript-trace")
    assert "keeps_dynamic" not in facts


def test_a_size_that_is_baked_in_shows_in_other_sizes(tmp_path: Path) -> None:
    begun(tmp_path, "size_burned_in", dynamic=("auto",))

    facts, failures = done(tmp_path, "torchscript-trace")
    exported, refusal = done(tmp_path, "export")

    assert facts["is_equal"]
    assert facts["keeps_dynamic"] is False
    assert [step for step, _ in failures] == ["resize"]
    assert failures[0][1].startswith("wrong outputs: ")
    assert "ratio" in facts
    assert exported["keeps_dynamic"] is False
    assert "`x` has size 7 in dimension 0, but the program expects 6" in refusal[0][1]


def test_what_is_in_no_state_dict_is_missed(tmp_path: Path) -> None:
    begun(tmp_path, "drawn_besides")

    weights, _ = done(tmp_path, "weights")
    exported, _ = done(tmp_path, "export")

    assert weights["is_equal"] is False
    assert exported["is_equal"] is True


def test_a_model_that_cannot_be_exported_has_a_diagnostic_as_its_reason(tmp_path: Path) -> None:
    begun(tmp_path, "branch")

    facts, failures = done(tmp_path, "export")

    assert "make_s" not in facts
    ((step, reason),) = failures
    assert step == "make"
    assert reason.startswith(f"FE201: data-dependent branch: condition depends on tensor values at {MODELS}:")


def test_values_are_drawn_where_a_source_has_none(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 32}'
    )
    Request(f"hf:{config}", dynamic=("auto",)).write(tmp_path)

    worker.work(tmp_path, "reference")

    facts = Facts.read(tmp_path)
    inputs = torch.load(tmp_path / "inputs-1.pt")["values"]
    assert facts.inputs == ("input_ids=int64[2,16]", "attention_mask=int64[2,16]")
    assert facts.other_inputs == ("input_ids=int64[3,17]", "attention_mask=int64[3,17]")
    assert facts.packages == ("transformers",)
    assert inputs["input_ids"].unique().numel() > 10
    assert bool((inputs["attention_mask"] == 1).all())


@pytest.mark.parametrize(
    ("factory", "request_", "reason"),
    [
        ("fails", {}, "does not run in eager mode: RuntimeError: no such luck"),
        ("without_inputs", {}, "has no example inputs: return (module, args), or pass --input"),
        ("word", {}, "its inputs may only contain tensors, numbers"),
        ("mlp", {"dynamic": ("y.0",)}, "the model has no such input"),
        ("mlp", {"inputs": ("z=float32[2]",)}, "has no input 'z'"),
        ("absent", {}, "has no 'absent'"),
    ],
)
def test_a_wrong_call_is_one_line(factory: str, request_: dict, reason: str, tmp_path: Path) -> None:
    outcome = begun(tmp_path, factory, **request_)

    (failure,) = outcome.failures
    assert reason in failure.reason
    assert "\n" not in failure.reason


def test_the_command_runs_every_mode_by_default():
    assert _ALL.split(",") == list(MODES)
