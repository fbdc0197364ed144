"""Stock torch agrees: the failing models fail at the marked line, the repaired ones export.

Virtual CUDA devices stand in as `meta` here, so that no code of ours takes part. Models that are too big
for any machine are built under torch's own fake mode.
"""

from __future__ import annotations

import sys
import traceback
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport.rules import Rule, all_rules, rule

GIB = 2**30
# Stock torch exports FE505, for a machine that does not have the device, and FE912, which its own program of
# the same process computes as eager mode does.
failing = [
    known
    for known in all_rules()
    if known.failing_model and known.fails_on in ("build", "capture") and known.code not in ("FE505", "FE912")
]
by_code = pytest.mark.parametrize("known", failing, ids=lambda known: known.code)


def build(source: str, path: Path) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    source = source.replace("cuda:0", "meta")
    path.write_text(source)
    # TorchDynamo looks up the module of a function by its name.
    loaded = sys.modules[path.stem] = types.ModuleType(path.stem)
    exec(compile(source, str(path), "exec"), vars(loaded))
    module, args = loaded.factory()
    return module, args


def export(module: torch.nn.Module, args: tuple[Any, ...], known: Rule) -> torch.export.ExportedProgram:
    dynamic: dict[str, dict[int, Any]] = {}
    for dim, range_ in (known.dynamic or {}).items():
        (name, axis), (low, high) = dim.split("."), range_.split("..")
        size = torch.export.Dim(f"{name}_{axis}", min=int(low), max=int(high))
        dynamic.setdefault(name, {})[int(axis)] = size
    return torch.export.export(module, args, dynamic_shapes=dynamic or None, strict=known.is_strict)


def innermost_line_of_the_model(error: BaseException, path: Path) -> int | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return frames[-1].lineno if frames else None


def marked_line(known: Rule) -> int:
    lines = (known.failing_model or "").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# <- {known.code}"))


def failure(known: Rule, path: Path) -> tuple[str, Exception]:
    step = "build"
    try:
        module, args = build(known.failing_model or "", path)
        step = "capture"
        export(module, args, known)
    except Exception as error:
        return step, error
    pytest.fail(f"the failing model of {known.code} exports")


@by_code
def test_the_failing_model_fails_at_the_marked_line(known: Rule, tmp_path: Path) -> None:
    path = tmp_path / "model.py"

    step, error = failure(known, path)

    assert step == known.fails_on
    assert known.torch_error, f"{known.code}: give `torch_error` a part of: {error}"
    assert known.torch_error in str(error)
    has_location = known.code not in {
        "FE206",
        "FE302",
        "FE303",
        "FE404",
    }  # stock torch names no line for these
    assert innermost_line_of_the_model(error, path) == (marked_line(known) if has_location else None)


@by_code
def test_the_repaired_model_exports_and_computes_the_same(known: Rule, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, args = build(known.repaired_model or "", tmp_path / "model.py")

    program = export(module, args, known)

    if known.code in ("FE201", "FE203", "FE204", "FE205", "FE206", "FE301", "FE302"):
        torch.manual_seed(0)
        before, args = build(known.failing_model or "", tmp_path / "before.py")
        torch.testing.assert_close(program.module()(*args), before(*args))


def test_weights_that_exceed_the_memory_are_a_warning_because_the_model_exports(tmp_path: Path) -> None:
    known = rule("FE503")
    sizes = []
    for source in (known.failing_model, known.repaired_model):
        with FakeTensorMode():
            module, args = build(source or "", tmp_path / "model.py")
        program = export(module, args, known)
        sizes.append(sum(p.numel() * p.element_size() for p in program.parameters()))

    assert sizes[0] > 80 * GIB > sizes[1]


@pytest.mark.skipif(torch.cuda.device_count() > 3, reason="has the device")
def test_an_absent_device_is_exported_by_stock_torch_and_cannot_be_used(tmp_path: Path) -> None:
    known = rule("FE505")
    path = tmp_path / "model.py"
    module, args = build(known.failing_model or "", path)

    program = export(module, args, known)

    assert "cuda:3" in str(program.graph)
    with pytest.raises((RuntimeError, AssertionError)) as caught:
        module(*args)
    assert innermost_line_of_the_model(caught.value, path) == marked_line(known)


def constants(source: str, path: Path, known: Rule) -> list[dict[str, Any]]:
    """The constants of the stock programs of two constructions of one model."""
    programs = []
    for _ in range(2):
        torch.seed()
        module, args = build(source, path)
        programs.append(export(module, args, known))
    return [program.constants for program in programs]


@pytest.mark.parametrize("code", ["FE601", "FE602"])
def test_stock_torch_stores_different_constants_for_each_construction_until_repaired(
    code: str, tmp_path: Path
) -> None:
    known = rule(code)

    with torch.random.fork_rng(devices=[]):
        first, second = constants(known.failing_model or "", tmp_path / "model.py", known)
        once, again = constants(known.repaired_model or "", tmp_path / "model.py", known)

    assert first.keys() == second.keys() != set()
    assert not any(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(once[name], again[name]) for name in once.keys() | again.keys())


def test_a_constant_that_only_a_gpu_can_compute_cannot_be_exported_by_stock_torch(tmp_path: Path) -> None:
    known = rule("FE603")

    with pytest.raises(NotImplementedError, match="acme::hadamard"):
        build(known.failing_model or "", tmp_path / "model.py")

    module, args = build(known.repaired_model or "", tmp_path / "model.py")
    assert torch.equal(export(module, args, known).constants["rotation"], module.rotation)
