"""`fakexport plan --parallel`: what one rank needs."""

import pytest

from fakexport.planning import plan
from fakexport.report import render_plan
from tests.parallel_models import factory_of, small_model

transformers = pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 1, "vocab_size": 100, "tie_word_embeddings": False}
HUGE = {**SMALL, "vocab_size": 2 * 10**8}  # 95 GiB of embeddings and logits.


@pytest.fixture(scope="module")
def report():
    return plan(factory_of("qwen3", **SMALL), target="2xH100", parallel="tp", by_module=False)


def test_a_rank_has_its_part_of_the_weights(report):
    sizes = {name: weight.numel() for name, weight in small_model("qwen3", **SMALL).named_parameters()}
    norms = sum(size for name, size in sizes.items() if "norm" in name)

    (device,) = report.points[0].devices

    # In float32, with the two rotary buffers of 8 frequencies.
    assert device.weights == 4 * ((sum(sizes.values()) - norms) // 2 + norms + 2 * 8)
    assert "the plan is for rank 0 of 2; no other rank needs more memory" in report.assumptions
    assert "--parallel tp=2" in report.subject


def test_buffers_and_time_of_communication_count(report):
    point = report.points[0]
    (cost,) = point.costs.devices

    # 3 all-reduces of 2 x 7 x 64 numbers, and half of the logits from the other rank.
    assert cost.exchanged_bytes == 4 * (3 * 2 * 7 * 64 + 2 * 7 * 50)
    assert dict(cost.sent_bytes) == {}
    assert "cuda:0 receives at least 13.2 KiB from other ranks" in render_plan(report, width=200)
    assert "link" in {bound.limit for bound in cost.bounds}
    assert "NCCL buffers" in {overhead.name for overhead in point.devices[0].overheads}


def state_of(family, folder, workload, parallel):
    """Return the bytes of the cache on a device after a call, of 2 sequences of 100 tokens."""
    config = small_model(family).config
    config.architectures = [transformers.AutoModelForCausalLM.from_config(config).__class__.__name__]
    config.save_pretrained(folder)
    target = "H100" if parallel is None else "2xH100"
    asked = {"batch": 2, "context": 100, "dtype": "bfloat16"}
    report = plan(f"hf:{folder}", target=target, parallel=parallel, workload=workload, **asked)
    return report.points[0].devices[0].state_after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "workload", "share"),
    [
        ("qwen3", "prefill", 2),
        ("gemma3_text", "decode", 2),  # With windows.
        ("deepseek_v3", "decode", 1),  # A latent cache, which heads do not divide.
        ("gpt_oss", "decode", 1),  # Its plan leaves attention whole.
    ],
)
def test_a_rank_keeps_the_cache_of_its_own_heads(family, workload, share, tmp_path):
    whole = state_of(family, tmp_path / "whole", workload, None)

    assert state_of(family, tmp_path / "rank", workload, "tp") == pytest.approx(whole / share, rel=1e-3)
    if family == "qwen3":  # Keys and values of 2 layers with 4 heads of 16 bfloat16, without a window.
        assert whole == 2 * 2 * 2 * 2 * 100 * 4 * 16


@pytest.mark.slow
def test_the_smallest_number_of_devices_is_a_degree():
    report = plan(factory_of("qwen3", **HUGE), parallel="tp", smallest=True)

    found = {machine.profile: (machine.count, machine.device_map) for machine in report.machines}
    assert found["MI300X"] == (1, None)
    assert found["H100-80GB"] == (2, "tp=2")
    assert found["T4"] == (None, None)  # 4 key-value heads are the most.


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"parallel": "tp=4", "target": "2xH100"}, "tp=4 requires 4 devices"),
        ({"parallel": "tp=2", "smallest": True, "target": "2xH100"}, "write --parallel tp, not tp=2"),
        ({"parallel": "tp", "eager": True}, "does not apply to --eager"),
        ({"parallel": "tp", "workload": "train"}, "does not apply to --workload train"),
        ({"parallel": "tp", "device_map": "balanced", "target": "2xH100"}, "remove --device-map"),
        ({"parallel": "pp"}, "expected tp=N"),
    ],
)
def test_what_does_not_go_together(options, fragment):
    with pytest.raises(ValueError, match=fragment):
        plan(factory_of("qwen3", **SMALL), **options)
