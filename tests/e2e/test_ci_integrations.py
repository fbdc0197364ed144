"""The GitHub Action and the hooks of pre-commit, run as far as a machine without GitHub can."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.contract.source_tree import ROOT
from tests.shell_command import fakexport_command

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = {
    hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
}
INSTALL, CHECK = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{ *([\w.-]+) *\}\}")
MODEL = """\
import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def good():
    return nn.Linear(4, 2), (torch.zeros(3, 4),)


def bad():
    return Gate(), (torch.zeros(3),)
"""
TABLE = '[tool.fakexport]\nsources = ["model.py:good"]\ntarget = "H100"\n'


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """A folder with the `fakexport` that is tested."""
    folder = tmp_path_factory.mktemp("tools")
    with fakexport_command(folder / "fakexport"):
        yield folder


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    (folder / "pyproject.toml").write_text(TABLE)
    return folder


@pytest.fixture
def step(tmp_path, tools, repository):
    """Runs a step as the runner does: inputs as variables, files for the summary and the outputs."""
    (tmp_path / "summary").write_text("before\n")
    (tmp_path / "output").write_text("")
    (tmp_path / "temp").mkdir()

    def run(step, **inputs):
        declared = {name: str(given["default"]) for name, given in ACTION["inputs"].items()}
        declared |= {name.replace("_", "-"): value for name, value in inputs.items()}
        values = {f"inputs.{name}": value for name, value in declared.items()}
        values["github.action_path"] = str(ROOT)

        def filled(text):
            return EXPRESSION.sub(lambda found: values[found[1]], text)

        of_runner = {
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "RUNNER_TEMP": str(tmp_path / "temp"),
            "PATH": f"{tools}:{os.environ['PATH']}",
        }
        script = tmp_path / "step.sh"
        script.write_text(filled(step["run"]))
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=repository / filled(step.get("working-directory", ".")),
            env={**os.environ, **of_runner, **{name: filled(text) for name, text in step["env"].items()}},
            capture_output=True,
            text=True,
            check=False,
        )
        outputs = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
        return done, (tmp_path / "summary").read_text(), outputs

    return run


def results(sarif):
    return json.loads(Path(sarif).read_text())["runs"][0]["results"]


def test_every_input_is_declared_and_used_and_none_is_put_into_a_script():
    steps = json.dumps(ACTION["runs"]["steps"])
    used = set(re.findall(r"inputs\.([\w-]+)", steps))

    assert used == set(ACTION["inputs"])
    assert not any("${{" in step["run"] for step in ACTION["runs"]["steps"])
    assert {"exit-code", "sarif"} == set(ACTION["outputs"])


def test_a_clean_model_passes_with_a_summary_and_sarif(step):
    done, summary, outputs = step(
        CHECK, source="model.py:good", target="cpu H100", options="--dynamic\ninput.0=2..8"
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert summary.startswith("before\n### fakexport check\n\n2 of 2 targets export; 0 errors, 0 warnings.")
    assert "| <code>model.py&#58;good</code> | <code>H100</code> | ✅ exports |" in summary
    assert outputs["exit-code"] == "0"
    assert results(outputs["sarif"]) == []


def test_a_model_that_does_not_export_fails_with_annotations(step, repository):
    done, summary, outputs = step(CHECK, source="model.py:bad")

    assert done.returncode == 1
    assert f"::error file={repository}/model.py,line=7," in done.stdout
    assert "❌ fails at capture" in summary
    assert outputs["exit-code"] == "1"
    (found,) = results(outputs["sarif"])
    assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "model.py"


def test_the_project_is_checked_without_a_source_and_against_its_lock(step, repository):
    done, summary, _ = step(CHECK)
    assert done.returncode == 0, done.stderr
    assert "<code>H100</code>" in summary

    done, summary, outputs = step(CHECK, locked="true")
    assert (done.returncode, outputs["exit-code"]) == (2, "2")
    assert "does not exist" in done.stderr
    assert "::error title=fakexport check::nothing was checked (exit code 2)" in done.stdout
    assert summary.endswith("Nothing was checked (exit code 2). The log of the step says why.\n")


@pytest.mark.parametrize("text", ["$(touch pwned)", "`touch pwned`", "x; touch pwned", "a b"])
def test_no_text_of_an_input_is_run(text, step, repository):
    done, _, outputs = step(CHECK, source=text, options=text)

    assert (done.returncode, outputs["exit-code"]) == (2, "2")
    assert not (repository / "pwned").exists()


def test_a_source_is_no_option(step, repository):
    done, _, outputs = step(CHECK, source="--write=json=model.py")

    assert (done.returncode, outputs["exit-code"]) == (2, "2")
    assert (repository / "model.py").read_text() == MODEL


def test_lines_of_options_may_end_as_on_windows(step):
    done, _, _ = step(CHECK, source="model.py:good", options="--dynamic\r\ninput.0=2..8\r\n")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("inputs", "has_torch", "installed"),
    [
        ({}, True, [[str(ROOT)]]),
        ({"install": "fakexport==0.1"}, True, [["fakexport==0.1"]]),
        (
            {"torch": "2.13.0"},
            False,
            [["torch==2.13.0", "--index-url", "https://download.pytorch.org/whl/cpu"], [str(ROOT)]],
        ),
    ],
)
def test_what_is_installed(inputs, has_torch, installed, step, tmp_path, tools):
    log = tmp_path / "installed"
    python = tools / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exit {int(not has_torch)}\n'
        '[ "$2 $3" = "pip install" ] || exit 9\nshift 3\n'
        f'printf "%s\\t" "$@" >> "{log}"; echo >> "{log}"\n'
    )
    python.chmod(0o755)
    try:
        done, _, _ = step(INSTALL, **inputs)
    finally:
        python.unlink()

    assert done.returncode == 0, done.stderr
    assert [line.rstrip("\t").split("\t") for line in log.read_text().splitlines()] == installed


@pytest.mark.parametrize(("hook", "code"), [("fakexport-check", 0), ("fakexport-lock", 2)])
def test_the_entry_of_a_hook_runs(hook, code, repository, tools):
    done = subprocess.run(
        shlex.split(HOOKS[hook]["entry"]),
        cwd=repository,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize(("source", "code"), [("good", 0), ("bad", 1)])
def test_pre_commit_runs_the_hook(source, code, repository, tools, tmp_path):
    """The real pre-commit: the hooks are in one repository, and the model in another."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
    (repository / "pyproject.toml").write_text(TABLE.replace("good", source))
    environment = {
        **os.environ,
        **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(tmp_path / "home"),
    }
    for folder in (hooks, repository):
        for git in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
            subprocess.run(["git", *git], cwd=folder, env=environment, check=True)
    rev = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=hooks, env=environment, capture_output=True, text=True, check=True
    )
    config = {
        "repos": [{"repo": str(hooks), "rev": rev.stdout.strip(), "hooks": [{"id": "fakexport-check"}]}]
    }
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    subprocess.run(["git", "add", "-A"], cwd=repository, env=environment, check=True)

    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stdout + done.stderr
    assert ("Passed" if code == 0 else "error[FE201]") in done.stdout


def test_the_problem_matcher_finds_each_finding_of_the_text_report(repository, tools):
    """Line by line, as GitHub's runner applies several patterns: each to the line after the previous one."""
    done = subprocess.run(
        [tools / "fakexport", "check", "model.py:bad", "--no-progress"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    (matcher,) = json.loads((ROOT / "examples" / "problem_matcher.json").read_text())["problemMatcher"]
    first, second = (re.compile(pattern["regexp"]) for pattern in matcher["pattern"])
    lines = done.stdout.splitlines()

    found = [
        (start.groups(), place.groups())
        for line, after in itertools.pairwise(lines)
        if (start := first.match(line)) and (place := second.match(after))
    ]

    ((severity, code, _), (path, line, _)), *others = found
    assert (severity, code, Path(path).name, line) == ("error", "FE201", "model.py", "7")
    assert not others
    assert done.stdout.count("error[") == 1
