"""The C++ program that runs compiled packages, built once: its sources are the same for all of them."""

import dataclasses
import shutil
import subprocess
import sys

import pytest

from tests.command_line import fakexport
from tests.cpp_runner import Runner
from tests.e2e.compiled_models import mlp, save_bound


@pytest.fixture(scope="session")
def cpp_project(tmp_path_factory):
    """What `fakexport compile --to cpp-project` writes of an MLP."""
    if missing := [tool for tool in ("g++", "cmake") if shutil.which(tool) is None]:
        pytest.skip(f"needs {missing[0]}")
    folder = tmp_path_factory.mktemp("cpp")
    save_bound(mlp(), folder / "mlp.pt2")
    fakexport("compile", folder / "mlp.pt2", "--to", "cpp-project", "-o", folder / "project")
    return folder / "project"


@pytest.fixture(scope="session")
def cpp_runner(cpp_project):
    """The program, built with the torch that runs the tests.

    The README's build takes four times as long: it optimizes, and reads torch's headers for each source file.
    `make test-all` runs it, as docs/deploy.md shows it.
    """
    build = cpp_project / "build"
    quick = ("-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DCMAKE_UNITY_BUILD=ON")
    subprocess.run(
        ["cmake", "-B", build, f"-DPython3_EXECUTABLE={sys.executable}", *quick], cwd=cpp_project, check=True
    )
    subprocess.run(["cmake", "--build", build, "--parallel", "2"], check=True)
    return build / "run"


@pytest.fixture(scope="session")
def run(cpp_runner, cpp_project):
    """It with the MLP."""
    return Runner(cpp_runner, cpp_project / "model.aoti.pt2")


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A model of 1024 tokens and one layer with its checkpoint, and the project of its bundle."""
    from fakexport.deploy import compile
    from tests.generation.agreement import exported
    from tests.generation.families import NAMED

    folder = tmp_path_factory.mktemp("llama")
    family = NAMED["llama"]
    config = {**family.config, "vocab_size": 1024, "num_hidden_layers": 1}
    model = dataclasses.replace(family, config=config).saved(folder)
    exported(folder)
    made = compile(folder / "model.pt2", folder / "project", to="cpp-project")
    assert made.notes == ("the programs have no weights: pass them with `generate --weights PATH`",)
    return model, folder
