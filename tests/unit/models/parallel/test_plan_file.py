"""A plan in a file changes that of the model."""

import json

import pytest

import fakexport as fe
from fakexport.checking import check
from fakexport.exporting.program import facts_of
from fakexport.models.parallel import Degrees
from tests.parallel_models import factory_of, small_model
from tests.unit.models.parallel.test_rank_programs import assert_equal_to_eager

pytest.importorskip("transformers")

ONE_LAYER = {"num_hidden_layers": 1}
MLP = "model.layers.*.mlp"


@pytest.fixture
def written(tmp_path):
    def write(plan):
        path = tmp_path / "plan.json"
        path.write_text(plan if isinstance(plan, str) else json.dumps(plan))
        return f"tp=2,plan={path}"

    return write


@pytest.mark.slow
def test_rules_of_a_file_replace_those_of_the_model(written):
    """The MLP stays whole, and the logits too: the ranks still compute the model."""
    rules = {f"{MLP}.{name}_proj": None for name in ("gate", "up", "down")}
    changes = {**ONE_LAYER, "tie_word_embeddings": False}
    parallel = written({**rules, "lm_head": None})

    programs = [
        fe.export(factory_of("llama", **changes), parallel=parallel, rank=rank, dynamic_shapes="auto")
        for rank in range(2)
    ]

    shards = facts_of(programs[0]).parallel.shards
    assert {name.split(".")[3] for name in shards if name.startswith("model.layers")} == {"self_attn"}
    assert "lm_head.weight" not in shards
    assert_equal_to_eager(programs, small_model("llama", **changes))


@pytest.mark.slow
def test_the_fix_of_a_wrong_plan_works(written):
    wrong = {f"{MLP}.experts.gate_up_proj": "colwise"}

    report = check(factory_of("mixtral", **ONE_LAYER), parallel=written(wrong))

    (found,) = report.diagnostics
    assert found.code == "FE405"
    assert "modeling_mixtral.py" in found.primary.span.path or "moe.py" in found.primary.span.path
    assert "takes features 0 to 48 of the 96 on a rank" in found.notes[0]

    repaired = written({f"{MLP}.experts.gate_up_proj": "packed_colwise"})
    assert check(factory_of("mixtral", **ONE_LAYER), parallel=repaired).is_clean


@pytest.mark.parametrize(
    ("plan", "fragment"),
    [
        ({"model.layers.*.mlp.no_proj": "colwise"}, "mlp.no_proj matches no module or parameter of Llama"),
        ({"lm_head": "no_style"}, "no_style"),
        ({"lm_head": 3}, "expected a JSON object that maps module names to styles or null"),
        ({}, "has no rules"),
        ("[", "plan.json"),
    ],
)
def test_a_file_that_is_no_plan(written, plan, fragment):
    with pytest.raises(ValueError, match=r".") as caught:
        fe.export(factory_of("llama", **ONE_LAYER), parallel=written(plan))

    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(ValueError, match=r"plan no\.json: No such file"):
        Degrees.parse("tp=2,plan=no.json")


def test_a_plan_is_part_of_the_degrees(written):
    parallel = written({"lm_head": None})

    assert Degrees.parse(parallel).canonical == parallel
