"""No `pyproject.toml` that another user could have placed runs code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import fakexport_here

MODEL = "import torch\n\ndef model():\n    return torch.nn.Linear(3, 2), (torch.zeros(2, 3),)\n"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 16,
    "model_type": "llama",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 32,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `pyproject.toml` loads a library that leaves a mark; the working directory is below."""
    folder = tmp_path / "project"
    (folder / "below").mkdir(parents=True)
    (folder / "library.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()\n")
    (folder / "pyproject.toml").write_text('[tool.fakexport]\nlibraries = ["library.py"]\n')
    (folder / "below" / "model.py").write_text(MODEL)
    (folder / "below" / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(folder / "below")
    return folder


def was_run(project: Path) -> bool:
    return (project.parent / "was_run").exists()


def test_the_project_of_the_user_runs(project: Path) -> None:
    fakexport_here("check", "model.py:model")

    assert was_run(project)


@pytest.mark.parametrize("command", ["check", "lock"])
def test_a_configuration_loads_no_library_of_a_file_beside_it(command: str, project: Path) -> None:
    done = fakexport_here(command, "hf:config.json")

    assert not was_run(project)
    assert f"`libraries` in {project / 'pyproject.toml'} does not apply to hf:config.json" in done.stderr


def test_a_library_that_the_user_names_is_loaded_for_a_configuration(project: Path) -> None:
    fakexport_here("check", "hf:config.json", "--library", "../library.py")

    assert was_run(project)


@pytest.mark.parametrize("name", ["pyproject.toml", "."])
def test_what_others_can_write_is_refused(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`private_folder` decides; its own tests have other owners and groups."""
    monkeypatch.chdir(project)
    place = project / name
    place.chmod(0o777)

    done = fakexport_here("check", "below/model.py:model", code=2)

    assert not was_run(project)
    assert f"{place} is writable by " in done.stderr
    assert "does not run the code that pyproject.toml names" in done.stderr


def test_the_search_ends_at_a_folder_that_others_can_write_to(project: Path) -> None:
    project.chmod(0o777)

    fakexport_here("check", "model.py:model")

    assert not was_run(project)


@pytest.mark.parametrize("mark", [".git", ".hg"])
def test_the_search_ends_at_the_root_of_the_repository(mark: str, project: Path) -> None:
    (project / "below" / mark).mkdir()

    fakexport_here("check", "model.py:model")

    assert not was_run(project)


def test_the_search_ends_at_the_home_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project / "below"))

    fakexport_here("check", "model.py:model")

    assert not was_run(project)
