"""What the trace relied on is checked on every path of Python, and by stock torch's own reader."""

from __future__ import annotations

import json
import runpy
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fakexport as fe
from fakexport.archive import save_bundle
from fakexport.archive.loading import load_archive
from fakexport.archive.weights import open_checkpoint
from fakexport.cli import main
from fakexport.deploy import InputMismatchError
from fakexport.deploy import run as run_program
from tests.guarded_models import CASES, WEIGHTS, GuardedCase

Path_ = Callable[[GuardedCase, Path], Any]


def bound_directly(case: GuardedCase, _: Path) -> Any:
    return fe.bind(case.export(), WEIGHTS)


@cache
def archive_of(case: GuardedCase) -> bytes:
    """The archive of its program, which most paths begin with."""
    with tempfile.TemporaryDirectory() as folder:
        fe.save(case.export(), Path(folder, "m.pt2"))
        return Path(folder, "m.pt2").read_bytes()


def loaded_and_bound(case: GuardedCase, folder: Path) -> Any:
    (folder / "m.pt2").write_bytes(archive_of(case))
    return fe.bind(fe.load(folder / "m.pt2"), WEIGHTS)


def bound_archive(case: GuardedCase, folder: Path) -> Any:
    fe.save(loaded_and_bound(case, folder), folder / "bound.pt2")
    return fe.load(folder / "bound.pt2")


def bound_archive_in_stock_torch(case: GuardedCase, folder: Path) -> Any:
    bound_archive(case, folder)
    return torch.export.load(folder / "bound.pt2")


def linked(case: GuardedCase, folder: Path) -> Any:
    save_file(WEIGHTS, folder / "w.safetensors")
    checkpoint = open_checkpoint(folder / "w.safetensors")
    fe.save(fe.bind(case.export(), checkpoint), folder / "linked.pt2", link=checkpoint)
    return fe.load(folder / "linked.pt2")


def of_a_bundle(case: GuardedCase, folder: Path) -> Any:
    save_bundle({"one": case.export(), "two": case.export()}, folder / "bundle.pt2")
    return fe.bind(fe.load_bundle(folder / "bundle.pt2"), WEIGHTS)["two"]


def bound_bundle(case: GuardedCase, folder: Path) -> Any:
    bound = fe.bind(fe.Bundle({"one": case.export(), "two": case.export()}), WEIGHTS)
    save_bundle(bound, folder / "bound_bundle.pt2")
    return fe.load(folder / "bound_bundle.pt2", method="one")


def saved_by_stock_torch(case: GuardedCase, folder: Path) -> Any:
    program = torch.export.export(
        case.bound_model(), case.example, dict(case.kwargs), dynamic_shapes=case.dynamic
    )
    program.example_inputs = None
    torch.export.save(program, folder / "stock.pt2")
    return fe.load(folder / "stock.pt2")


def loaded_and_saved_by_stock_torch(case: GuardedCase, folder: Path) -> Any:
    torch.export.save(loaded_and_bound(case, folder), folder / "again.pt2")
    return torch.export.load(folder / "again.pt2")


def retargeted(case: GuardedCase, folder: Path) -> Any:
    program = fe.export(
        case.model, case.example, dict(case.kwargs), dynamic_shapes=case.dynamic, target="H100"
    )
    fe.save(program, folder / "cuda.pt2")
    return fe.bind(fe.load(folder / "cuda.pt2"), WEIGHTS, devices="cpu")


def retargeted_with_weights(case: GuardedCase, folder: Path) -> Any:
    return fe.retarget(bound_archive(case, folder), {"cpu": "cpu"})


PATHS: tuple[Path_, ...] = (
    bound_directly,
    loaded_and_bound,
    bound_archive,
    bound_archive_in_stock_torch,
    linked,
    of_a_bundle,
    bound_bundle,
    saved_by_stock_torch,
    loaded_and_saved_by_stock_torch,
    retargeted,
    retargeted_with_weights,
)


def calls(case: GuardedCase) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What the program must refuse."""
    return [(args, case.kwargs) for args in case.refused] + [(case.example, k) for k in case.other_kwargs]


def random(args: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, spec = torch.utils._pytree.tree_flatten(args)
    return torch.utils._pytree.tree_unflatten(
        [torch.randn(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec
    )


# Every path has some of the cases, and every case some of the paths.
WAYS = [
    pytest.param(name, path, id=f"{name}-{path.__name__}")
    for row, name in enumerate(CASES)
    for column, path in enumerate(PATHS)
    if (row + column) % 5 == 0
]


@pytest.mark.parametrize(("name", "path"), WAYS)
@pytest.mark.filterwarnings("ignore:.*weights_only.*", "ignore::UserWarning:torch")
def test_a_call_gives_what_eager_gives_or_is_refused(name: str, path: Path_, tmp_path: Path) -> None:
    case = CASES[name]
    eager, module = case.bound_model(), path(case, tmp_path).module()

    for args in (case.example, *case.fitting):
        given = random(args)
        torch.testing.assert_close(module(*given, **case.kwargs), eager(*given, **case.kwargs))
    for args, kwargs in calls(case):
        with pytest.raises(AssertionError) as refusal:
            module(*args, **kwargs)
        assert all(word in str(refusal.value) for word in ("Guard failed", *case.words))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_of_tensors])
def test_run_names_the_input_its_size_and_the_condition(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    program = bound_archive(case, tmp_path)
    eager, names = case.bound_model(), ["x", "y"][: len(case.example)]

    for args in case.fitting:
        given = random(args)
        got = run_program(program, dict(zip(names, given, strict=True)))
        torch.testing.assert_close(next(iter(got.values())), eager(*given))
    for args in case.refused:
        with pytest.raises(InputMismatchError) as refusal:
            run_program(program, dict(zip(names, args, strict=True)))
        text = str(refusal.value)
        assert text.startswith(("`x` has ", "`y` has "))
        assert " in dimension " in text
        assert "\n" not in text


def test_compare_refuses_a_call_that_the_program_excludes() -> None:
    case = CASES["parity"]
    program = fe.bind(case.export(), WEIGHTS)

    with pytest.raises(
        ValueError, match=r"not exported for these inputs: Guard failed: x.size\(\)\[1\] % 2 == 0"
    ):
        fe.compare(case.bound_model(), program, (torch.randn(2, 17, 4),))


@pytest.mark.parametrize("name", CASES)
def test_the_python_text_of_a_program_has_its_checks(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    fe.write_source(bound_archive(case, tmp_path), tmp_path / "model.py")
    module = runpy.run_path(str(tmp_path / "model.py"))["Program"]()
    module.load_state_dict(WEIGHTS)

    for args in (case.example, *case.fitting):
        given = random(args)
        torch.testing.assert_close(module(*given, **case.kwargs), case.bound_model()(*given, **case.kwargs))
    for args, kwargs in calls(case):
        with pytest.raises(AssertionError):
            module(*args, **kwargs)


def test_inspect_lists_the_conditions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fe.save(CASES["sum"].export(), tmp_path / "sum.pt2")

    assert main(["inspect", f"{tmp_path}/sum.pt2"]) == 0
    assert "conditions    (x.shape[1] + y.shape[1]) % 3 == 0\n" in capsys.readouterr().out
    assert main(["inspect", f"{tmp_path}/sum.pt2", "--format", "json"]) == 0
    plain = json.loads(capsys.readouterr().out)["methods"]["model"]
    assert plain["program"]["conditions"] == ["(x.shape[1] + y.shape[1]) % 3 == 0"]


@pytest.mark.parametrize(
    "guard",
    ["L['x'].size()[1] ** 40 > 3", "L['x'].frobnicate() > 3", "L['nobody'].size()[0] > 3"],
)
def test_a_condition_that_cannot_be_stored_is_an_error_when_saving(guard: str, tmp_path: Path) -> None:
    program = CASES["parity"].export()
    program._guards_code.append(guard)

    with pytest.raises(ValueError, match="fakexport cannot check the condition"):
        fe.save(program, tmp_path / "m.pt2")

    assert not (tmp_path / "m.pt2").exists()


def test_example_inputs_in_an_archive_have_no_values_and_no_code(tmp_path: Path) -> None:
    case = CASES["parity"]
    program = torch.export.export(case.bound_model(), random(case.example), dynamic_shapes=case.dynamic)
    fe.save(program, tmp_path / "m.pt2")

    with zipfile.ZipFile(tmp_path / "m.pt2") as file:
        (name,) = [name for name in file.namelist() if "sample_inputs" in name]
        content = torch.load(file.open(name), weights_only=True)

    assert content[1] == {}
    assert torch.equal(content[0][0], torch.zeros(2, 16, 4))
    assert content[0][0].untyped_storage().nbytes() == 4
    assert load_archive(tmp_path / "m.pt2").program.example_inputs[0][0].shape == (2, 16, 4)
