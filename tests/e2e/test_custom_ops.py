"""examples/custom_ops: operators of Python and C++ and a C++ class, exported, compiled and run elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.command_line import fakexport
from tests.contract.source_tree import ROOT
from tests.cpp_runner import Runner
from tests.forked import run_python

safetensors = pytest.importorskip("safetensors.torch")

FOLDER = ROOT / "examples" / "custom_ops"
MODEL = FOLDER / "model.py"

# What `inspect` shows of a model that needs a library, and what `run` says without it.
OPERATOR = (r"signal_ops\.soft_clip\.default is not a torch operator", "signal_ops.soft_clip.default")
OBJECT = (r"objects of the C\+\+ class signal_ops::Polynomial", "the C++ class signal_ops::Polynomial")

# Runs eagerly, and writes what the commands are then given and measured by.
EAGER = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file

examples, name, out, *libraries = sys.argv[1:]
sys.path.insert(0, examples)
for library in libraries:
    torch.ops.load_library(library)
import model

torch.manual_seed(0)
module, (x,) = getattr(model, name)()
with torch.no_grad():
    save_file({"output": module(x)}, Path(out, "eager.safetensors"))
save_file({"x": x}, Path(out, "in.safetensors"))
save_file(module.state_dict(), Path(out, "weights.safetensors"))
with torch.no_grad():
    stock = torch.export.export(module, (x,))
torch.export.save(stock, Path(out, "stock.pt2"))
"""


def eager(name: str, folder: Path, *libraries: Path) -> None:
    done = run_python(EAGER, FOLDER, name, folder, *libraries)
    assert done.returncode == 0, done.stderr


def assert_runs_as_eager(folder: Path, archive: Path, *options: str | Path) -> None:
    out = folder / "out.safetensors"
    fakexport("run", archive, *options, "--inputs", folder / "in.safetensors", "-o", out)
    (got,) = safetensors.load_file(out).values()
    (wanted,) = safetensors.load_file(folder / "eager.safetensors").values()
    assert torch.equal(got, wanted)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The operators of C++, built as the page says."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    path = tmp_path_factory.mktemp("library") / "libsignal_ops.so"
    subprocess.run([sys.executable, FOLDER / "build.py", "-o", path], check=True)
    return path


def test_an_operator_of_python_goes_from_export_to_a_fresh_process(tmp_path):
    eager("python_operator", tmp_path)
    archive, weights = tmp_path / "model.pt2", tmp_path / "weights.safetensors"
    fakexport("export", f"{MODEL}:python_operator", "--no-progress", "-o", archive)

    refused = fakexport("run", archive, weights, "--inputs", tmp_path / "in.safetensors", code=2)

    assert "signal_py.envelope.default is not registered" in refused.stderr
    assert "--library" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert_runs_as_eager(tmp_path, archive, weights, "--library", MODEL)


def test_an_operator_of_python_without_fake_kernel_is_reported():
    found = fakexport("check", f"{MODEL}:without_fake_kernel", "--no-progress", code=1)

    assert "error[FE401]" in found.stdout
    assert '@torch.library.register_fake("signal_py::crossings")' in found.stdout


def test_a_file_that_is_no_library_is_one_line(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    raising = tmp_path / "raising.py"
    raising.write_text("import nowhere_to_be_found")

    missing = fakexport("inspect", "model.pt2", "--library", tmp_path / "missing.so", code=2).stderr
    unreadable = fakexport("inspect", "model.pt2", "--library", broken, code=2).stderr
    unimportable = fakexport("inspect", "model.pt2", "--library", raising, code=2).stderr

    assert re.match(r"error: Invalid value for --library: .*missing\.so: no such file", missing)
    assert re.match(r"error: Invalid value for --library: .*broken\.so cannot be loaded: ", unreadable)
    assert re.match(r"error: .*raising\.py cannot be imported: ModuleNotFoundError", unimportable)
    assert [text.count("\n") for text in (missing, unreadable, unimportable)] == [1, 1, 1]


def test_a_model_whose_library_is_not_loaded_says_so():
    found = fakexport("check", f"{MODEL}:cpp_operator", "--no-progress", code=1).stdout

    assert "name the library that registers signal_ops::soft_clip, with --library" in found


@pytest.mark.slow
@pytest.mark.xdist_group("custom_ops")
class TestCpp:
    @pytest.mark.parametrize(
        ("name", "options", "described", "said"),
        [
            ("cpp_operator", ("--target", "cpu"), *OPERATOR),
            ("cpp_operator", ("--target", "H100"), *OPERATOR),
            ("cpp_class", ("--target", "cpu", "--strict"), *OBJECT),
            ("cpp_class", ("--target", "H100"), *OBJECT),
        ],
    )
    def test_a_model_goes_from_export_to_a_fresh_process(
        self, name, options, described, said, library, tmp_path
    ):
        eager(name, tmp_path, library)
        archive, bound, weights = (
            tmp_path / name for name in ("model.pt2", "bound.pt2", "weights.safetensors")
        )
        load = ("--library", library)
        to_cpu = ("--devices", "cuda:0=cpu") if "H100" in options else ()

        fakexport("export", f"{MODEL}:{name}", *load, *options, "--no-progress", "-o", archive)
        shown = fakexport("inspect", archive).stdout
        fakexport("bind", archive, weights, *load, *to_cpu, "-o", bound)
        refused = fakexport("run", bound, code=2).stderr

        assert re.search(rf"^libraries +{described}$", shown, re.M)
        assert "missing" not in fakexport("inspect", archive, *load).stdout
        assert f"{said} is not registered" in refused
        assert "--library" in refused
        assert refused.count("\n") == 1
        assert_runs_as_eager(tmp_path, bound, *load)

    def test_an_archive_has_no_path_of_a_library(self, library, tmp_path):
        archive = tmp_path / "model.pt2"

        fakexport("export", f"{MODEL}:cpp_operator", "--library", library, "--no-progress", "-o", archive)

        assert b"libsignal_ops" not in archive.read_bytes()
        assert str(library.parent).encode() not in archive.read_bytes()

    def test_commands_that_open_programs_load_the_library_first(self, library, tmp_path):
        eager("cpp_operator", tmp_path, library)
        archive, moved = tmp_path / "model.pt2", tmp_path / "moved.pt2"
        source, load = f"{MODEL}:cpp_operator", ("--library", library)
        weights, inputs = tmp_path / "weights.safetensors", tmp_path / "in.safetensors"
        fakexport("export", source, *load, "--no-progress", "-o", archive)

        fakexport("retarget", archive, "--to", "cpu=cuda:0", "-o", moved, *load)
        differences = fakexport("diff", archive, moved, *load, code=1)
        text = fakexport("source", archive, *load)
        compared = fakexport("compare", source, archive, weights, "--inputs", inputs, *load)
        verified = fakexport("verify-weights", source, weights, *load)

        assert "cuda:0" in differences.stdout
        assert "soft_clip" in text.stdout
        assert "equal" in compared.stdout
        assert verified.returncode == 0

    def test_the_skeleton_of_a_missing_fake_class_is_enough(self, library, tmp_path):
        source = f"{MODEL}:without_fake_class"
        found = fakexport("check", source, "--library", library, "--no-progress", code=1).stdout
        assert "error[FE404]" in found
        lines = found.partition("= fix: register a fake class:\n")[2].partition("\n\n")[0].splitlines()
        text = "\n".join(line[11:] for line in lines)
        body = "        return _1.new_empty((*_1.shape, len(self.coefficients)))"
        filled = re.sub(r"^ +\.\.\.  # returns Tensor$", body, text, flags=re.MULTILINE)
        assert filled != text
        fake = tmp_path / "fake.py"
        fake.write_text(f"import torch\n{filled}\n")

        again = fakexport("check", source, "--library", library, "--library", fake, "--no-progress")

        assert "1 of 1 target exports; 0 errors" in again.stdout

    def test_torch_s_own_archive_of_an_object_runs_if_it_is_trusted(self, library, tmp_path):
        eager("cpp_class", tmp_path, library)
        stock = tmp_path / "stock.pt2"

        without = fakexport("run", stock, "--trust", code=2).stderr

        assert "the C++ class signal_ops::Polynomial is not registered" in without
        assert "--library" in without
        assert without.count("\n") == 1
        assert_runs_as_eager(tmp_path, stock, "--trust", "--library", library)


@pytest.mark.slow
@pytest.mark.xdist_group("cpp_runner")
class TestCompiled:
    """By AOTInductor: in Python, and in C++ without it."""

    @pytest.fixture
    def compiled(self, request, library, tmp_path):
        """The package of the model of this name, and beside it its weights."""
        name: str = request.param
        eager(name, tmp_path, library)
        package, compile_it = tmp_path / "model.aoti.pt2", ("--to", "aoti", "--weights", "beside", "-o")
        load: tuple[str | Path, ...] = ("--library", library)
        if name == "cpp_class":  # The compiler asks the fake class for shapes.
            load = (*load, "--library", FOLDER / "fake_polynomial.py")
        archive = tmp_path / "model.pt2"
        fakexport("export", f"{MODEL}:{name}", *load, "--no-progress", "-o", archive)
        fakexport("compile", archive, tmp_path / "weights.safetensors", *load, *compile_it, package)
        return package

    @pytest.mark.parametrize(
        ("compiled", "name"),
        [
            ("cpp_operator", "the operator signal_ops.soft_clip.default"),
            ("cpp_class", "the C++ class signal_ops::Polynomial"),
        ],
        indirect=["compiled"],
    )
    def test_what_a_library_of_cpp_has_runs_in_python_and_in_cpp(self, compiled, name, library, cpp_runner):
        folder = compiled.parent
        run, load = Runner(cpp_runner, compiled), ("--library", library)
        inputs = ("--inputs", folder / "in.safetensors")

        in_python = fakexport("run", compiled, "--trust", *inputs, code=2).stderr
        in_cpp = run.refusal(*inputs)

        assert f"{name} is not registered" in in_python
        assert "--library" in in_python
        assert in_python.count("\n") == 1
        assert in_cpp == f"{name} is not registered: pass the file of its library with --library"
        assert_runs_as_eager(folder, compiled, "--trust", *load)
        done = run(*load, *inputs, "--output", folder / "out_cpp.safetensors")
        assert (done.returncode, done.stderr) == (0, "")
        (got,) = safetensors.load_file(folder / "out_cpp.safetensors").values()
        (wanted,) = safetensors.load_file(folder / "eager.safetensors").values()
        assert torch.equal(got, wanted)
        assert b"libsignal_ops" not in compiled.read_bytes()
