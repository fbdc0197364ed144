"""A loaded program at sizes that its export did not see: it gives what eager gives, or refuses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.export import ExportedProgram

import fakexport as fe
from fakexport.deploy import InputMismatchError, LoadedProgram
from fakexport.models.sources import resolve

from .reference import eager, real_model, template_of
from .sizes import Shapes
from .values import real_inputs

__all__ = ["Call", "calls_at_other_sizes"]

_SIZES = (1, 2, 3, 5, 7, 12, 17, 33, 64, 71, 96)
_COUNT = 10

Outcome = Literal["equal", "close", "refused", "raised", "eager refuses", "different"]


@dataclass(frozen=True)
class Call:
    """A call of a program.

    Args:
        shapes: Of the inputs.
        outcome: `raised` is an error inside an operator where eager raises none; `eager refuses` where eager
            raises, whatever the program does.
        detail: What was said, or how far the results are apart.
    """

    shapes: Shapes
    outcome: Outcome
    detail: str = ""


def calls_at_other_sizes(spec: str, folder: Path) -> list[Call] | None:
    """Ten other sizes of each symbol of a source's program; None where it does not export.

    The program is exported with every dimension that may vary, saved, loaded, bound to real weights, and
    called by name; `module()` must refuse what that refuses.
    """
    source = resolve(spec)
    program = _program(spec)
    if program is None:
        return None
    module = real_model(source, "float32").eval()
    fe.save(program, folder / "program.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bound = fe.bind(fe.load(folder / "program.pt2"), dict(module.state_dict()), check_finite=False)
    template = template_of(source, module, program)
    config = getattr(module, "config", None)
    run, plain, found = LoadedProgram(bound), bound.module(), []
    for shapes in _shapes(bound):
        inputs = real_inputs(template, shapes, config, seed=1, is_padded=False)
        found.append(_called(run, plain, module, inputs, shapes))
    return found


def _program(spec: str) -> ExportedProgram | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = fe.check(spec, target=["cpu"], dtype="float32", dynamic_shapes="auto")
    return report.verdicts[0].program


def _called(
    run: LoadedProgram, plain: Any, module: Any, inputs: Mapping[str, torch.Tensor], shapes: Shapes
) -> Call:
    got: list[torch.Tensor] | Exception
    try:
        torch.manual_seed(0)
        got = list(run({name: value.clone() for name, value in inputs.items()}).values())
    except InputMismatchError as error:
        return Call(shapes, "refused", str(error))
    except Exception as error:
        got = error
    try:
        wanted = eager(module, inputs)
    except Exception as error:
        return Call(shapes, "eager refuses", _first_line(error))
    if isinstance(got, Exception):
        return Call(shapes, "raised", _first_line(got))
    return Call(shapes, *_difference(got, wanted))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _difference(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> tuple[Outcome, str]:
    if [tensor.shape for tensor in got] != [tensor.shape for tensor in wanted]:
        return "different", f"shapes {[tuple(t.shape) for t in got]} for {[tuple(t.shape) for t in wanted]}"
    if all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True)):
        return "equal", ""
    for one, other in zip(got, wanted, strict=True):
        scale = other.double().abs().nan_to_num().max().item() if other.numel() else 0.0
        if not torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
            return "different", f"by {(one.double() - other.double()).abs().max():.2g} of {scale:.2g}"
    return "close", ""


def _shapes(program: ExportedProgram) -> Iterator[Shapes]:
    """The example's shapes with one symbol changed, ten times for each symbol."""
    sizes = {
        name: tuple(size if isinstance(size, int) else size.node.expr for size in shape)
        for name, shape in _input_shapes(program)
    }
    hints = {
        size.node.expr: size.node.hint
        for _, shape in _input_shapes(program)
        for size in shape
        if not isinstance(size, int) and size.node.expr.is_Symbol
    }
    for symbol, hint in sorted(hints.items(), key=str):
        for value in [size for size in _SIZES if size != hint][:_COUNT]:
            chosen = {**hints, symbol: value}
            shapes = {
                name: tuple(size if isinstance(size, int) else int(size.subs(chosen)) for size in shape)
                for name, shape in sizes.items()
            }
            # Sizes of one symbol may be a difference: no input has a negative one.
            if all(size >= 0 for shape in shapes.values() for size in shape):
                yield shapes


def _input_shapes(program: ExportedProgram) -> list[tuple[str, Any]]:
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    names = program.graph_signature.user_inputs
    return [
        (str(name), nodes[name].meta["val"].shape)
        for name in names
        if name in nodes and isinstance(nodes[name].meta["val"], torch.Tensor)
    ]
