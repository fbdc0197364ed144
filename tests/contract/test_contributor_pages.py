"""What CONTRIBUTING.md and docs/architecture.md name exists."""

import re
import tomllib

import pytest
import yaml

from fakexport._version import NEWEST_TORCH, OLDEST_TORCH
from tests.contract.source_tree import ROOT
from tests.levels import heavy

PAGES = ["CONTRIBUTING.md", "docs/architecture.md", "docs/versions.md", "docs/support.md"]
PATH = re.compile(r"(?:src|tests|docs|tools|examples|benchmarks)/[\w./-]*")
PLACEHOLDER = "NAME"


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_link_and_make_target_exists(page):
    text = text_of(page)
    paths = {path.rstrip(".") for path in PATH.findall(text) if PLACEHOLDER not in path}
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.M))

    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []
    assert set(re.findall(r"(?:`|\$ )make ([\w-]+)", text)) <= targets


WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
PUBLISH = WORKFLOW.with_name("publish.yml")
NIGHTLY = WORKFLOW.with_name("nightly.yml")
NEEDED = {
    WORKFLOW: {"lint", "test", "test-slow", "test-torch", "test-package"},
    NIGHTLY: {"test-torch"},
    PUBLISH: {"test", "test-package", "test-extras", "docs"},
}


@pytest.mark.parametrize("workflow", NEEDED, ids=lambda path: path.name)
def test_a_workflow_runs_targets_that_exist(workflow):
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    ran = {run.split()[1] for run in runs if run.startswith("make ")}
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.M))

    assert NEEDED[workflow] <= ran <= targets


def test_the_workflow_runs_every_python_and_the_ends_of_the_torch_range():
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    named = [row for row in project["classifiers"] if row.startswith("Programming Language")]

    assert [
        f"Programming Language :: Python :: {version}"
        for version in jobs["tests"]["strategy"]["matrix"]["python"]
    ] == named
    versions = [tuple(map(int, text.split("."))) for text in jobs["torch"]["strategy"]["matrix"]["torch"]]
    assert (min(versions), max(versions)) == (OLDEST_TORCH, NEWEST_TORCH)
    assert f"torch>={'.'.join(map(str, OLDEST_TORCH))}" in project["dependencies"]


@pytest.mark.parametrize("workflow", NEEDED, ids=lambda path: path.name)
def test_a_workflow_names_commits_of_actions_and_no_tags_that_move(workflow):
    used = re.findall(r"uses: (.+)", workflow.read_text(encoding="utf-8"))

    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", each) for each in used)


def test_the_hooks_before_a_commit_run_what_lint_runs():
    hooks = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"][0]["hooks"]

    entries = " ".join(hook["entry"] for hook in hooks)
    assert all(f"-m {tool}" in entries for tool in ("ruff check", "ruff format", "mypy"))


def test_every_heavy_test_exists():
    """A test that was renamed would run each time, and one that is gone hides a typing error."""
    for test in heavy():
        file, *_, name = test.split("::")

        assert f"def {name}(" in text_of(file), f"{test}: write tests/heavy.txt again; see tests/levels.py"
