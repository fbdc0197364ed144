"""A rank reads its own parts of a checkpoint, and not the rest."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import fakexport as fe
from fakexport.archive import bind, load, save_bundle
from tests.parallel_models import factory_of

pytest.importorskip("transformers")

WIDE = {"num_hidden_layers": 1, "intermediate_size": 65_536, "mlp_bias": False}  # 3 weights of 16 MiB.
RANKS = 4


@pytest.fixture(scope="module")
def program():
    return fe.export(factory_of("llama", **WIDE), parallel=f"tp={RANKS}", rank=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    model, _ = factory_of("llama", **WIDE)()
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    tensors = {
        name: weight.detach() for name, weight in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(tensors, path)
    return path


def resident_bytes(path):
    """Return how much of a file is mapped into memory, as the kernel counts it."""
    found, is_of_file = 0, False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            if "-" in line.split()[0]:
                is_of_file = line.rstrip().endswith(str(path))
            elif is_of_file and line.startswith("Rss:"):
                found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_only_the_parts_of_a_rank_are_read(program, checkpoint):
    size = checkpoint.stat().st_size

    bound = bind(program, checkpoint, check_finite=False)

    # Rows are copied, of which the kernel maps more around; gate_proj and up_proj are not read yet.
    assert resident_bytes(checkpoint) < 0.4 * size
    sums = {name: weight.detach().sum().item() for name, weight in bound.state_dict.items()}
    assert resident_bytes(checkpoint) < 0.6 * size
    assert sums["model.layers.0.mlp.up_proj.weight"] != 0


def test_bound_parts_are_those_of_the_checkpoint(program, checkpoint):
    from safetensors.torch import load_file

    whole = load_file(checkpoint)["model.layers.0.mlp.down_proj.weight"]

    bound = bind(program, checkpoint).state_dict["model.layers.0.mlp.down_proj.weight"]

    assert torch.equal(bound, whole.chunk(RANKS, 1)[1])


def test_ranks_of_a_bundle_share_no_weights(program, tmp_path):
    first = fe.export(factory_of("llama", **WIDE), parallel=f"tp={RANKS}", rank=0)

    written = save_bundle({"rank0": first, "rank1": program}, tmp_path / "ranks.pt2")

    assert written.shared == ()
    assert [about.parallel.rank for about in written.methods.values()] == [0, 1]
    assert (
        load(tmp_path / "ranks.pt2", method="rank1", trust=True).state_dict.keys()
        == program.state_dict.keys()
    )
