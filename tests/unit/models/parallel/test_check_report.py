"""What a check reports of the ranks of a small model."""

import pytest

from fakexport.checking import check, inspect
from fakexport.report import render_report, to_dict
from tests.parallel_models import DYNAMIC, factory_of, small_model

pytest.importorskip("transformers")


CHANGES = {"vocab_size": 100, "num_hidden_layers": 1}


def small_qwen3():
    return small_model("qwen3", **CHANGES)


@pytest.fixture(scope="module")
def report():
    return check(factory_of("qwen3", **CHANGES), target="4xH100", parallel="tp=4", dynamic_shapes=DYNAMIC)


def test_the_ranks_are_in_the_report(report):
    (verdict,) = report.verdicts
    ranks = verdict.ranks
    sizes = {name: weight.numel() for name, weight in small_qwen3().named_parameters()}
    norms = sum(size for name, size in sizes.items() if "norm" in name)
    # In float32, with the two rotary buffers of 8 frequencies.
    own = 4 * ((sum(sizes.values()) - norms) // 4 + norms + 2 * 8)

    assert report.is_clean
    assert [(group.ranks, group.weight_bytes) for group in ranks.groups] == [((0, 1, 2, 3), own)]
    assert ranks.whole_bytes == 4 * (sum(sizes.values()) + 2 * 8)
    assert ranks.traced == (0, 3)
    assert ranks.own_numbers == ("model.embed_tokens",)
    assert ranks.program_count == 4
    assert set(verdict.memory_left) == {"cuda:0"}


def test_the_text_lists_programs_weights_and_collectives(report):
    text = render_report(report)

    assert "4xH100: tp=4, 4 programs, which differ only in constants in model.embed_tokens" in text
    # 3 all-reduces of 3584 bytes, and 1400 from each of 3 others; half of an H100's 900 GB/s is one way.
    assert (
        "4 collectives per call, in which a rank receives at least 14.6 KiB, which takes at least 0.03 us"
        in text
    )
    assert "at 450 GB/s" in text
    assert "model.layers.0.self_attn.o_proj" in text


def test_the_data_have_bytes_over_the_sizes(report):
    (target,) = to_dict(report)["targets"]
    found = target["ranks"]["collectives"]

    assert [(c["kind"], c["count"], c["bytes"]) for c in found] == [
        ("all_reduce", 1, 3584),
        ("all_reduce", 1, 3584),
        ("all_reduce", 1, 3584),
        ("all_gather", 1, 1400),
    ]
    assert all(c["bytes_expression"] for c in found)


def test_weights_of_a_rank_that_do_not_fit_are_those_of_the_rank():
    huge = factory_of("llama", vocab_size=2 * 10**8, num_hidden_layers=1)

    report = check(huge, target="2xT4", parallel="tp=2")

    (found,) = (found for found in report.diagnostics if found.code == "FE503")
    assert found.notes == ("T4 has 14.6 GiB; the weights of rank 0 of 2 need 23.8 GiB",)
    assert found.fix is not None
    assert found.fix.message.startswith("use more ranks")


def test_inspect_describes_the_part_of_a_rank(report):
    root = inspect(factory_of("qwen3", **CHANGES), parallel="tp=4", rank=3)

    assert root.total_bytes == report.verdicts[0].ranks.groups[0].weight_bytes


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rank": 0}, "a rank requires --parallel"),
        ({"parallel": "tp=4", "rank": 4}, "ranks 0 to 3; got 4"),
        ({"parallel": "tp=4", "device_map": "cpu"}, "remove --device-map"),
        ({"parallel": "tp=4", "topology": "2xH100"}, "tp=4 requires 4 devices, but 2xH100-80GB has 2"),
    ],
)
def test_inspect_refuses_what_has_no_rank(options, reason):
    with pytest.raises(ValueError, match=reason):
        inspect(factory_of("qwen3", **CHANGES), **options)
