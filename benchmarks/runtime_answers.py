"""Compare the answers of `check --runtime` with real conversions, for small models of many types.

For each model, the program without weights is exported, and each runtime is asked about it. Then the weights
of the model are bound, and the program is really converted with them, by `fakexport.compile` or coremltools.
The files for ONNX, ExecuTorch and AOTInductor are also called once, at sizes other than those of the export
if sizes are dynamic, and compared with eager mode. If a runtime takes a program that is not converted, does
not run or returns other values, this is a false pass.

    python -m benchmarks.runtime_answers --out rows.jsonl [--count 150 | --only bert,vit] [--dynamic auto]
    python -m benchmarks.runtime_answers --out rows.jsonl --page

Rows that the file already has are not measured again. `--page` writes the figures into docs/runtimes.md.
Needs g++ and the packages of all runtimes.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import json
import logging
import math
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe
from benchmarks.fresh_process import ROOT
from fakexport.deploy.signature import Signature
from fakexport.error import first_line
from fakexport.models.sources import resolve

PAGE = ROOT / "docs" / "runtimes.md"
HEADING = "\n## Measured\n"
RUNTIMES = ("onnx", "coreml", "aoti", "executorch:xnnpack")
# The export without example sizes, with `--dynamic auto`, and with an upper bound for each of its sizes.
SIZES = {
    "onnx": ("static", "auto"),
    "coreml": ("static",),
    "litert": ("static",),
    "aoti": ("static", "auto"),
    "executorch": ("static", "bounded"),
}
TAKEN = ("taken", "rewritten", "partly")
_PACKAGES = (
    *("torch", "transformers", "onnxscript", "onnxruntime", "executorch", "coremltools"),
    "litert-torch",
)
_IMPORTED = (
    *("coremltools", "onnxscript", "onnxscript.optimizer", "torch.onnx._internal.exporter._core"),
    *("executorch.backends.xnnpack.partition.xnnpack_partitioner", "executorch.exir"),
    *("torch._inductor.compile_fx", "torch._inductor.codegen.cpp_wrapper_cpu", "transformers"),
)
_COUNT = 150
_LIMIT_S = 300  # Of processor time.
_NOISE = 0.3

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares the answers of runtimes with real conversions.")
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines, to add rows to")
    parser.add_argument("--count", type=int, default=_COUNT, help="so many architectures, of all families")
    parser.add_argument("--only", type=lambda names: names.split(","), help="types, separated by commas")
    parser.add_argument("--runtimes", type=lambda names: names.split(","), default=list(RUNTIMES))
    parser.add_argument(
        "--dynamic", type=lambda names: names.split(","), default=["static", "auto", "bounded"]
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no model after this time")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if not options.page:
        measure(options, {(row["model"], row["dynamic"], row["runtime"]) for row in read(options.out)})
    rows = read(options.out)
    if not options.page:
        print(summary(rows))
        return int(any(is_false_pass(row) for row in rows))
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(HEADING)[0] + HEADING + section(rows), encoding="utf-8")
    return 0


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(options: argparse.Namespace, known: set[tuple[str, str, str]]) -> None:
    """Write the rows that are missing. Each model has its own process, and each row of it too."""
    _prepare()
    from tests.architectures import ARCHITECTURES

    begun = time.monotonic()
    # Ordered by checksum, so that a part of the list has models of all families.
    ordered = sorted(ARCHITECTURES, key=lambda each: zlib.crc32(each.model_type.encode()))
    for architecture in ordered[: None if options.only else options.count]:
        if options.only and architecture.model_type not in options.only:
            continue
        for dynamic in options.dynamic:
            asked = [name for name in options.runtimes if dynamic in SIZES[name.partition(":")[0]]]
            missing = [name for name in asked if (architecture.model_type, dynamic, name) not in known]
            if missing and time.monotonic() - begun < options.seconds:
                in_a_process(partial(_measured, architecture, dynamic, missing, options.out), keep=True)


def _prepare() -> None:
    """Do what each process would do again, before the processes are forked."""
    for module in _IMPORTED:
        importlib.import_module(module)
    from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa
    from torch.fx.traceback import NodeSource

    from tests.round_trip.onnx_files import read_translations_once

    read_translations_once()
    bilinear_2d.get_graphs(), sdpa.get_graphs()
    NodeSource.__deepcopy__ = lambda source, memo: (
        source
    )  # A fifth of the time of an answer; nothing reads them.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.freeze()


def _measured(architecture: Any, dynamic: str, runtimes: list[str], out: Path) -> Row:
    model = error = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = Model.of(architecture, dynamic, Path(folder))
        except Exception as raised:
            error = {"reason": f"{type(raised).__name__}: {first_line(raised)}"}
        gc.freeze()
        for runtime in runtimes:
            row: Row = {"model": architecture.model_type, "dynamic": dynamic, "runtime": runtime}
            row |= error or in_a_process(partial(compared, model, runtime, Path(folder)))
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(*row.values(), flush=True)
    return {}


def in_a_process(call: Callable[[], Row], *, keep: bool = False) -> Row:
    """Call a function in a forked process, because converters run native code. Return its result.

    Args:
        call: The function.
        keep: Whether its processor time has no limit.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY if keep else _LIMIT_S,) * 2)
        try:
            row = call()
        except Exception as error:
            row = {"reason": f"{type(error).__name__}: {first_line(error)}"}
        sending.send(row)

    process = context.Process(target=work)
    process.start()
    sending.close()
    found: Row = {"reason": "the process ended without a result"}
    with suppress(EOFError):
        found = receiving.recv()
    process.kill()
    process.join()
    return found


@dataclass(frozen=True)
class Model:
    """A program without weights and with them, and what eager mode returns for a call.

    Args:
        program: The program without weights.
        bound: The program with weights.
        inputs: The inputs of the call. If sizes are dynamic, they differ from those of the export.
        expected: The tensors that eager mode returns.
        module: The module with weights.
    """

    program: ExportedProgram
    bound: ExportedProgram
    inputs: Mapping[str, torch.Tensor]
    expected: list[torch.Tensor]
    module: nn.Module | None = None

    @classmethod
    def of(cls, architecture: Any, dynamic: str, folder: Path) -> Model:
        from tests.round_trip.reference import calls_of, real_model

        source = architecture.source(folder)
        program = fe.export(source, dynamic_shapes=None if dynamic == "static" else "auto")
        if dynamic == "bounded":
            program = fe.export(source, dynamic_shapes=_bounded(program))
        module = real_model(resolve(source), "float32", _NOISE)
        _, inputs, expected, _ = next(calls_of(resolve(source), module, [program]))
        return cls(program, fe.bind(program, module.state_dict()), inputs, expected, module)

    def is_rounding(self, outputs: list[torch.Tensor]) -> bool:
        """Return whether outputs are at most twice as far from eager mode in float64 as eager mode is."""
        from tests.round_trip.onnx_files import difference
        from tests.round_trip.reference import eager

        kinds = [[(each.shape, each.dtype) for each in found] for found in (outputs, self.expected)]
        if self.module is None or kinds[0] != kinds[1]:
            return False
        inputs = {
            name: each.double() if each.is_floating_point() else each for name, each in self.inputs.items()
        }
        precise = eager(copy.deepcopy(self.module).double(), inputs)
        given, eagers, precise = (
            [each.double().numpy() for each in found] for found in (outputs, self.expected, precise)
        )
        errors = [difference(found, precise)[0] for found in (given, eagers)]
        return errors[0] <= 2 * errors[1] < math.inf


def _bounded(program: ExportedProgram) -> list[str]:
    """Return the dynamic dimensions of a program with upper bounds, as for `--dynamic`."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    return [
        f"{tensor.name}.{dim}={size.symbol}={max(size.lower or 1, 1)}..{2 * node_size.node.hint + 8}"
        for tensor in Signature.of(program).inputs
        for dim, (size, node_size) in enumerate(
            zip(tensor.shape, nodes[tensor.name].meta["val"].shape, strict=True)
        )
        if (size.times, size.plus) == (1, 0)
    ]


def compared(model: Model, runtime: str, folder: Path) -> Row:
    """Return what a runtime answers for a model, and what a real conversion does."""
    begun = time.process_time()
    answer = fe.runtime_verdict(model.program, runtime)
    seconds = time.process_time() - begun
    notes = [note for found in answer.diagnostics for note in found.notes[:1]]
    row: Row = {"answer": answer.result, "seconds": round(seconds, 2), "reason": "; ".join(notes)}
    try:
        with warnings.catch_warnings(action="ignore"):  # A warning of a converter is not a refusal.
            outputs = really_run(model, runtime, folder)
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        return row | {"real": "refused", "reason": row["reason"] or said}
    if outputs is None:
        return row | {"real": "taken"}
    difference = difference_from_eager(outputs, model.expected)
    own = fe.run(model.bound, dict(model.inputs)) if difference else {}
    if difference and not difference_from_eager(list(own.values()), model.expected):
        if not model.is_rounding(outputs):
            return row | {"real": "differs", "reason": difference}
        return row | {"real": "taken", "reason": f"rounding: {difference}, and float32 from float64 too"}
    # If the program itself differs from eager mode, the runtime is not the cause.
    return row | {"real": "taken", "reason": f"the program itself: {difference}" if difference else ""}


def really_run(model: Model, runtime: str, folder: Path) -> list[torch.Tensor] | None:
    """Convert a program that has its weights. Return the outputs of a call if this machine can run it."""
    if runtime == "coreml":
        import coremltools

        from fakexport.deploy.coverage.coreml import more_decompositions

        try:
            coremltools.convert(model.bound.run_decompositions({}), skip_model_load=True)
        except Exception:
            plain = model.bound.run_decompositions(more_decompositions())
            coremltools.convert(plain, skip_model_load=True)
        return None
    if runtime == "litert":
        import litert_torch

        converted = litert_torch.convert(model.bound.module(), sample_kwargs=dict(model.inputs))
        given = (value.int() if value.dtype == torch.int64 else value for value in model.inputs.values())
        found = converted(**{name: value.numpy() for name, value in zip(model.inputs, given, strict=True)})
        named = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else [found]
        return [torch.from_numpy(value) for value in named]
    form, _, backend = runtime.partition(":")
    path = folder / {"aoti": "model.pt2", "executorch": "model.pte", "onnx": "model.onnx"}[form]
    fe.compile(model.bound, path, to=form, backend=backend or None)  # type: ignore[arg-type]
    return list(fe.open_program(path, trust=True)(dict(model.inputs)).values())


def difference_from_eager(outputs: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    """Return how outputs differ from those of eager mode, or "" if by at most 1e-4 of the largest value."""
    from tests.round_trip.onnx_files import difference, is_equal

    try:
        most, largest = difference([each.numpy() for each in outputs], [each.numpy() for each in expected])
    except AssertionError as error:
        return f"other shapes or dtypes: {first_line(error)}"
    is_same = is_equal({"max_difference": most, "largest": largest})
    return "" if is_same else f"differs by {most:.0e} where values reach {largest:.0e}"


def is_false_pass(row: Mapping[str, Any]) -> bool:
    return row.get("answer") in TAKEN and row.get("real") in ("refused", "differs")


def is_false_refusal(row: Mapping[str, Any]) -> bool:
    return row.get("answer") == "refused" and row.get("real") == "taken"


def summary(rows: Iterable[Row]) -> str:
    lines = []
    for (runtime, dynamic), found in _groups(rows).items():
        counts = Counter((row["answer"] in TAKEN, row["real"] == "taken") for row in found)
        seconds = statistics.median(row["seconds"] for row in found)
        lines.append(
            f"| `{runtime}` | {dynamic} | {len(found)} | {counts[True, True]} | {counts[False, False]} | "
            f"{counts[True, False]} | {counts[False, True]} | {seconds:.1f} s |"
        )
    return "\n".join(lines)


def _groups(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if "real" in row:
            groups.setdefault((row["runtime"], row["dynamic"]), []).append(row)
    return dict(sorted(groups.items()))


def section(rows: list[Row]) -> str:
    """Return the section of the page with the figures."""
    models = len({row["model"] for row in rows if "real" in row})
    left_out = [f"`{row['model']}` ({row['runtime']}, {row['dynamic']})" for row in rows if "real" not in row]
    installed = {package for found in packages_distributions().values() for package in found}
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES if package in installed)
    wrong = [row for row in rows if is_false_pass(row) or is_false_refusal(row)]
    listed = "\n".join(
        f"- `{row['model']}`, `{row['runtime']}`, {row['dynamic']}: answered {row['answer']}, really "
        f"{row['real']}. {row['reason']}"
        for row in wrong
    )
    return f"""
The answers for small models of {models} types of transformers, without weights, compared with real
conversions with weights. Files for ONNX, ExecuTorch, LiteRT and AOTInductor were also called once, and
compared with eager mode to 1e-4 of the largest value, or to twice the error of eager mode against float64 if
that is larger. A *false pass* is a program that a runtime answered to take, but that was not converted, did
not run or returned other values; a *false refusal* is the opposite. The time is the median processor time of
one answer, after all packages were imported.

With `auto`, sizes are those of `--dynamic auto`, and the file was called with other sizes than the export.
The benchmark takes {_COUNT} types by default, in an order that mixes all families. The rows with fewer models
are not complete, because they take hours.

| runtime | sizes | models | both take it | both refuse it | false passes | false refusals | time |
|---|---|---:|---:|---:|---:|---:|---:|
{summary(rows)}

{listed or "No answer was wrong."}
{_left_out(left_out)}
`python -m benchmarks.runtime_answers --out rows.jsonl` repeats the comparison, and writes this section with
`--page`. Versions: {versions}.
"""


def _left_out(names: list[str]) -> str:
    if not names:
        return ""
    return f"\nNot compared, because the export failed, or took more than five minutes: {', '.join(names)}.\n"


if __name__ == "__main__":
    sys.exit(main())
