"""What a model is, where its package is: archives for two targets, a checkpoint, inputs, eager's outputs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

import fakexport as fe
from fakexport.models.sources import Source, SourceError, resolve
from fakexport.report import Report

from .sizes import Shapes, accepts, as_shapes, dynamic_dims, other_sizes
from .values import real_inputs

__all__ = ["TARGETS", "calls_of", "eager", "real_model", "template_of", "why", "write_case"]

TARGETS = ("cpu", "H100")
_SEED = 0


def write_case(
    spec: str,
    folder: Path,
    *,
    targets: Sequence[str] = TARGETS,
    dynamic_shapes: str | None = "auto",
    is_float32: bool = False,
    noise: float = 0.02,
) -> None:
    """Writes one case to an empty folder; `case.json` says what is there, and comes last.

    Args:
        spec: `hf:...` or `timm:...`.
        targets: Those to export for.
        dynamic_shapes: As for `check`.
        noise: What is added to the weights, so that all differ.
        is_float32: Whether experts also stay in float32, where their product is an operator of transformers.
        folder: Gets `TARGET.pt2`, `checkpoint/`, and for each set of sizes `inputs-N.safetensors` and
            `outputs-N.safetensors`.
    """
    source = resolve(spec)
    dtype, failures, programs = "float32", *_programs(spec, "float32", targets, dynamic_shapes)
    if not is_float32 and any(_needs_library(program) for program in programs.values()):
        dtype, failures, programs = "bfloat16", *_programs(spec, "bfloat16", targets, dynamic_shapes)
    case: dict[str, Any] = {"dtype": dtype, "failures": failures, "dynamic": {}, "sizes": [], "padded": []}
    for target, program in programs.items():
        fe.save(program, folder / f"{target}.pt2")
        case["dynamic"][target] = {name: list(dims) for name, dims in dynamic_dims(program).items()}
    if programs:
        module = real_model(source, dtype, noise)
        case["class"] = type(module).__name__
        template = template_of(source, module, next(iter(programs.values())))
        _write_checkpoint(module, folder / "checkpoint")
        case["example"] = as_shapes(template)
        calls = calls_of(source, module, list(programs.values()))
        for number, (shapes, inputs, outputs, is_padded) in enumerate(calls, start=1):
            save_file(inputs, folder / f"inputs-{number}.safetensors")
            save_file(_numbered(outputs), folder / f"outputs-{number}.safetensors")
            case["sizes"].append(shapes)
            case["padded"].append(is_padded)
    (folder / "case.json").write_text(json.dumps(case))


def calls_of(
    source: Source, module: nn.Module, programs: list[ExportedProgram]
) -> Iterator[tuple[Shapes, dict[str, torch.Tensor], list[torch.Tensor], bool]]:
    """Sizes, inputs, eager's outputs, whether a row is padded; at sizes other than those of the export."""
    template = template_of(source, module, programs[0])
    example, fixed = as_shapes(template), _fixed_values(source, module)
    sets = _sizes(module, template, fixed, example, programs)
    for number, shapes in enumerate(sets or [example], start=1):
        yield shapes, *_called(module, template, fixed, shapes, number)


def _programs(
    spec: str, dtype: str, targets: Sequence[str], dynamic_shapes: str | None
) -> tuple[dict[str, str], dict[str, ExportedProgram]]:
    """Target -> why it has no program, and target -> program; exported at one size if it allows no other."""
    failures, programs = {}, {}
    for target in targets:
        try:
            report = _checked(spec, target, dtype, dynamic_shapes)
            if report.verdicts[0].program is None:
                report = _checked(spec, target, dtype, None)
        except SourceError as error:
            failures[target] = f"SourceError: {error}"
            continue
        program = report.verdicts[0].program
        if program is None:
            failures[target] = why(report)
        else:
            programs[target] = program
    return failures, programs


def _checked(spec: str, target: str, dtype: str, dynamic_shapes: str | None) -> Report:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fe.check(spec, target=[target], dtype=dtype, dynamic_shapes=dynamic_shapes)


def _needs_library(program: ExportedProgram) -> bool:
    """Whether it calls an operator that only transformers brings, as its experts in float32 do."""
    targets = (node.target for node in program.graph.nodes)
    return any(getattr(target, "namespace", "") == "transformers" for target in targets)


def real_model(source: Source, dtype: str, noise: float = 0.02) -> nn.Module:
    """The model with real weights, every one in its checkpoint different, so that a swap of two shows."""
    torch.manual_seed(_SEED)
    with _default_dtype(getattr(torch, dtype)):
        module: nn.Module = source.factory()
    generator = torch.Generator().manual_seed(_SEED)
    # Weights that no checkpoint contains, such as Marian's positions, are what the model computes.
    unsaved = getattr(module, "_keys_to_ignore_on_save", None) or ()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in unsaved:
                continue
            drawn = torch.randn(parameter.shape, generator=generator) * noise
            parameter.copy_(torch.nan_to_num(parameter, 0.0, 0.0, 0.0).clamp(-10, 10) + drawn)
    return module


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def eager(module: nn.Module, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors of the module's output, in order."""
    torch.manual_seed(_SEED)
    with torch.no_grad():
        args, kwargs = _arguments(module, inputs)
        outputs = module(*args, **kwargs)
    return [leaf.detach() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _arguments(module: nn.Module, inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    is_named = hasattr(module, "config")  # timm's models take one image, whatever they call it
    return ((), dict(inputs)) if is_named else (tuple(inputs.values()), {})


def why(report: Report) -> str:
    """The first error of a report in one line."""
    found = [d for d in report.diagnostics if d.severity == "error"] or list(report.diagnostics)
    notes = "; ".join(note.splitlines()[0] for note in found[0].notes[:1])
    return f"{found[0].code}: {found[0].message}" + (f" ({notes})" if notes else "")


def template_of(source: Source, module: nn.Module, program: ExportedProgram) -> dict[str, torch.Tensor]:
    """What the source derives for a real module, by the names of the program.

    An image with which the model does not run is not an input of the program (FE104), and left out here too.
    """
    inputs = source.example_inputs(module, "cpu", None)
    names = list(dynamic_dims(program))
    if inputs.kwargs.keys() >= set(names):
        return {name: inputs.kwargs[name] for name in names}
    values = [v for v in (*inputs.args, *inputs.kwargs.values()) if isinstance(v, torch.Tensor)]
    return dict(zip(names, values, strict=True))


def _fixed_values(source: Source, module: nn.Module) -> dict[str, Any]:
    """The inputs other than tensors, such as a grid of images: they are constants of the program."""
    given = source.example_inputs(module, "cpu", None).kwargs
    return {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}


def _write_checkpoint(module: nn.Module, folder: Path) -> None:
    if hasattr(module, "save_pretrained"):
        module.save_pretrained(folder)
    else:
        folder.mkdir()
        save_file({n: t.contiguous() for n, t in module.state_dict().items()}, folder / "model.safetensors")


def _sizes(
    module: nn.Module,
    template: Mapping[str, torch.Tensor],
    fixed: Mapping[str, Any],
    example: Shapes,
    programs: list[ExportedProgram],
) -> list[Shapes]:
    def works(shapes: Shapes) -> bool:
        inputs = real_inputs(template, shapes, _config(module), seed=0, is_padded=False)
        if not all(accepts(program, inputs) for program in programs):
            return False
        try:
            eager(module, {**inputs, **fixed})
        except Exception:  # whatever the model raises for a size that it does not take
            return False
        return True

    return other_sizes(example, programs, works)


def _called(
    module: nn.Module,
    template: Mapping[str, torch.Tensor],
    fixed: Mapping[str, Any],
    shapes: Shapes,
    number: int,
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], bool]:
    """Inputs, outputs, and whether a row is padded: in the second set, if the model takes it."""
    config = _config(module)
    if number > 1 and "attention_mask" in template:
        inputs = real_inputs(template, shapes, config, seed=number, is_padded=True)
        try:
            return inputs, eager(module, {**inputs, **fixed}), True
        except Exception:
            pass
    inputs = real_inputs(template, shapes, config, seed=number, is_padded=False)
    return inputs, eager(module, {**inputs, **fixed}), False


def _config(module: nn.Module) -> Any:
    return getattr(module, "config", None)


def _numbered(outputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{index:03}": tensor.contiguous().clone() for index, tensor in enumerate(outputs)}
