"""Archives that earlier code wrote open as what they are, are bound and run; `write` made them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fakexport as fe
from fakexport.archive import describe
from fakexport.deploy import DeployError
from fakexport.deploy.opening import open_artifact
from tests.earlier_archives import model
from tests.earlier_archives.write import FOLDER

INPUT = torch.arange(2 * 8 * 4.0).reshape(2, 8, 4) / 64


COMMITS = sorted(path.name for path in FOLDER.iterdir() if (path / "bound.pt2").exists())


@pytest.fixture(params=COMMITS)
def folder(request):
    return FOLDER / request.param


def eager(folder: Path, given: torch.Tensor) -> torch.Tensor:
    module = model.Gated()
    module.load_state_dict(load_file(folder / "gated.safetensors"), strict=False)
    with torch.no_grad():
        return module(given)


def test_a_weightless_archive_is_bound(folder):
    bound = fe.bind(folder / "dynamic.pt2", folder / "gated.safetensors", devices="cpu")

    torch.testing.assert_close(bound.module()(INPUT), eager(folder, INPUT))


def test_a_program_on_two_devices_stays_on_them(folder):
    program = fe.load(folder / "placed.pt2")

    assert fe.summary(program).devices == ("cpu", "cuda:0")
    assert program.state_dict["down.weight"].dtype == torch.bfloat16
    assert program.state_dict["down.weight"].device == torch.device("cuda:0")


@pytest.mark.parametrize("archive", ["bound", "linked"])
def test_a_bound_archive_runs(folder, archive):
    given = INPUT[:, :6] if archive == "linked" else INPUT

    with torch.no_grad():
        result = fe.load(folder / f"{archive}.pt2").module()(given)

    torch.testing.assert_close(result, eager(folder, given))


@pytest.mark.parametrize("archive", ["dynamic", "bound"])
def test_the_condition_on_a_size_is_still_checked(folder, archive):
    program = fe.load(folder / f"{archive}.pt2")
    if archive == "dynamic":
        program = fe.bind(program, folder / "gated.safetensors", devices="cpu")

    with pytest.raises(AssertionError, match=r"x\.size\(\)\[1\] % 2"):
        program.module()(INPUT[:, :7])


@pytest.mark.parametrize("archive", ["bundle", "bound_bundle"])
def test_a_bundle_has_both_methods_and_one_weight(folder, archive):
    bundle = fe.load_bundle(folder / f"{archive}.pt2")
    if archive == "bundle":
        bundle = fe.bind(bundle, folder / "embed.safetensors")
    rows = load_file(folder / "embed.safetensors")["embed.weight"]

    assert len(bundle.shared) == 1
    assert torch.equal(bundle["read"].module()(torch.tensor([1, 2, 3])), rows[1:4])
    assert torch.equal(bundle["write"].module()(torch.eye(4)[:3]), rows.T[:3])


def test_what_was_known_of_a_program_is_still_told(folder):
    dynamic, placed = (describe(folder / f"{name}.pt2").only.manifest for name in ("dynamic", "placed"))

    assert (dynamic.source, dynamic.topology, dynamic.dynamic_shapes) == (
        "../model.py:gated",
        "H100-80GB",
        "auto",
    )
    assert placed.topology == "cpu+H100-80GB"
    assert dict(placed.device_map) == {"down": "cuda:0", "": "cpu"}
    assert placed.dtype == "bfloat16"


def test_a_constant_without_a_value_still_has_its_reason(folder):
    (unbound,) = describe(folder / "unbound_constant.pt2").only.manifest.unbound_constants

    assert unbound.name == "steps"
    assert unbound.reason == "random"


@pytest.mark.parametrize(
    ("name", "form"), [("out.pt2", "aoti"), ("out.pte", "executorch"), ("out.onnx", "onnx")]
)
def test_what_was_compiled_before_conditions_were_recorded_says_how_to_repair_it(name, form):
    """`fakexport compile` of 5188ba5 wrote them; the package is without its native code."""
    path = FOLDER / "compiled" / name

    with pytest.raises(DeployError) as raised:
        open_artifact(path, form, trust=True)

    assert str(raised.value) == (
        f"{path} was compiled by an earlier fakexport, which recorded no conditions on input sizes: compile "
        f"the program again with `fakexport compile PROGRAM.pt2 --to {form} -o OUT`"
    )
