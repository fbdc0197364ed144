"""The programs of all ranks of a small model, run together, return what eager mode of the model returns."""

import pytest
import torch

import fakexport as fe
from fakexport.archive import bind, load, save
from fakexport.exporting.program import ProgramNumbers, collectives, differing_numbers, facts_of
from tests.lockstep import run_ranks
from tests.parallel_models import DYNAMIC, FAMILIES, factory_of, logits_of, small_model, token_ids

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


def programs_of(family, parallel, ranks, **changes):
    return [
        fe.export(factory_of(family, **changes), parallel=parallel, rank=rank, dynamic_shapes=DYNAMIC)
        for rank in range(ranks)
    ]


def assert_equal_to_eager(programs, model):
    bound = [bind(program, model.state_dict()) for program in programs]
    for ids in token_ids():
        expected = logits_of(model, ids)

        for outputs in run_ranks(bound, ids):
            torch.testing.assert_close(outputs[0], expected, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def llama():
    """With biases, tied embeddings and a vocabulary that the ranks do not divide."""
    return programs_of("llama", "tp=2", 2)


def test_ranks_together_compute_the_model(llama):
    assert_equal_to_eager(llama, small_model("llama"))


def test_the_program_of_one_rank_is_not_that_of_another(llama):
    """What rank 0 knows of itself must not be in the program of rank 1; and the oracle sees it."""
    model = small_model("llama")
    bound = bind(llama[0], model.state_dict())
    ids = token_ids()[0]

    outputs = run_ranks([bound, bound], ids)[0][0]

    assert not torch.allclose(outputs, logits_of(model, ids), atol=1e-2)


def test_a_rank_has_a_part_of_each_sharded_weight(llama):
    whole = {name: weight.shape for name, weight in small_model("llama").named_parameters()}
    parts = [program.state_dict for program in llama]

    assert parts[0]["model.layers.0.self_attn.q_proj.weight"].shape == (64, 64)
    assert whole["model.layers.0.self_attn.q_proj.weight"] == (128, 64)
    assert parts[0]["model.layers.0.self_attn.o_proj.weight"].shape == (64, 64)
    assert parts[0]["model.layers.0.self_attn.o_proj.bias"].shape == (64,)
    assert [part["lm_head.weight"].shape[0] for part in parts] == [51, 50]
    assert parts[0]["lm_head.weight"] is parts[0]["model.embed_tokens.weight"]


def test_collectives_are_nodes_with_sizes_over_the_inputs(llama):
    found = collectives(llama[0])

    assert [(c.count, c.kind, c.module_path) for c in found] == [
        (1, "all_reduce", "model.embed_tokens"),
        (2, "all_reduce", "model.layers.*.self_attn.o_proj"),
        (2, "all_reduce", "model.layers.*.mlp.down_proj"),
        (1, "all_gather", "lm_head"),
    ]
    assert found[0].bytes == 2 * 7 * 64 * 4
    assert found[0].shape[2] == "64"
    assert found[0].bytes_expression.startswith("256*")


def test_no_dtensor_is_in_a_program(llama):
    values = [node.meta.get("val") for node in llama[0].graph.nodes]

    assert {type(value).__name__ for value in values if isinstance(value, torch.Tensor)} == {"FakeTensor"}
    assert not torch.distributed.is_initialized()


def test_an_archive_of_a_rank_is_bound_to_a_whole_checkpoint(llama, tmp_path):
    model = small_model("llama")
    loaded = []
    for rank, program in enumerate(llama):
        save(program, tmp_path / f"{rank}.pt2")
        loaded.append(load(tmp_path / f"{rank}.pt2", trust=True))

    assert_equal_to_eager(loaded, model)
    record = facts_of(loaded[1]).parallel
    assert (record.degrees, record.rank, record.ranks) == ("tp=2", 1, 2)


def test_programs_of_ranks_with_equal_parts_differ_in_numbers_only():
    programs = programs_of("qwen3", "tp=2", 2, vocab_size=100, num_hidden_layers=1)

    first, other = map(ProgramNumbers.of, programs)
    assert differing_numbers(first, other) == ("model.embed_tokens",)
    assert differing_numbers(first, first) == ()


def test_programs_of_other_shapes_are_not_alike(llama):
    assert differing_numbers(*map(ProgramNumbers.of, llama)) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_the_model(family, ranks):
    assert_equal_to_eager(programs_of(family, f"tp={ranks}", ranks), small_model(family))


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_experts_of_ranks_compute_the_model(family, ranks):
    assert_equal_to_eager(programs_of(family, f"tp={ranks},ep={ranks}", ranks), small_model(family))


@pytest.mark.exhaustive
def test_ranks_with_uneven_parts_compute_the_model():
    """98 features of the MLP on 5 ranks: the last one has fewer."""
    heads = {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 5}
    changes = {**heads, "intermediate_size": 98}

    assert_equal_to_eager(programs_of("llama", "tp=5", 5, **changes), small_model("llama", **changes))
