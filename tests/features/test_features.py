"""Every feature against stock `torch.export` of the real module on the CPU, and against eager's values.

The program for the CPU is stock's, node for node. Programs for other devices are bound to the CPU, where they
give the values that stock's program gives, up to other kernels of attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import fakexport as fe
from fakexport._torch.tracing.vmap_steps import transform_levels_closed

from . import attention, layers, numbers, operators, transforms, wrappers
from .feature import FEATURES, Made
from .known import ANSWERED, DIFFERENCES, NOT_FOR_STOCK, NOT_SAVED, REPORTED

assert all((attention, layers, numbers, operators, transforms, wrappers))  # They fill the table.

TOPOLOGIES = {"cpu": "cpu", "cuda": "H100", "xpu": "xpu", "mps": "mps"}
WAYS = tuple(
    (way, device)
    for way in ("static", "dynamic", "strict")
    for device in (TOPOLOGIES if way == "static" else ("cpu", "cuda"))
)


IN_CI = ("dynamic", "cpu")
"""The way in which CI takes every feature, besides saving them; of the others every eighth, in turn."""


def _cases() -> Iterator[Any]:
    """Every feature in every way; by default a sixth of the features, in turn for the CPU and for a GPU."""
    names = [name for name in FEATURES if name not in REPORTED]
    for index, name in enumerate(names):
        for turn, (way, device) in enumerate(WAYS):
            is_default = way == "static" and (index % 12, device) in ((0, "cpu"), (6, "cuda"))
            is_default |= (name, way, device) == (
                "batch_norm_train",
                "static",
                "cuda",
            )  # Alone in what it binds.
            is_slow = (way, device) == IN_CI or (index + turn) % 8 == 0
            marks = () if is_default else pytest.mark.slow if is_slow else pytest.mark.exhaustive
            yield pytest.param(name, way, device, id=f"{name}-{way}-{device}", marks=marks)


def made(make: Callable[[], Made]) -> Made:
    torch.manual_seed(0)
    return make()


def stock(make: Callable[[], Made], way: str) -> torch.export.ExportedProgram | None:
    """The program of the real module; None where stock torch cannot export it."""
    module, args = made(make)
    shapes: Any = None
    if way == "dynamic":
        shapes = tuple(dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) for x in args)
        kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
        shapes = (shapes,) if inspect.Parameter.VAR_POSITIONAL in kinds else shapes
    try:
        with transform_levels_closed():
            return torch.export.export(module, args, dynamic_shapes=shapes, strict=way == "strict")
    except Exception:
        return None


def options(way: str) -> dict[str, Any]:
    return {"static": {}, "dynamic": {"dynamic_shapes": "auto"}, "strict": {"strict": True}}[way]


def run(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    torch.manual_seed(1)
    with torch.no_grad():
        return [*tree_leaves(function(*args)), *args]


@pytest.mark.alone
@pytest.mark.parametrize(("name", "way", "device"), [*_cases()])
@pytest.mark.filterwarnings("ignore")  # Of torch, about what a model does; stock gives the same.
def test_a_feature_exports_as_stock_does_and_gives_its_values(name, way, device):
    make = FEATURES[name]
    if name in DIFFERENCES and device in DIFFERENCES[name].devices:
        pytest.skip(DIFFERENCES[name].reason)
    real = stock(make, way)
    ways, devices = ANSWERED.get(name, ((), ()))
    is_answered = way in ways and device in devices
    assert not (is_answered and real), "stock has changed: take it out of the table"
    if real is None and not is_answered:
        assert name in ANSWERED or way != "static", "stock cannot export it: put it in a table"
        pytest.skip("stock cannot export it this way")

    program = fe.export(make, target=TOPOLOGIES[device], **options(way))

    if device == "cpu" and real is not None:
        assert str(program.graph) == str(real.graph)
        assert str(program.graph_signature) == str(real.graph_signature)
    module, args = made(make)
    bound = fe.bind(program, dict(module.state_dict()), devices=None if device == "cpu" else "cpu")
    results = run(bound.module(), args)
    eager_module, eager_args = made(make)
    eager = run(eager_module, eager_args)
    expected = eager if real is None else run(real.module(), made(make)[1])
    for one, other, third in zip(results, expected, eager, strict=True):
        if isinstance(one, torch.Tensor):
            close = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-5}
            torch.testing.assert_close(one, other, **close, equal_nan=True)
            torch.testing.assert_close(one, third, rtol=1e-4, atol=1e-5, equal_nan=True)


ALWAYS_SAVED = ("flex_block_mask", "jvp", "sparse_csr_product", "while_loop")


def _saved_cases() -> Iterator[Any]:
    """Every feature for the CPU, and exhaustively for a GPU; by default a few."""
    for index, name in enumerate(name for name in FEATURES if name not in REPORTED):
        for device, place in (("cpu", 0), ("cuda", 9)):
            is_default = index % 18 == place or (name in ALWAYS_SAVED and device == "cpu")
            others = pytest.mark.slow if device == "cpu" else pytest.mark.exhaustive
            marks = () if is_default else others
            yield pytest.param(name, device, id=f"{name}-{device}", marks=marks)


@pytest.mark.alone
@pytest.mark.parametrize(("name", "device"), [*_saved_cases()])
@pytest.mark.filterwarnings("ignore")
def test_a_feature_that_was_saved_gives_the_same_values(name, device, tmp_path):
    make, place = FEATURES[name], None if device == "cpu" else "cpu"
    if name in DIFFERENCES and device in DIFFERENCES[name].devices:
        pytest.skip(DIFFERENCES[name].reason)
    program = fe.export(make, target=TOPOLOGIES[device])
    if name in NOT_SAVED:
        with pytest.raises(ValueError, match=NOT_SAVED[name]):
            fe.save(program, tmp_path / "feature.pt2")
        return

    fe.save(program, tmp_path / "feature.pt2")

    bound = fe.bind(tmp_path / "feature.pt2", dict(made(make)[0].state_dict()), devices=place)
    unsaved = fe.bind(program, dict(made(make)[0].state_dict()), devices=place)
    if name in NOT_FOR_STOCK:
        with pytest.raises(ValueError, match=NOT_FOR_STOCK[name]):
            fe.save(bound, tmp_path / "bound.pt2")
        with pytest.raises(Exception, match="Failed serializing node flex_attention"):
            torch.export.save(bound, tmp_path / "stock.pt2")
        others = [unsaved]
    else:
        fe.save(bound, tmp_path / "bound.pt2")
        others = [unsaved, torch.export.load(tmp_path / "bound.pt2")]
    results = run(bound.module(), made(make)[1])
    for other in others:
        assert_equal(results, run(other.module(), made(make)[1]))
    assert_equal(results, run(*made(make)), rtol=1e-4, atol=1e-5)


def assert_equal(results: list[Any], expected: list[Any], rtol: float = 0, atol: float = 0) -> None:
    for one, other in zip(results, expected, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("name", [*DIFFERENCES, *REPORTED])
@pytest.mark.filterwarnings("ignore")
def test_what_differs_is_reported_with_a_fix(name):
    known = DIFFERENCES.get(name)
    code = known.code if known else REPORTED[name]

    report = fe.check(FEATURES[name], target=list(TOPOLOGIES.values()))

    assert (stock(FEATURES[name], "static") is None) == (known is None), "stock has changed: take it out"
    verdicts = dict(zip(TOPOLOGIES, report.verdicts, strict=True))
    failed = {device for device, verdict in verdicts.items() if not verdict.is_exportable}
    assert failed == set(known.devices if known else TOPOLOGIES), "it exports now: take it out of the table"
    errors = [found for found in report.diagnostics if found.severity == "error"]
    assert code in {found.code for found in errors}
    assert all(found.fix is not None for found in errors)


def test_every_entry_of_the_tables_is_a_feature():
    assert {*DIFFERENCES, *REPORTED, *ANSWERED, *NOT_SAVED, *NOT_FOR_STOCK} <= set(FEATURES)
    assert len(FEATURES) >= 100
