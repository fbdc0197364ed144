"""The C++ program takes the weights of shards and folders as Python takes them."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive.weights import CheckpointError, open_checkpoint
from fakexport.deploy.aoti.opened_package import open_aoti
from fakexport.deploy.weights_file import OWNER
from tests.command_line import fakexport
from tests.cpp_runner import Runner
from tests.e2e.compiled_models import mlp
from tests.shards import INDEX, save_shards

safetensors = pytest.importorskip("safetensors.torch")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpp_runner")]

Tensors = dict[str, torch.Tensor]
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


class Tied(nn.Module):
    """Two names of one weight, and weights between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.middle = nn.Embedding(10, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.head(torch.tanh(self.middle(self.embed(ids))))}


IDS = {"ids": torch.tensor([1, 5, 9])}


@pytest.fixture(scope="module")
def tied(cpp_runner, tmp_path_factory):
    """It with a package that has no weights beside it."""
    folder = tmp_path_factory.mktemp("tied")
    fe.save(fe.export(Tied, (), IDS), folder / "tied.pt2")
    package = folder / "tied.aoti.pt2"
    fakexport("compile", folder / "tied.pt2", "--to", "aoti", "--weights", "beside", "-o", package)
    return Runner(cpp_runner, package)


def weights_of(run: Runner) -> Tensors:
    return dict(safetensors.load_file(run.package.with_suffix(".safetensors")))


def halves(tensors: Tensors) -> tuple[Tensors, Tensors]:
    named = sorted(tensors.items())
    return dict(named[: len(named) // 2]), dict(named[len(named) // 2 :])


def mlp_inputs(folder: Path) -> tuple[str, Path]:
    safetensors.save_file(mlp().inputs, folder / "in.safetensors")
    return "--inputs", folder / "in.safetensors"


class TestShards:
    def test_a_tied_weight_in_two_shards_gives_what_python_gives(self, tied, tmp_path):
        module = Tied().eval()
        held = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        head = held.pop("head.weight")
        index = save_shards(tmp_path / "checkpoint", held, {"head.weight": head})

        of_python = open_aoti(tied.package, checkpoint=index)(IDS)
        with torch.no_grad():
            eager = module(**IDS)

        for given in (index, index.parent):
            of_cpp = tied.outputs(IDS, tmp_path, weights=given)
            assert of_cpp.keys() == of_python.keys() == eager.keys()
            assert torch.equal(of_cpp["scores"], of_python["scores"])
            torch.testing.assert_close(of_cpp["scores"], eager["scores"], atol=2e-6, rtol=0)

    def test_names_of_one_weight_are_held_against_each_other_across_shards(self, tied, tmp_path):
        held = {name: tensor.clone() for name, tensor in Tied().state_dict().items()}
        head = held.pop("head.weight")
        safetensors.save_file(IDS, tmp_path / "in.safetensors")

        index = save_shards(tmp_path / "checkpoint", held, {"head.weight": head + 1})
        refusal = tied.refusal("--inputs", tmp_path / "in.safetensors", weights=index)

        assert refusal in (
            f"{index}: {one!r} and {other!r} differ, but are a single weight of the program"
            for one, other in (("head.weight", "embed.weight"), ("embed.weight", "head.weight"))
        )

    def test_a_weight_that_does_not_fit_is_told_with_its_shard(self, run, tmp_path):
        held, inputs = weights_of(run), mlp_inputs(tmp_path)
        first, second = halves(held)

        index = save_shards(tmp_path / "half", first, {**second, "scale": held["scale"].half()})
        refusal = run.refusal(*inputs, weights=index)

        told = "the weight 'scale' is float16[4], but the program expects float32[4]"
        assert refusal == f"{tmp_path / 'half' / TWO}: {told}"

    def test_a_weight_that_no_shard_has_is_told_with_the_index(self, run, tmp_path):
        held, inputs = weights_of(run), mlp_inputs(tmp_path)
        del held["fc1.bias"]

        index = save_shards(tmp_path / "part", *halves(held))
        refusal = run.refusal(*inputs, weights=index.parent)

        assert refusal == f"{index}: the weight 'fc1.bias' is missing"

    def test_weights_by_other_names_are_told_with_the_way_out(self, run, tmp_path):
        held, inputs = weights_of(run), mlp_inputs(tmp_path)
        other = {f"model.{name}": tensor for name, tensor in held.items()}

        index = save_shards(tmp_path / "hub", *halves(other))
        refusal = run.refusal(*inputs, weights=index)

        assert refusal == (
            f"{index}: 5 weights are missing: 'fc1.bias', 'fc1.weight', 'fc2.bias' and 2 more; "
            "unexpected keys: 'model.fc1.bias', 'model.fc1.weight', 'model.fc2.bias' and 2 more: "
            "if these are the weights under other names, `fakexport compile PROGRAM CHECKPOINT --to aoti "
            "--weights beside -o PACKAGE` writes them under the program's names"
        )

    def test_entries_of_any_shard_that_nobody_wants_are_one_note(self, run, tmp_path):
        held, inputs = weights_of(run), mlp_inputs(tmp_path)
        first, second = halves(held)

        first["a\u009b31m\u202e"], second["more"] = torch.zeros(1), torch.zeros(2)
        index = save_shards(tmp_path / "more", first, second)
        done = run(*inputs, weights=index.parent)

        told = "has 2 entries that the model does not use: 'a?31m?', ..."
        assert (done.returncode, done.stderr) == (0, f"note: {index} {told}\n")


class TestFolders:
    """Every file has weights of its own, so that the outputs tell which one was taken."""

    @pytest.mark.parametrize(
        "names",
        [
            ("model.safetensors",),
            ("other.safetensors", "readme.txt", "pytorch_model.bin"),
            ("model.safetensors", "other.safetensors"),
            (INDEX, "model.safetensors"),
            ("model.safetensors", "other.safetensors.index.json"),
            ("other.safetensors.index.json", "other.safetensors"),
            ("a.safetensors.index.json", INDEX),
        ],
        ids=" and ".join,
    )
    @pytest.mark.filterwarnings("ignore:.* is read, as in transformers")  # tests/unit/archive/weights has it.
    def test_the_same_file_is_taken_as_by_python(self, names, run, tmp_path):
        folder, inputs = tmp_path / "checkpoint", mlp().inputs
        folder.mkdir()
        for number, name in enumerate(names):
            self.put(folder / name, {**weights_of(run), "scale": torch.full((4,), 1.0 + number)})

        of_python = open_aoti(run.package, checkpoint=folder)(inputs)
        of_cpp = run.outputs(inputs, tmp_path, weights=folder)

        assert of_cpp.keys() == of_python.keys()
        assert all(torch.equal(of_cpp[name], of_python[name]) for name in of_cpp)

    def put(self, path: Path, tensors: Tensors) -> None:
        if path.name.endswith(".safetensors.index.json"):
            save_shards(path.parent, *halves(tensors), stem=path.name.split(".")[0])
        elif path.suffix == ".safetensors":
            safetensors.save_file(tensors, path)
        else:
            path.write_text("no weights")

    def test_files_are_followed_through_links_as_the_hubs_cache_has_them(self, run, tmp_path):
        save_shards(tmp_path / "blobs", *halves(weights_of(run)))
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir()
        for number, file in enumerate((INDEX, ONE, TWO)):
            (tmp_path / "blobs" / file).rename(tmp_path / "blobs" / f"{number:064}")
            (snapshot / file).symlink_to(Path("..", "blobs", f"{number:064}"))

        got = run.outputs(mlp().inputs, tmp_path, weights=snapshot)

        assert torch.equal(got["y"], run.outputs(mlp().inputs, tmp_path)["y"])

    def test_several_files_without_an_index_are_refused_in_the_words_of_python(self, run, tmp_path):
        inputs, folder = mlp_inputs(tmp_path), tmp_path / "checkpoint"
        folder.mkdir()
        for name in ("d", "b", "a", "c"):
            safetensors.save_file(weights_of(run), folder / f"{name}.safetensors")

        with pytest.raises(CheckpointError) as of_python:
            open_checkpoint(folder)

        assert run.refusal(*inputs, weights=folder) == str(of_python.value)

    def test_the_file_beside_a_package_is_that_file_in_a_folder_too(self, run, tmp_path):
        inputs, folder = mlp_inputs(tmp_path), tmp_path / "folder"
        folder.mkdir()
        copied = Runner(run.program, folder / "model.aoti.pt2")
        copied.package.write_bytes(run.package.read_bytes())
        beside = copied.package.with_suffix(".safetensors")
        safetensors.save_file(weights_of(run), beside, metadata={OWNER: "0" * 64})

        refusal = copied.refusal(*inputs, weights=folder)

        assert refusal.startswith(f"{beside} was written for a different model.aoti.pt2")

    @pytest.mark.parametrize("content", [(), ("pytorch_model.bin",), (".safetensors.txt",)], ids=str)
    def test_a_folder_without_safetensors_is_refused(self, content, run, tmp_path):
        inputs, folder = mlp_inputs(tmp_path), tmp_path / "checkpoint"
        (folder / "model.safetensors").mkdir(parents=True)
        for name in content:
            torch.save({}, folder / name)

        assert run.refusal(*inputs, weights=folder) == (
            f"{folder} has no .safetensors file and no index of such files"
        )
