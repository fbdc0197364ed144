"""Library models that do not export are diagnosed at their lines, and the fixes make them export."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from dataclasses import dataclass

import pytest
import torch

import fakexport as fe
from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@dataclass(frozen=True)
class Case:
    """A model, what is wrong with it, and the change that the diagnostic asks for.

    Args:
        culprit: Text that the diagnostic's columns cover.
        function: Where that is, below `modeling_NAME`.
        changes: Text of the function to its replacement.
    """

    name: str
    code: str
    culprit: str
    function: str
    changes: tuple[tuple[str, str], ...]


CASES = (
    # Adds a bucket only if something is padded: the bucket may be empty.
    Case(
        "reformer",
        "FE201",
        "attention_mask.sum().item() < batch_size * attention_mask.shape[-1]",
        "LSHSelfAttention._hash_vectors",
        ((" and (attention_mask.sum().item() < batch_size * attention_mask.shape[-1])", ""),),
    ),
    # Runs over the experts that some token chose: run over all, of which some get no tokens.
    Case(
        "dbrx",
        "FE301",
        "expert_hit",
        "DbrxExperts.forward",
        (
            ("for expert_idx in expert_hit:", "for expert_idx in range(self.num_experts):"),
            ("        expert_idx = expert_idx[0]\n", ""),
        ),
    ),
)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def source_of(case, folder):
    (architecture,) = (each for each in ARCHITECTURES if str(each) == case.name)
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {case.name}")
    return architecture.source(folder)


def modeling(case):
    return importlib.import_module(f"transformers.models.{case.name}.modeling_{case.name}")


def repair(case, monkeypatch):
    """Puts the changed function in the place of the library's."""
    owner = modeling(case)
    *path, name = case.function.split(".")
    for part in path:
        owner = getattr(owner, part)
    text = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    for old, new in case.changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    namespace = {}
    exec(compile(text, "<repaired>", "exec"), vars(modeling(case)), namespace)
    monkeypatch.setattr(owner, name, namespace[name])


def outputs(source):
    """What the model gives with real weights, the same in each call."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = source.factory()
        inputs = source.example_inputs(module, "cpu", None)
        with source.tracing(module, inputs):
            return module(*inputs.args, **inputs.kwargs)[0]


@each_case
def test_the_model_is_diagnosed_to_the_line(case, tmp_path):
    report = fe.check(source_of(case, tmp_path), target=["cpu", "H100"])

    (diagnostic,) = report.diagnostics
    span = diagnostic.primary.span
    line = inspect.getsource(modeling(case)).splitlines()[span.line - 1]
    assert diagnostic.code == case.code
    assert line[span.column - 1 : span.end_column - 1] == case.culprit
    assert span.function == case.function.rpartition(".")[2]
    assert diagnostic.targets == ("cpu", "H100")


@each_case
def test_the_repaired_model_exports_and_computes_the_same(case, tmp_path, monkeypatch):
    source = source_of(case, tmp_path)
    before = outputs(resolve(source))

    repair(case, monkeypatch)
    report = fe.check(source, target=["cpu", "H100"])
    after = outputs(resolve(source))

    assert [verdict.is_exportable for verdict in report.verdicts] == [True, True], report.diagnostics
    assert report.is_clean
    torch.testing.assert_close(after, before)
