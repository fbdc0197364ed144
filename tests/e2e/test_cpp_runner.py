"""The C++ project: written, built with cmake and g++, and run on models and on what does not fit them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.deploy import InputMismatchError
from fakexport.deploy.signature import Signature
from fakexport.deploy.weights_file import OWNER
from tests.command_line import fakexport
from tests.contract.source_tree import ROOT
from tests.cpp_runner import Runner
from tests.e2e.compiled_models import Case, gpt2, linear, mlp, save_bound, vit

safetensors = pytest.importorskip("safetensors.torch")
numpy = pytest.importorskip("numpy")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpp_runner")]

# Largest difference of an element to eager. Compiled code sums in another order.
TOLERANCE = 2e-6


def compiled(case: Case, program: Path, folder: Path) -> Runner:
    save_bound(case, folder / "model.pt2")
    package = folder / "model.aoti.pt2"
    fakexport("compile", folder / "model.pt2", "--to", "aoti", "--weights", "beside", "-o", package)
    return Runner(program, package)


def assert_as_eager(
    got: Mapping[str, torch.Tensor], case: Case, inputs: Mapping[str, torch.Tensor] | None = None
) -> None:
    wanted = case.eager(dict(inputs or case.inputs))
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor, atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module")
def weightless(cpp_runner, tmp_path_factory):
    """The program with a package for any number of rows, as `compile --to cpp-project` writes it."""
    folder = tmp_path_factory.mktemp("weightless")
    case, rows = linear(), torch.export.Dim("rows", max=2_000_000)
    fe.save(
        fe.export(lambda: case.module, (), case.inputs, dynamic_shapes={"x": {0: rows}}), folder / "m.pt2"
    )
    made = fakexport("compile", folder / "m.pt2", "--to", "cpp-project", "-o", folder / "project")
    assert "note: model.aoti.pt2 has no weights" in made.stderr
    return Runner(cpp_runner, folder / "project" / "model.aoti.pt2")


class TestModels:
    def test_an_mlp_is_as_eager_in_any_batch(self, run, tmp_path):
        case = mlp()

        for batch in (1, 3, 64):
            inputs = {"x": torch.randn(batch, 8), "twice": torch.randn(2 * batch, 8)}
            got = run.outputs(inputs, tmp_path)
            rough, wanted = got.pop("rough"), case.eager(inputs).pop("rough")

            torch.testing.assert_close(rough, wanted)  # bfloat16 has three digits
            eager = {name: value for name, value in case.eager(inputs).items() if name != "rough"}
            assert {name: value.dtype for name, value in got.items()} == {
                name: value.dtype for name, value in eager.items()
            }
            torch.testing.assert_close(got["y"], eager["y"], atol=TOLERANCE, rtol=0)
            assert torch.equal(got["best"], eager["best"])
            assert torch.equal(got["positive"], eager["positive"])

    def test_a_linear_layer_is_as_eager_whatever_the_layout_in_memory(self, weightless, tmp_path):
        case, x = linear(), torch.randn(5, 8)
        numpy.save(tmp_path / "x.npy", numpy.asfortranarray(x.numpy()))
        safetensors.save_file(case.module.state_dict(), weights := tmp_path / "weights.safetensors")
        out = tmp_path / "out"

        done = weightless("--inputs", f"x={tmp_path / 'x.npy'}", "--output", out, weights=weights)

        assert done.returncode == 0, done.stderr
        got = {path.stem: torch.from_numpy(numpy.load(path)) for path in out.iterdir()}
        assert_as_eager(got, case, {"x": x})

    @pytest.mark.exhaustive
    def test_a_vit_is_as_eager(self, cpp_runner, tmp_path):
        case = vit()
        run = compiled(case, cpp_runner, tmp_path)

        for batch in (2, 5):
            inputs = {"pixel_values": torch.randn(batch, 3, 16, 16)}
            assert_as_eager(run.outputs(inputs, tmp_path), case, inputs)

    def test_code_for_each_range_of_sizes(self, cpp_runner, tmp_path):
        (tmp_path / "model.py").write_text(
            "import torch\nfrom torch import nn\n\nclass Model(nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n"
            "        self.weight = nn.Parameter(torch.ones(3))\n"
            "    def forward(self, x):\n"
            "        return x * self.weight if x.shape[0] > 4 else x + self.weight\n\n"
            "def build():\n    return Model(), (torch.zeros(3, 3),)\n"
        )
        weights = {"weight": torch.tensor([2.0, -1.0, 5.0])}
        safetensors.save_file(weights, tmp_path / "weights.safetensors")
        archive, package = tmp_path / "model.pt2", tmp_path / "model.aoti.pt2"
        source = f"{tmp_path / 'model.py'}:build"
        fakexport("export", source, "--dynamic", "x.0=1|2..4|5..9", "-o", archive)
        fakexport("compile", archive, tmp_path / "weights.safetensors", "--to", "aoti", "-o", package)
        run = Runner(cpp_runner, package)

        for size in range(1, 10):
            x = torch.randn(size, 3)
            expected = x * weights["weight"] if size > 4 else x + weights["weight"]
            torch.testing.assert_close(run.outputs({"x": x}, tmp_path)["output"], expected)
        for size in (0, 10):
            safetensors.save_file({"x": torch.zeros(size, 3)}, tmp_path / "in.safetensors")
            refusal = run.refusal("--inputs", tmp_path / "in.safetensors")
            assert refusal == (
                f"`x` has size {size} in dimension 0, but the programs are for 1 and 2..4 and 5..9"
            )

    @pytest.mark.exhaustive
    def test_a_gpt2_is_as_eager_in_any_batch_and_length(self, cpp_runner, tmp_path):
        case = gpt2()
        run = compiled(case, cpp_runner, tmp_path)

        for batch, length in ((2, 7), (1, 3), (5, 32)):
            tokens = torch.randint(100, (batch, length))
            mask = torch.ones_like(tokens)
            mask[:, 0] = 0
            inputs = {"input_ids": tokens, "attention_mask": mask}
            assert_as_eager(run.outputs(inputs, tmp_path), case, inputs)
        too_long = torch.zeros(1, 33, dtype=torch.int64)
        safetensors.save_file(
            {"input_ids": too_long, "attention_mask": too_long + 1}, tmp_path / "in.safetensors"
        )
        assert run.refusal("--inputs", tmp_path / "in.safetensors") == (
            "`input_ids` has size 33 in dimension 1, but the program expects at most 32"
        )


def test_cmake_can_be_run_again_once_the_environment_with_torch_is_active(tmp_path):
    """What the first, failed run found is not kept."""
    without = tmp_path / "without"
    without.mkdir()
    (without / "python3").write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && case "$2" in *torch*) exit 1;; esac\nexec {sys.executable} "$@"\n',
        encoding="utf-8",
    )
    (without / "python3").chmod(0o755)
    command = ["cmake", "-S", ROOT / "src/fakexport/deploy/cpp_project/template", "-B", tmp_path / "build"]

    def run(folder: Path) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{folder}:{os.environ['PATH']}"}
        return subprocess.run(
            command, env={**os.environ, **path}, capture_output=True, text=True, check=False
        )

    refused, done = run(without), run(Path(sys.executable).parent)

    said = " ".join(refused.stderr.split())
    assert refused.returncode != 0
    assert f"{without}/python3 has no torch: activate its environment, or set CMAKE_PREFIX_PATH" in said
    assert done.returncode == 0, done.stderr


class TestPlacesOfWeights:
    def test_a_package_with_its_weights_inside_takes_no_others(self, cpp_runner, tmp_path):
        case = linear()
        save_bound(case, tmp_path / "model.pt2")
        package = tmp_path / "model.aoti.pt2"
        fakexport("compile", tmp_path / "model.pt2", "--to", "aoti", "--weights", "inside", "-o", package)
        safetensors.save_file(case.inputs, tmp_path / "in.safetensors")
        out = tmp_path / "out.safetensors"
        inputs = ("--inputs", tmp_path / "in.safetensors", "--output", out)

        refusal = Runner(cpp_runner, package).refusal(*inputs)
        command = [cpp_runner, "--package", package, *inputs]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

        assert refusal == "the package contains its weights: drop --weights"
        assert done.returncode == 0, done.stderr
        assert_as_eager(safetensors.load_file(out), case)

    def test_a_weight_less_program_gets_its_weights_when_it_runs(self, weightless, tmp_path):
        case = linear()
        package = shutil.copy(weightless.package, tmp_path)
        run, weights = Runner(weightless.program, Path(package)), tmp_path / "model.aoti.safetensors"
        safetensors.save_file(case.inputs, tmp_path / "in.safetensors")
        without = run.refusal("--inputs", tmp_path / "in.safetensors")
        safetensors.save_file(case.module.state_dict(), weights)

        assert without == f"{weights}: No such file or directory"
        assert_as_eager(run.outputs(case.inputs, tmp_path), case)

    def test_a_checkpoint_has_neither_constants_nor_both_names_of_a_tied_weight(self, cpp_runner, tmp_path):
        module = Rotary().eval()
        case = Case(module, {"ids": torch.tensor([1, 5, 9])}, {"ids": None})
        fe.save(fe.export(Rotary, (), case.inputs), tmp_path / "model.pt2")
        fakexport("compile", tmp_path / "model.pt2", "--to", "cpp-project", "-o", tmp_path / "project")
        run = Runner(cpp_runner, tmp_path / "project" / "model.aoti.pt2")
        held, weights = dict(module.state_dict()), tmp_path / "project" / "model.aoti.safetensors"

        safetensors.save_file({**held, "head.weight": torch.zeros(10, 8)}, weights)
        safetensors.save_file(case.inputs, tmp_path / "in.safetensors")
        untied = run.refusal("--inputs", tmp_path / "in.safetensors")
        for name in ("head.weight", "embed.weight"):
            safetensors.save_file({name: held[name]}, weights)
            assert_as_eager(run.outputs(case.inputs, tmp_path), case)

        assert untied in (
            f"{weights}: {one!r} and {other!r} differ, but are a single weight of the program"
            for one, other in (("head.weight", "embed.weight"), ("embed.weight", "head.weight"))
        )


class Rotary(torch.nn.Module):
    """A tied weight, a buffer that is in no checkpoint, and a literal."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("frequencies", torch.arange(1.0, 9.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embed(ids) * self.frequencies + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        return {"scores": self.head(hidden)}


class TestInputs:
    @pytest.mark.parametrize(
        "inputs",
        [
            {"x": (3, 8)},
            {"x": (3, 8), "twice": (6, 8), "other": (1,)},
            {"x": (3,), "twice": (6, 8)},
            {"x": (3, 7), "twice": (6, 8)},
            {"x": (65, 8), "twice": (130, 8)},
            {"x": (3, 8), "twice": (7, 8)},
            {"x": (3, 8), "twice": (8, 8)},
            {"x": (3, 8, torch.int64), "twice": (6, 8)},
            {"x": (3, 8, torch.bfloat16), "twice": (6, 8)},
            {},
        ],
        ids=str,
    )
    def test_what_does_not_fit_is_refused_in_the_words_of_python(self, inputs, run, tmp_path):
        tensors = {
            name: torch.zeros([size for size in of if isinstance(size, int)]).to(
                next((size for size in of if isinstance(size, torch.dtype)), torch.float32)
            )
            for name, of in inputs.items()
        }
        with pytest.raises(InputMismatchError) as refusal:
            Signature.of(mlp().program()).check(tensors)
        safetensors.save_file(tensors, tmp_path / "in.safetensors")

        assert run.refusal("--inputs", tmp_path / "in.safetensors") == str(refusal.value)

    def test_arrays_of_all_orders_and_versions_are_read(self, run, tmp_path):
        case = mlp()
        x, twice = (case.inputs[name].numpy() for name in ("x", "twice"))
        numpy.save(tmp_path / "x.npy", numpy.asfortranarray(x))
        with (tmp_path / "twice.npy").open("wb") as file:
            numpy.lib.format.write_array(file, twice, version=(2, 0))
        arrays = (f"x={tmp_path / 'x.npy'}", f"twice={tmp_path / 'twice.npy'}")

        done = run("--inputs", *arrays, "--output", tmp_path / "out.safetensors")

        assert done.stdout.splitlines()[0] == "y  float32[6, 4]"
        got = safetensors.load_file(tmp_path / "out.safetensors")["y"]
        torch.testing.assert_close(got, case.eager(case.inputs)["y"], atol=TOLERANCE, rtol=0)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--inputs", "x.npy"), "'x.npy' is neither NAME=FILE.npy nor one .safetensors file"),
            (("--inputs", "x=none.npy"), "none.npy: No such file or directory"),
            (("--inputs", "in.safetensors", "x=x.npy"), "'in.safetensors' is neither NAME=FILE.npy"),
            (("--inputs",), "--inputs needs a value; see --help"),
            (("--inputs", "-o", "out"), "--inputs needs a value; see --help"),
            (("--outputs", "x"), "unknown option '--outputs'; see --help"),
            (("--library", "none.so"), "none.so: no such file"),
            (("--library", "/dev/null"), "the library cannot be loaded: /dev/null: "),
            (("--inputs", "/dev/zero"), "'/dev/zero' is neither"),
            (("--inputs", "x=/dev/zero"), "/dev/zero: not a regular file"),
        ],
    )
    def test_a_wrong_call_is_one_line(self, options, message, run):
        assert run.refusal(*options).startswith(message)


class TestWeights:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda held: held.pop("fc1.bias"), "the weight 'fc1.bias' is missing"),
            (
                lambda held: held.update({"scale": torch.zeros(5)}),
                "the weight 'scale' is float32[5], but the program expects float32[4]",
            ),
            (
                lambda held: held.update({"fc1.bias": held["fc1.bias"].half()}),
                "the weight 'fc1.bias' is float16[16], but the program expects float32[16]",
            ),
        ],
        ids=["missing", "shape", "dtype"],
    )
    def test_weights_that_do_not_fit_are_refused(self, change, message, run, tmp_path):
        held = safetensors.load_file(run.package.with_suffix(".safetensors"))
        change(held)
        weights = tmp_path / "weights.safetensors"
        safetensors.save_file(held, weights)
        safetensors.save_file(mlp().inputs, tmp_path / "in.safetensors")

        refusal = run.refusal("--inputs", tmp_path / "in.safetensors", weights=weights)

        assert refusal == f"{weights}: {message}"

    def test_entries_that_the_program_does_not_know_are_a_note(self, run, tmp_path):
        """As `bind` warns of them (FE704)."""
        case, weights = mlp(), tmp_path / "weights.safetensors"
        held = safetensors.load_file(run.package.with_suffix(".safetensors"))
        safetensors.save_file(
            {**held, "a\nnote: forged": torch.zeros(1), "more": torch.zeros(1, dtype=torch.int8)}, weights
        )
        safetensors.save_file(case.inputs, tmp_path / "in.safetensors")
        out = tmp_path / "out.safetensors"

        done = run("--inputs", tmp_path / "in.safetensors", "--output", out, weights=weights)

        told = "has 2 entries that the model does not use: 'a?note: forged', ..."
        assert (done.returncode, done.stderr) == (0, f"note: {weights} {told}\n")
        wanted = case.eager(case.inputs)["y"]
        torch.testing.assert_close(safetensors.load_file(out)["y"], wanted, atol=TOLERANCE, rtol=0)

    def test_the_file_beside_must_be_of_the_same_compilation(self, run, tmp_path):
        """An interruption leaves an old package and new weights; what else is named is a checkpoint."""
        package, beside = tmp_path / "model.aoti.pt2", tmp_path / "model.aoti.safetensors"
        package.write_bytes(run.package.read_bytes())
        held = safetensors.load_file(run.package.with_suffix(".safetensors"))
        safetensors.save_file(held, beside, metadata={OWNER: "0" * 64})
        safetensors.save_file(held, tmp_path / "other.safetensors", metadata={OWNER: "0" * 64})
        safetensors.save_file(mlp().inputs, tmp_path / "in.safetensors")
        copied, inputs = Runner(run.program, package), ("--inputs", tmp_path / "in.safetensors")

        refusal = copied.refusal(*inputs)
        other = copied(*inputs, weights=tmp_path / "other.safetensors")
        safetensors.save_file(held, beside)
        checkpoint = copied(*inputs)

        assert refusal == (
            f"{beside} was written for a different model.aoti.pt2: compile again, or rename it to "
            "use it as a checkpoint"
        )
        assert (other.returncode, other.stderr) == (checkpoint.returncode, checkpoint.stderr) == (0, "")

    def test_other_weights_give_other_results(self, run, tmp_path):
        """None of them is a constant in the code, however few elements it has."""
        case = mlp()
        held = safetensors.load_file(run.package.with_suffix(".safetensors"))
        for tensor in held.values():
            torch.nn.init.normal_(tensor)
        case.module.load_state_dict(held)
        weights = tmp_path / "weights.safetensors"
        safetensors.save_file(held, weights)
        safetensors.save_file(case.inputs, tmp_path / "in.safetensors")
        out = tmp_path / "out.safetensors"

        done = run("--inputs", tmp_path / "in.safetensors", "--output", out, weights=weights)

        assert done.returncode == 0, done.stderr
        wanted = case.eager(case.inputs)["y"]
        torch.testing.assert_close(safetensors.load_file(out)["y"], wanted, atol=1e-5, rtol=1e-5)

    def test_without_a_file_of_weights_nothing_runs(self, run, tmp_path):
        package = tmp_path / "alone.pt2"
        package.write_bytes(run.package.read_bytes())
        safetensors.save_file(mlp().inputs, tmp_path / "in.safetensors")
        command = [run.program, "--package", package, "--inputs", tmp_path / "in.safetensors"]

        done = subprocess.run(command, capture_output=True, text=True, check=False)

        assert done.returncode == 2
        assert done.stderr == f"error: {tmp_path / 'alone.safetensors'}: No such file or directory\n"


class TestOutputs:
    def test_a_dtype_that_npy_has_not_is_named_and_nothing_written(self, run, tmp_path):
        safetensors.save_file(mlp().inputs, tmp_path / "in.safetensors")

        refusal = run.refusal("--inputs", tmp_path / "in.safetensors", "--output", tmp_path / "out")

        assert refusal == "npy cannot store bfloat16, the dtype of 'rough'; write a .safetensors file"
        assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]

    @pytest.mark.parametrize("name", ["none/out.safetensors", "none/out"])
    def test_a_folder_that_is_not_there_is_one_line(self, name, run, tmp_path):
        inputs = {name: torch.zeros(size, 8) for name, size in (("x", 1), ("twice", 2))}
        safetensors.save_file(inputs, tmp_path / "in.safetensors")

        refusal = run.refusal("--inputs", tmp_path / "in.safetensors", "--output", tmp_path / name)

        assert refusal.startswith(("cannot write", "npy cannot store"))

    def test_a_full_disk_leaves_what_was_there(self, weightless, tmp_path):
        """A limit on the size of files stands in for the disk; torch's loader needs some of it before."""
        folder = tmp_path / "out"
        folder.mkdir()
        safetensors.save_file({"x": torch.zeros(1_000_000, 8)}, tmp_path / "in.safetensors")
        safetensors.save_file(linear().module.state_dict(), tmp_path / "weights.safetensors")
        (folder / "out.safetensors").write_text("before")
        call = f"{weightless.program} --package {weightless.package} --weights ../weights.safetensors"
        call += " --inputs ../in.safetensors -o out.safetensors"

        done = subprocess.run(
            ["bash", "-c", f"trap '' XFSZ; ulimit -f {8 * 1024}; exec {call}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

        assert (done.returncode, done.stderr) == (2, "error: cannot write out.safetensors: File too large\n")
        assert (folder / "out.safetensors").read_text() == "before"
        assert [path.name for path in folder.iterdir()] == ["out.safetensors"]


def test_a_project_is_not_written_over(cpp_project):
    archive = cpp_project.parent / "mlp.pt2"
    before = {path: path.stat().st_mtime_ns for path in cpp_project.rglob("*")}

    refused = fakexport("compile", archive, "--to", "cpp-project", "-o", cpp_project, code=2)

    assert refused.stderr == f"error: {cpp_project} is not empty: pass a new folder\n"
    assert {path: path.stat().st_mtime_ns for path in cpp_project.rglob("*")} == before
