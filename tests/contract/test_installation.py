"""Commands that messages and pages name to install something, the extras behind them, and the release."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement

from fakexport.models import packages_of
from tests.contract.source_tree import ROOT, modules
from tools.try_extras import DEVELOPMENT, USES, extras

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "action.yml"]
# No extra has them alone.
PLAIN = {"accelerate", "huggingface_hub"}


def texts_after_pip() -> Iterator[tuple[str, str]]:
    """For each text of the source that says `pip install`: its module, and what follows, as source."""
    for module in modules():
        docstrings = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
        inner = {id(part) for node in module.nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in module.nodes:
            is_text = isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in docstrings | inner
            if is_text and "pip install " in (text := ast.unparse(node)):
                yield module.path, text.partition("pip install ")[2].strip("'\"`) ")


def test_a_message_names_a_package_or_what_the_metadata_lists():
    found = dict(texts_after_pip())

    computed = {path: text for path, text in found.items() if text.startswith("{")}
    assert {path: text for path, text in found.items() if text not in PLAIN} == computed
    assert all(re.match(r"\{\(?(packages_of\(|what\}|_requirement\()", text) for text in computed.values())
    assert len(found) >= 5


def test_a_message_names_an_extra_that_exists():
    calls = [
        node.args[0].value
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "packages_of"
        and isinstance(node.args[0], ast.Constant)
    ]

    assert calls
    assert set(calls) <= extras()


@pytest.mark.parametrize("extra", sorted(extras() - {"all"}))
def test_an_extra_is_named_by_packages_of_an_index(extra):
    """An index need not have fakexport: the requirement on an extra of its own is replaced by that extra."""
    named = {Requirement(text) for text in shlex.split(packages_of(extra))}

    own = {Requirement(text.partition(";")[0]) for text in EXTRAS[extra] if not text.startswith("fakexport[")}
    assert own <= named
    assert "fakexport" not in {requirement.name for requirement in named}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_installs_from_a_clone(page):
    asked = re.findall(r"pip install ((?:-\S+ )*)'?([^\s'`]+)", page.read_text("utf-8"))

    for _, package in asked:
        extra = re.fullmatch(r"\.\[([\w,-]+)\]", package)
        assert extra is None or set(extra[1].split(",")) <= EXTRAS.keys()
        assert not re.match(r"fakexport\b", package), "no index has it"


def test_the_readme_lists_the_extras():
    install = (ROOT / "README.md").read_text("utf-8").partition("## Install")[2].partition("\n## ")[0]

    assert extras() <= set(re.findall(r"[`\[]([a-z]+)[`\]]", install))


def test_each_extra_is_tried_alone():
    assert USES.keys() - {""} == extras()
    assert EXTRAS.keys() > DEVELOPMENT


def test_all_has_what_each_extra_has():
    (every,) = EXTRAS["all"]

    named = set(re.fullmatch(r"fakexport\[(.+)\]", every)[1].split(","))
    within = {inner for name in named for inner in re.findall(r"fakexport\[(\w+)\]", str(EXTRAS[name]))}
    assert named | within == extras() - {"all"}


@pytest.fixture
def checkout(tmp_path):
    for name in ("pyproject.toml", "README.md", "tools/release.sh", "src/fakexport/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def released(checkout, tag):
    command = ["sh", "tools/release.sh", tag, "owner/name"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


@pytest.mark.skipif("urls" in PROJECT, reason="this is the sdist of a release")
def test_a_release_names_the_repository_that_publishes_it(checkout):
    from fakexport._version import __version__

    done = released(checkout, f"v{__version__}")

    assert (done.returncode, done.stderr) == (0, "")
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"]["Source"] == "https://github.com/owner/name"
    assert project == PROJECT | {"urls": project["urls"]}
    before, after = (path.read_text("utf-8") for path in (ROOT / "README.md", checkout / "README.md"))
    for link in re.findall(r"\]\(([^)]+)\)", before):
        assert (
            f"https://github.com/owner/name/{{}}/v{__version__}/{link})".format(
                "raw" if link.endswith(".svg") else "blob"
            )
            in after
        )


@pytest.mark.skipif("urls" in PROJECT, reason="this is the sdist of a release")
def test_a_release_needs_the_tag_of_its_version(checkout):
    done = released(checkout, "v99.0")

    assert done.returncode == 1
    assert "the tag is v99.0" in done.stderr
    assert (checkout / "pyproject.toml").read_text("utf-8").count("[project.urls]") == 0
