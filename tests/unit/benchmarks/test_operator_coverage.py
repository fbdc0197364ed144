"""PyTorch's operator database on a virtual device: everything is as on the CPU, or known by name.

The whole database takes minutes. By default a few operators run, of which something differs; in CI a sample,
some of each kind, and every eighth operator.
"""

import json
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.operator_coverage.device_only import (
    SECTION_TITLE,
    device_only_operators,
    device_only_section,
    group_of,
)
from benchmarks.operator_coverage.explained import reason_of
from tests.forked import run_module, run_python

ROOT = Path(__file__).parents[3]
NAMES = """
    add sub mul div.no_rounding_mode pow exp clamp where eq logical_and abs sum mean var argmax cumsum sort
    topk softmax matmul mm bmm addmm einsum gather scatter index_put index_select masked_select nonzero cat
    stack split chunk unbind transpose view reshape expand flip roll arange linspace zeros full new_empty
    empty_like uniform normal bernoulli linalg.svd linalg.qr linalg.eig geqrf histogram fft.rfft
    nn.functional.conv2d nn.functional.linear nn.functional.layer_norm nn.functional.batch_norm
    nn.functional.embedding nn.functional.scaled_dot_product_attention nn.functional.interpolate.bilinear
    nn.functional.grid_sample nn.functional.cross_entropy nn.functional.dropout nn.functional.max_pool2d
    nn.functional.pad.constant
"""
SAMPLE = NAMES.split()


@pytest.fixture(scope="module")
def samples() -> ModuleType:
    """The operator database, for which everyone who collects the tests would wait two seconds."""
    from benchmarks.operator_coverage import samples

    return samples


def outcomes(*options: str) -> list[dict]:
    """What the benchmark says, from a process of its own: it forks, and the test's process has threads."""
    done = run_module("benchmarks.operator_coverage", *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def unexplained(found: list[dict]) -> dict[str, list[str]]:
    problems = defaultdict(list)
    for outcome in found:
        for text in outcome["problems"]:
            if reason_of(outcome["operator"], text) is None:
                problems[outcome["operator"]].append(f"{outcome['step']}: {text}")
    return dict(problems)


def aborted(found: list[dict]) -> list[str]:
    return [o["operator"] for o in found if any("aborted" in text for text in o["problems"])]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("part", range(3))
def test_a_sample_of_operators_is_the_same_on_a_virtual_device(part):
    names = SAMPLE[part::3]

    found = outcomes("--operators", ",".join(names))

    assert unexplained(found) == {}
    assert aborted(found) == []
    assert {outcome["step"] for outcome in found} == {"direct", "forward", "backward", "export"}
    assert {outcome["operator"] for outcome in found} == set(names)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("eighth", range(8))
def test_every_operator_is_the_same_on_a_virtual_device_or_known(eighth, samples):
    names = sorted({operator.full_name for operator in samples.operators()})[eighth::8]

    found = outcomes("--operators", ",".join(names))

    works = {outcome["operator"] for outcome in found if outcome["step"] == "direct"}
    assert unexplained(found) == {}
    assert aborted(found) == []
    assert len(works) > 60


@pytest.mark.slow
def test_an_explanation_is_still_needed():
    names = {"svd_lowrank", "linalg.eig", "nonzero_static", "tensor_split", "to_sparse"}

    found = outcomes("--operators", ",".join(sorted(names)), "--ways", "direct,export")

    assert {outcome["operator"] for outcome in found if outcome["same"] < outcome["on_cpu"]} == names


def test_an_unknown_operator_is_named(samples):
    with pytest.raises(ValueError, match="no_such_operator"):
        samples.operators(["add", "no_such_operator"])


def test_samples_that_no_fake_can_tell_apart_count_once(samples):
    (op,) = samples.operators(["add"])
    (dtype,) = samples.dtypes_of(op, "float32", needs_grad=False)

    calls = list(samples.samples_of(op, dtype, needs_grad=False, count="all"))

    everything = list(op.sample_inputs("cpu", dtype))
    assert 1 < len(calls) <= len(everything)


def test_an_abort_is_counted_and_ends_nothing_else(tmp_path):
    program = (
        "import os\n"
        "from benchmarks.operator_coverage import isolation, samples\n"
        "compare = isolation.compare\n"
        "def aborting(op, *rest):\n"
        "    if op.name == 'exp': os.abort()\n"
        "    return compare(op, *rest)\n"
        "isolation.compare = aborting\n"
        "plan = isolation.Plan('float32', 'first', ('direct',), 'H100')\n"
        "for outcomes in isolation.run(samples.operators(['exp', 'sin']), plan):\n"
        "    for o in outcomes: print(o.operator, o.same, *o.problems)\n"
    )

    done = run_python(program, folder=ROOT)

    assert sorted(done.stdout.splitlines()) == ["exp 0 aborted with SIGABRT", "sin 1"]


def test_every_operator_that_only_a_device_runs_is_listed_with_what_becomes_of_it():
    page = (ROOT / "docs" / "operators.md").read_text()

    listed = page.partition(SECTION_TITLE)[2]

    assert [name for name in device_only_operators() if group_of(name) is None] == []
    assert device_only_section().partition(SECTION_TITLE)[2] == listed
