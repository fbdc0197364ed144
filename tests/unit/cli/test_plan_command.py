"""`fakexport plan` as users run it: small configs of transformers, archives, and bad usage."""

import json
import sys
from xml.etree import ElementTree

import pytest
from transformers import LlamaConfig

import fakexport as fe
from fakexport.cli import main

LAYERS, KV_HEADS, HEAD_DIM, HIDDEN, VOCABULARY = 2, 2, 16, 64, 4096


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A Llama of two layers, whose cache can be computed by hand."""
    path = tmp_path_factory.mktemp("llama") / "config.json"
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=KV_HEADS,
        vocab_size=VOCABULARY,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.to_json_file(path, use_diff=False)
    return f"hf:{path}"


@pytest.fixture
def plan(capsys):
    """Runs the command in this process; returns what it printed."""

    def run(*options, code=0):
        assert main(["plan", "--no-progress", *map(str, options)]) == code
        return capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def printed_once():
    """What the command printed, by its options."""
    return {}


@pytest.fixture
def planned(plan, config, printed_once):
    """Runs the command, once for the same options; returns each point and its only device."""

    def run(*options):
        if options not in printed_once:
            printed_once[options] = plan(config, "--format", "json", "--target", "H100", *options).out
        return [(point, point["devices"][0]) for point in json.loads(printed_once[options])["points"]]

    return run


def cache_bytes(batch, context):
    return 2 * LAYERS * batch * KV_HEADS * context * HEAD_DIM * 4


def test_prefill_returns_the_cache_of_its_context(planned):
    found = planned("--workload", "prefill", "--batch", "2,4", "--context", "128")

    assert [device["state_after"] for _, device in found] == [cache_bytes(2, 128), cache_bytes(4, 128)]


def test_decode_holds_the_old_cache_and_the_new_one(planned):
    ((point, device),) = planned("--workload", "decode", "--batch", "4", "--context", "128")

    assert (point["batch"], point["context"]) == (4, 128)
    assert device["state_after"] == cache_bytes(4, 128)
    assert cache_bytes(4, 127) < device["state"] <= cache_bytes(4, 127) + cache_bytes(4, 128)


@pytest.mark.slow
def test_a_batch_of_one_and_a_context_are_assumed(planned):
    ((point, _),) = planned()

    assert (point["batch"], point["context"], point["as_in_example"]) == (1, 4096, {})


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2") / "config.json"
    settings = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 128}
    path.write_text(json.dumps({**settings, "vocab_size": 64}))
    return f"hf:{path}"


READS_TOO_FAR = (
    "the program would read row 128 (counted from 0) of transformer.wpe.weight, which has only 128 rows"
)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("forward", READS_TOO_FAR),
        pytest.param("decode", READS_TOO_FAR, marks=pytest.mark.slow),
        ("train", "the model looks up 129 positions in transformer.wpe, which has only 128 rows"),
    ],
)
def test_more_tokens_than_positions_are_one_line(plan, gpt2, workload, words):
    shared = ["--workload", workload, "--target", "H100", "--batch", "2"]

    assert "context 128: fits" in plan(gpt2, *shared, "--context", "128").out
    printed = plan(gpt2, *shared, "--context", "129", code=2)

    assert printed.out == ""
    assert words in printed.err


def test_the_context_that_is_assumed_is_within_the_positions(plan, gpt2):
    assert "--context was not given: 128 is assumed" in plan(gpt2, "--target", "H100").out


@pytest.mark.slow
def test_an_archive_that_does_not_fit_has_exit_code_1(plan, config, tmp_path):
    path = tmp_path / "llama.pt2"
    fe.save(fe.export(config, target="H100", dynamic_shapes="auto"), path)

    text = plan(path, "--batch", "4096", "--context", "8192", code=1).out

    assert "batch 4,096, context 8,192: does not fit: cuda:0 lacks" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", "a"], "--batch 'a': write a number, a list 1,8 or a range 1..64"),
        (["--batch", "0"], "--batch 0: give a number of 1 or more"),
        (["--batch", "64..1"], "--batch '64..1': write an ascending range that starts at 1 or more"),
        (["--context", "0..8"], "--context '0..8': write an ascending range that starts at 1 or more"),
        (["--max", "weights"], "--max weights: write batch or context"),
        (["--size", "x"], "cannot parse --size 'x': write NAME.DIM=N"),
        (["--bound", "x"], "cannot parse --bound 'x': write SYMBOL=N"),
        (["--workload", "training"], "'training' is not one of"),
        (
            ["--optimizer", "sgd"],
            "--optimizer, --checkpointing and --autocast apply only to --workload train",
        ),
        (["--context", "1", "--workload", "decode"], "--context 1"),
    ],
)
def test_bad_usage_is_one_line(plan, config, options, words):
    printed = plan(config, "--target", "H100", *options, code=2)

    assert printed.out == ""
    assert words in printed.err


def test_modules_are_shown_on_demand(plan):
    shown = plan("examples/mlp.py:factory", "--target", "H100", "--by-module").out

    assert "FLOP per byte" in shown.split("\n\n")[-1]
    assert "reads at least" not in plan("examples/mlp.py:factory", "--target", "H100").out


def test_the_costs_of_a_decode_step_are_weights_and_cache(planned):
    ((point, _),) = planned("--workload", "decode", "--batch", "4", "--context", "128")

    (cost,) = point["costs"]["devices"]
    layer = HIDDEN * HIDDEN * 2 + HIDDEN * KV_HEADS * HEAD_DIM * 2 + 3 * HIDDEN * 128
    products = (LAYERS * layer + HIDDEN * VOCABULARY) * 4
    assert point["costs"]["tokens"] == 4
    assert 0 <= cost["read_bytes"] - products - cache_bytes(4, 127) < 4096
    assert cost["written_bytes"] == cache_bytes(4, 1) + 4 * VOCABULARY * 4


def test_the_timeline_is_a_trace_with_counters(plan, tmp_path):
    file = tmp_path / "memory.json"

    plan("examples/mlp.py:factory", "--target", "H100", "--timeline", file)

    events = json.loads(file.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "C", "X"}
    times = [event["ts"] for event in events if event["ph"] == "C"]
    assert times == sorted(times)
    assert all(
        isinstance(size, int) for event in events if event["ph"] == "C" for size in event["args"].values()
    )
    printed = plan("examples/mlp.py:factory", "--timeline", "memory.txt", code=2)
    assert "must be a .json, .svg or .png file" in printed.err


def test_the_timeline_is_a_picture_with_the_peak_and_the_kinds(plan, tmp_path):
    pytest.importorskip("matplotlib")
    first, second, pixels = (tmp_path / name for name in ("a.svg", "b.svg", "a.png"))

    for file in (first, second, pixels):
        plan("examples/mlp.py:factory", "--target", "H100", "--timeline", file)

    texts = {"".join(each.itertext()).strip() for each in ElementTree.fromstring(first.read_text()).iter()}
    assert {"weight", "activation", "output", "KiB", "nodes in the order of execution"} <= texts
    assert any(text.startswith("cuda:0 H100-80GB: ") for text in texts)
    assert first.read_bytes() == second.read_bytes()
    assert pixels.read_bytes().startswith(b"\x89PNG")


class _Missing:
    """Finds nothing for one package, as if it were not installed."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_without_matplotlib_a_picture_is_refused_before_the_export(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [_Missing("matplotlib"), *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)

    printed = plan("examples/mlp.py:factory", "--timeline", tmp_path / "memory.svg", code=2)

    assert "matplotlib is not installed: pip install 'matplotlib>=3.10'" in printed.err
    assert printed.out == ""


def test_a_model_that_does_not_export_has_exit_code_1(plan, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n"
        "class Branches(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x if x.sum() > 0 else -x\n"
        "def factory():\n"
        "    return Branches(), (torch.zeros(2, 4),)\n"
    )

    printed = plan(f"{path}:factory", code=1)

    assert printed.out == ""
    assert "does not export for cpu" in printed.err
    assert "`fakexport check` with the same source" in printed.err
