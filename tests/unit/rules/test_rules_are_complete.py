"""Every rule has what CONTRIBUTING.md asks of a rule, and can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fakexport.report import explain
from fakexport.rules import Rule, all_rules, rule

every_rule = pytest.mark.parametrize("known", all_rules(), ids=lambda known: known.code)
TORCH_TERMS = (
    "graph break|data-dependent|unbacked SymInt|guard|missing key|unexpected key"
    "|(?:size|dtype|device) mismatch|hard-codes|hard-coded device|trac(?:e|ed|ing)|exported programs?"
    "|ExportedProgram|placeholder|state dict|buffers?|in-place|in place|custom operator|fake tensor"
    "|TorchDynamo"
)


def test_codes_are_unique() -> None:
    codes = [known.code for known in all_rules()]

    assert codes == sorted(set(codes))


@every_rule
def test_a_rule_explains_itself(known: Rule) -> None:
    sentences = re.findall(r"[.:](?:\s|$)", known.why)
    terms = re.findall(rf"\b(?:{TORCH_TERMS})\b", f"{known.message} {known.why}", re.IGNORECASE)

    assert len(known.message) <= 80, "a headline has at most 80 characters"
    assert len(known.message.split()) <= 8, "a headline names the fault in at most eight words"
    assert not known.message.endswith("."), "a headline is not a sentence"
    assert len(sentences) >= 3, "explain in three sentences or more what the fault is and why it matters"
    assert known.how_to_repair, "`How to fix it` is empty"
    assert all(link.startswith("https://") for link in known.links)
    assert terms or known.fault == "fakexport", "use one of TORCH_TERMS, the words that people search for"


def test_only_what_no_factory_shows_has_no_model() -> None:
    """Faults of our own or of a library, what `hf:` does not derive, a process that ends, plans, and what a
    loaded model has.
    """
    without = [known.code for known in all_rules() if known.failing_model is None]

    assert without == [
        "FE001",
        "FE002",
        "FE003",
        "FE104",
        "FE105",
        "FE106",
        "FE405",
        "FE407",
        "FE908",
        "FE920",
    ]


@pytest.mark.parametrize(
    "known", [each for each in all_rules() if each.failing_model], ids=lambda known: known.code
)
def test_the_repair_is_a_small_change_of_the_marked_model(known: Rule) -> None:
    failing, repaired = known.failing_model or "", known.repaired_model or ""
    kept = [line for line in repaired.splitlines() if line in failing.splitlines()]

    marked = len(re.findall(rf"\S  # <- {known.code}$", failing, re.MULTILINE))
    assert marked == failing.count("# <-") == 1, (
        f"one line of the failing model ends in `  # <- {known.code}`"
    )
    assert "# <-" not in repaired
    assert failing != repaired
    assert len(kept) >= 0.6 * len(repaired.splitlines()), "most lines of the repaired model stay the same"


@every_rule
def test_a_rule_is_found_by_code_and_by_name(known: Rule) -> None:
    for key in (known.code, known.code.lower(), known.name, known.name.replace("_", "-"), f" {known.code} "):
        assert rule(key) is known


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [("FE2100", "FE210"), ("data_dependant_branch", "FE201"), ("fe999", "FE"), ("", "FE")],
)
def test_an_unknown_rule_gets_the_nearest_codes_on_one_line(asked: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"unknown rule .*{nearest}") as caught:
        rule(asked)

    assert "\n" not in str(caught.value)


def test_a_model_without_a_repair_and_a_repair_that_does_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="both a failing model and its repair"):
        Rule("FE999", "x", "error", "m", "why", "how", "failing", None, "capture")
    for model, times in (("a\n", 0), ("b\na\nb\n", 2)):
        with pytest.raises(
            ValueError, match=f"the model must contain these lines once, not {times} times:\nb\n"
        ):
            _ = Rule("FE999", "x", "error", "m", "why", "how", model, "-b\n+c").repaired_model
    with pytest.raises(ValueError, match="build, capture, weights, retarget, compile, never"):
        Rule("FE999", "x", "error", "m", "why", "how", None, None, "later")  # type: ignore[arg-type]


def test_a_page_without_a_part_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "x.md"
    page.write_text('+++\ncode = "FE999"\n+++\n\nWhy.\n')

    with pytest.raises(ValueError, match=r"x\.md is not the page of a rule"):
        Rule.read(page)


def test_golden_of_a_page() -> None:
    known = rule("FE302")

    assert explain("fe302") == (
        "# FE302: dynamic_dim_specialized\n\n"
        f"    error[FE302]: {known.message}\n\n"
        f"{known.why}\n\n"
        "## A model that fails\n\n"
        f"```python\n{known.failing_model}```\n\n"
        "Save it as `model.py` and run "
        "`fakexport check model.py:factory --target cpu --dynamic x.0=1..64`.\n\n"
        "## How to fix it\n\n"
        f"{known.how_to_repair}\n\n"
        "## The fixed model\n\n"
        f"```python\n{known.repaired_model}```\n\n"
        "## See also\n\n"
        "- <https://docs.pytorch.org/docs/stable/export.programming_model.html>\n"
        "- <https://docs.pytorch.org/docs/stable/generated/exportdb/torch.dynamic-shape.html>\n"
        "- <https://docs.pytorch.org/docs/stable/generated/exportdb/python.builtin.html>\n"
    )
