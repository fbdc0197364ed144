"""Every rule has what CONTRIBUTING.md asks of a rule, and can be found."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fakexport.rules
from fakexport.diagnostics import Fix, Label, Span
from fakexport.report import explain
from fakexport.rules import Rule, all_rules, rule

every_rule = pytest.mark.parametrize("known", all_rules(), ids=lambda known: known.code)
with_models = [known for known in all_rules() if known.failing_model is not None]
every_rule_with_models = pytest.mark.parametrize("known", with_models, ids=lambda known: known.code)


def test_codes_are_unique_and_in_order() -> None:
    codes = [known.code for known in all_rules()]

    assert codes == sorted(set(codes))


def test_every_rule_file_is_in_the_list() -> None:
    folder = Path(fakexport.rules.__file__).parent
    files = {file.stem for file in folder.glob("*.py")} - {"__init__", "rule", "explain"}

    assert files == {known.name for known in all_rules()}


@every_rule
def test_a_rule_explains_itself(known: Rule) -> None:
    sentences = re.findall(r"[.:](?:\s|$)", known.why)

    assert len(known.message) <= 80, "a headline has at most 80 characters"
    assert len(known.message.split()) <= 8, "a headline names the fault in at most eight words"
    assert not known.message.endswith("."), "a headline is not a sentence"
    assert len(sentences) >= 3, "`why` says in three sentences or more what it is and why it matters"
    assert known.how_to_repair.strip(), "`how_to_repair` is empty"
    assert all(link.startswith("https://") for link in known.links)


TORCH_TERMS = (
    "graph break|data-dependent|unbacked SymInt|guard|missing key|unexpected key"
    "|(?:size|dtype|device) mismatch|hard-codes|hard-coded device|trac(?:e|ed|ing)|exported program"
    "|ExportedProgram|placeholder|state dict|buffers?|in-place|in place|custom operator|fake tensor"
    "|TorchDynamo"
)


@every_rule
def test_a_rule_uses_the_terms_that_people_search_for(known: Rule) -> None:
    if known.fault == "fakexport":
        return

    found = re.search(rf"\b(?:{TORCH_TERMS})\b", f"{known.message} {known.why}", re.IGNORECASE)

    assert found, "use one of TORCH_TERMS in the headline or in `why`: the words that people search for"


def test_only_what_no_factory_shows_has_no_model() -> None:
    """Faults of our own or of a library, what `hf:` does not derive, a process that ends, plans, and what a
    loaded model has.
    """
    without = [known.code for known in all_rules() if known.failing_model is None]

    assert without == ["FE001", "FE002", "FE003", "FE104", "FE105", "FE106", "FE405", "FE908", "FE920"]


@every_rule_with_models
def test_the_culprit_is_marked_once_and_only_in_the_failing_model(known: Rule) -> None:
    failing, repaired = known.failing_model or "", known.repaired_model or ""

    marked = len(re.findall(rf"\S  # <- {known.code}$", failing, re.MULTILINE))
    assert marked == 1, f"one line of the failing model ends in `  # <- {known.code}`"
    assert failing.count("# <-") == 1
    assert "# <-" not in repaired


@every_rule_with_models
def test_both_models_are_python_files_with_a_factory(known: Rule) -> None:
    for source in (known.failing_model or "", known.repaired_model or ""):
        tree = ast.parse(source)

        functions = [
            node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "factory"
        ]
        assert len(functions) == 1
        assert not functions[0].args.args


@every_rule_with_models
def test_the_repair_is_a_small_change(known: Rule) -> None:
    failing, repaired = (known.failing_model or "").splitlines(), (known.repaired_model or "").splitlines()

    kept = [line for line in repaired if line in failing]

    assert failing != repaired
    assert len(kept) >= 0.6 * len(repaired), "most lines of the repaired model are those of the failing one"


@every_rule
def test_a_rule_is_found_by_code_and_by_name(known: Rule) -> None:
    for key in (known.code, known.code.lower(), known.name, known.name.replace("_", "-"), f" {known.code} "):
        assert rule(key) is known


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [("FE2100", "FE210"), ("data_dependant_branch", "FE201"), ("fe999", "FE"), ("", "FE")],
)
def test_an_unknown_rule_gets_the_nearest_codes_on_one_line(asked: str, nearest: str) -> None:
    with pytest.raises(ValueError, match="unknown rule") as caught:
        rule(asked)

    assert nearest in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rule_makes_diagnostics_that_carry_its_headline() -> None:
    known = rule("FE401")
    label = Label(Span("m.py", 3), "acme::scale_rows")

    made = known.diagnostic(labels=(label,), notes=("n",), fix=Fix("f"), node="x", count=2, targets=("cpu",))

    assert (made.code, made.severity, made.message) == (known.code, known.severity, known.message)
    assert (made.labels, made.notes, made.fix, made.node) == ((label,), ("n",), Fix("f"), "x")
    assert (made.count, made.targets, made.fault) == (2, ("cpu",), "operator library")
    assert known.diagnostic(fault="torch").fault == "torch"


def test_a_model_without_a_repair_and_a_repair_that_does_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="both a failing model and its repair"):
        Rule("FE999", "x", "error", "m", "why", "how", "failing", None, "capture")
    for model, times in (("\na\n", 0), ("\nb\na\nb\n", 2)):
        with pytest.raises(ValueError, match=f"its model has this {times} times, not once:\nb\n"):
            _ = Rule("FE999", "x", "error", "m", "why", "how", model, "-b\n+c", "never").repaired_model
    with pytest.raises(ValueError, match="build, capture, weights, retarget, compile, never"):
        Rule("FE999", "x", "error", "m", "why", "how", None, None, "later")  # type: ignore[arg-type]


@every_rule
def test_the_page_holds_everything(known: Rule) -> None:
    page = explain(known.code)

    assert page.startswith(f"# {known.code}: {known.name}\n")
    assert page.endswith("\n")
    assert not page.endswith("\n\n")
    for part in (known.message, known.why, known.how_to_repair, known.failing_model, known.repaired_model):
        assert (part or "").strip() in page
    assert page.count("```") % 2 == 0


def test_golden_of_a_page() -> None:
    known = rule("FE302")

    assert explain("fe302") == (
        "# FE302: dynamic_dim_specialized\n\n"
        f"    error[FE302]: {known.message}\n\n"
        f"{known.why.strip()}\n\n"
        "## A model that fails\n\n"
        f"```python\n{(known.failing_model or '').strip()}\n```\n\n"
        "Save it as `model.py` and run "
        "`fakexport check model.py:factory --target cpu --dynamic x.0=1..64`.\n\n"
        "## How to fix it\n\n"
        f"{known.how_to_repair.strip()}\n\n"
        "## The fixed model\n\n"
        f"```python\n{(known.repaired_model or '').strip()}\n```\n\n"
        "## See also\n\n"
        "- <https://docs.pytorch.org/docs/stable/export.programming_model.html>\n"
        "- <https://docs.pytorch.org/docs/stable/generated/exportdb/torch.dynamic-shape.html>\n"
        "- <https://docs.pytorch.org/docs/stable/generated/exportdb/python.builtin.html>\n"
    )


def test_rules_and_diagnostics_load_without_torch() -> None:
    code = "import sys, fakexport.report, fakexport.diagnostics; print('torch' in sys.modules)"
    path = str(Path(fakexport.rules.__file__).parents[2])

    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )

    assert run.stdout.strip() == "False"
