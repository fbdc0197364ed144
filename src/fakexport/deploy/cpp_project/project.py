"""Write a C++ project: a compiled program, its weights, and the sources that run the program."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport.archive import Bundle
from fakexport.archive.weights import Weight
from fakexport.exporting.program import (
    Visit,
    facts_of,
    library_operators,
    python_operators,
    target_name,
    unbound_names,
    walk,
    written_state,
)
from fakexport.files import FileWriteError, new_folder
from fakexport.files.container import read_container
from fakexport.files.documents import are_divided
from fakexport.rules.diagnostics import Diagnostic, Fix

from ..aoti import compile_aoti, compile_ranges
from ..aoti.package import read_metadata
from ..aoti.stand_ins import held_tensors, without_values
from ..artifact import CompiledFile, CompileFailure, DeployError, Report, refuse_to_overwrite, silent
from ..composed_program import IN_PYTHON, composed
from ..generation.calls import Call, calls_of
from ..signature import Dimension, Signature
from ..unsupported import finding_at
from ..weights_file import FileLayout

_TEMPLATE = Path(__file__).with_name("template")
_PACKAGE, _README = "model.aoti.pt2", "README.md"


def write_cpp_project(
    program: ExportedProgram | Bundle,
    folder: str | os.PathLike[str],
    *,
    target: str | Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    report: Report | None = None,
) -> CompiledFile:
    """Compile a program, and write it with a CMake project that runs it without Python.

    The C++ sources are the same for all programs, because the package describes its inputs, outputs and
    weights. You can edit the sources afterwards.

    Args:
        program: A program with or without weights; a bundle of programs that divide the sizes of a call among
            them; or a bundle of prefill and decode, for a project that generates tokens. Not changed. Without
            weights, pass them when you run the project, as a safetensors file or shards that use the
            program's names.
        folder: A new or empty folder. It gets `CMakeLists.txt`, `src/` and `README.md`. A program adds
            `model.aoti.pt2`, and its weights in `model.aoti.safetensors`. A bundle adds `prefill.aoti.pt2`,
            `decode.aoti.pt2`, `generation.json`, and the weights of both in `model.safetensors`.
        target, cache, report: As for `compile_aoti`.

    Raises:
        DeployError: The folder is not empty, `compile_aoti` fails, or the bundle cannot generate.
        CompileFailure: Inductor cannot compile the program, or the program calls operators that are
            implemented in Python.
        FileWriteError: The project cannot be written. After an error, no new files remain.
    """
    begun, out = time.monotonic(), Path(folder)
    refuse_to_overwrite(out)
    calls: Mapping[str, Call] = {}
    programs = list(program.values()) if isinstance(program, Bundle) else [program]
    is_divided = are_divided(facts_of(each).sizes for each in programs)
    if isinstance(program, Bundle) and not is_divided:
        calls = dict(zip(("prefill.aoti.pt2", "decode.aoti.pt2"), calls_of(program), strict=True))
        if any(len(call.programs) > 1 for call in calls.values()):
            raise DeployError("generation in C++ needs one range of sizes: export the bundle with one range")
        programs = [call.program for call in calls.values()]
    programs = [composed(one, IN_PYTHON) for one in programs]
    if findings := tuple(found for one in programs for found in findings_of_program(one)):
        raise CompileFailure(findings)
    kept, told = None if cache is None else Path(cache), report or silent
    try:
        with new_folder(out) as new:
            shutil.copytree(_TEMPLATE, new, copy_function=shutil.copyfile, dirs_exist_ok=True)
            text = (new / _README).read_text("utf-8")
            if calls:
                is_cached, notes = _write_generation(calls, new, target=target, cache=kept, report=told)
                text = readme(text, (call.signature for call in calls.values()))
            else:
                options: Any = {"weights": "beside", "target": target, "cache": kept, "report": told}
                if isinstance(program, Bundle):
                    methods = dict(zip(program, programs, strict=True))
                    compiled = compile_ranges(methods, new / _PACKAGE, **options)
                else:
                    compiled = compile_aoti(programs[0], new / _PACKAGE, **options)
                is_cached, notes = compiled.is_cached, compiled.notes
                text = readme(text, map(Signature.of, programs))
            (new / _README).write_text(text, "utf-8")
    except OSError as error:  # The error names a file in the temporary folder, which is already deleted.
        raise FileWriteError(out, error) from error
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return CompiledFile.of(out, files, begun, notes=notes, is_cached=is_cached)


def findings_of_program(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Yield a finding for each operator implemented in Python, at its first call."""
    made = python_operators(library_operators(program))
    calls: dict[str, list[Visit]] = {}
    for visit in walk(program) if made else ():
        if visit.node.op == "call_function" and (name := target_name(visit.node.target)) in made:
            calls.setdefault(name, []).append(visit)
    for name, visits in calls.items():
        first, module = visits[0], made[name]
        maker = "" if module is None else f", in {module}"
        yield finding_at(
            "FE804",
            first.node,
            f"{name} is called here",
            notes=(f"{name} at node {first.node.name} is implemented in Python{maker}",),
            fix=Fix("implement it in C++, or compile with --to aoti and run the package from Python"),
            module_path=first.module_path or None,
            count=len(visits),
        )


def readme(template: str, signatures: Iterable[Signature]) -> str:
    """Insert the signatures into the text of the README template."""
    return template.replace(
        "{signature}", "\n\n".join("\n".join(_lines(signature)) for signature in signatures)
    )


def _lines(signature: Signature) -> Iterator[str]:
    if signature.inputs:
        yield from ("| input | dtype and shape |", "|---|---|")
    for tensor in signature.inputs:
        ranges = dict.fromkeys(text for size in tensor.shape if (text := _range(size)))
        kind = f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
        yield f"| `{tensor.name}` | {', '.join((f'`{kind}`', *ranges))} |"
    given = ", ".join(f"`{leaf.name}`" for leaf in signature.outputs if leaf.is_tensor)
    yield from [""] * bool(signature.inputs)
    yield f"Outputs: {given or 'none'}."


def _range(size: Dimension) -> str:
    bounds = [f"at least {size.lower}"] * (size.lower is not None)
    bounds += [f"at most {size.upper}"] * (size.upper is not None)
    return f"`{size}` {' and '.join(bounds)}" if bounds else ""


def _write_generation(
    calls: Mapping[str, Call],
    folder: Path,
    *,
    target: str | Sequence[str] | None,
    cache: Path | None,
    report: Report,
) -> tuple[bool, tuple[str, ...]]:
    """Compile prefill and decode, and write their shared weights once.

    Return whether both packages came from the cache, and notes to show to the user.
    """
    made = []
    for name, call in calls.items():
        report(f"{call.method}: compiling")
        weightless = without_values(call.program)
        made.append(compile_aoti(weightless, folder / name, weights="beside", target=target, cache=cache))
    has_weights = not any(unbound_names(call.program) for call in calls.values())
    if has_weights:
        report("writing the weights")
        _write_weights(
            {folder / name: call.program for name, call in calls.items()}, folder / "model.safetensors"
        )
    (folder / "generation.json").write_text(_record(*calls.values()), "utf-8")
    notes = () if has_weights else ("the programs have no weights: pass them with `generate --weights PATH`",)
    return all(one.is_cached for one in made), notes


def _write_weights(programs: Mapping[Path, ExportedProgram], path: Path) -> None:
    """Write all weights that the compiled programs read. A weight that both programs read is written once."""
    tensors: dict[str, torch.Tensor] = {}
    for package, program in programs.items():
        with read_container(package, trust=True) as opened:
            metadata = read_metadata(opened)
        held = held_tensors(program)
        for tensor in metadata.tensors:
            if tensors.keys().isdisjoint((tensor.name, *tensor.aliases)):
                tensors[tensor.name] = held[tensor.name]
    weights = {name: Weight(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    FileLayout.of(weights).write_beside(path, tensors)


def _record(prefill: Call, decode: Call) -> str:
    defaults = dataclasses.asdict(prefill.record.defaults)
    record = {"prefill": _call(prefill), "decode": _call(decode), "defaults": defaults}
    return json.dumps({"format": "fakexport.generation/2", **record}, indent=1) + "\n"


def _call(call: Call) -> dict[str, object]:
    record = dataclasses.asdict(call.record)
    del record["defaults"], record["workload"]
    kept = () if call.record.start is None else written_state(call.program)
    return {**record, "kept": sorted(kept), "length": call.length, "vocabulary": call.vocabulary}
