"""Rank programs in processes of their own, exported here without a process group."""

from collections import Counter

import pytest
import torch

import fakexport as fe
from fakexport.archive import bind, load_bundle, save
from fakexport.checking import Wanted, bundled, report_on
from fakexport.exporting.capture import Request
from fakexport.exporting.program import collectives
from tests.gloo_ranks import count_collectives, run_ranges, run_rank_program, spawned
from tests.parallel_models import DYNAMIC, FAMILIES, factory_of, logits_of, small_model, token_ids

pytest.importorskip("transformers")


def assert_processes_compute_the_model(folder, family, ranks, parallel, **changes):
    from safetensors.torch import save_model

    model, factory = small_model(family, **changes), factory_of(family, **changes)
    for rank in range(ranks):
        program = fe.export(factory, parallel=parallel, rank=rank, dynamic_shapes=DYNAMIC)
        save(program, folder / f"rank{rank}.pt2")
    save_model(model, str(folder / "model.safetensors"))
    torch.save(token_ids(), folder / "ids.pt")

    for outputs in spawned(run_rank_program, folder, ranks):
        for ids, logits in zip(token_ids(), outputs, strict=True):
            torch.testing.assert_close(logits, logits_of(model, ids), rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_each_rank_has_programs_for_ranges_of_the_batch(tmp_path):
    from safetensors.torch import save_model

    model = small_model("llama")
    ids = [torch.randint(0, 99, (size, 5)) for size in (1, 2, 6)]
    ranges = ["input_ids.0=1|2..6", "input_ids.1=2..9"]
    request = Request(source=factory_of("llama"), parallel="tp=2", rank="all", dynamic_shapes=ranges)
    verdicts = report_on(request, wanted=Wanted(programs=True)).verdicts
    content = bundled({f"range{at}": verdict.saved for at, verdict in enumerate(verdicts)}, None)
    (tmp_path / "ranks.pt2").write_bytes(content)
    save_model(model, str(tmp_path / "model.safetensors"))
    torch.save(ids, tmp_path / "ids.pt")

    for outputs in spawned(run_ranges, tmp_path, 2):
        for given, logits in zip(ids, outputs, strict=True):
            torch.testing.assert_close(logits, logits_of(model, given), rtol=2e-5, atol=2e-5)
    mine = load_bundle(tmp_path / "ranks.pt2", methods=["range0_rank1", "range1_rank1"], trust=True)
    one, other = bind(mine, tmp_path / "model.safetensors").values()
    assert all(weight is other.state_dict[name] for name, weight in one.state_dict.items())


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_processes_compute_every_family(family, ranks, tmp_path):
    assert_processes_compute_the_model(tmp_path, family, ranks, f"tp={ranks}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["llama", "qwen3", "glm", "deepseek_v3", "phi", "gemma2"])
def test_eight_processes_compute_the_model(family, tmp_path):
    """One key-value head for each, and 10 of 101 words for the last one."""
    assert_processes_compute_the_model(tmp_path, family, 8, "tp=8", num_key_value_heads=8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_processes_with_experts_of_their_own_compute_the_model(family, tmp_path):
    assert_processes_compute_the_model(tmp_path, family, 2, "tp=2,ep=2")


# The vocabulary is one that the ranks divide: DTensor pads uneven parts, and then sends what no plan says.
@pytest.mark.parametrize(
    "family",
    [
        pytest.param("llama", marks=pytest.mark.slow),
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("glm", "mixtral", "deepseek_v3", "phi3")
        ),
    ],
)
def test_collectives_are_those_of_transformers(family, tmp_path):
    model = small_model(family, vocab_size=100)
    ids = token_ids()[0]
    model.save_pretrained(tmp_path / "model")
    torch.save([ids], tmp_path / "ids.pt")

    program = fe.export(lambda: (factory_of(family, vocab_size=100)()[0], (ids,)), parallel="tp=2")
    expected = spawned(count_collectives, tmp_path, 2)[0]

    found = Counter()
    for collective in collectives(program):
        found[collective.kind, collective.bytes] += collective.count
    assert dict(found) == expected
