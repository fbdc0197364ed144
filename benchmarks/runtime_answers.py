"""Compare the answers of `check --runtime` with real conversions, for small models of many types.

For each model, the program without weights is exported, and each runtime is asked about it. Then the weights
of the model are bound, and the program is really converted with them, by `fakexport.compile` or coremltools.
The files for ONNX, ExecuTorch and AOTInductor are also opened and called once. If a runtime takes a program
that is not converted, or does not run, this is a false pass.

    python -m benchmarks.runtime_answers --out rows.jsonl [--every 4 | --only bert,vit] [--dynamic auto]
    python -m benchmarks.runtime_answers --out rows.jsonl --page

Rows that the file already has are not measured again. `--page` writes the figures into docs/runtimes.md.
Needs g++ and the packages of all runtimes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import multiprocessing
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import fakexport as fe
from benchmarks.fresh_process import ROOT
from fakexport.deploy.signature import Signature
from fakexport.error import first_line

PAGE = ROOT / "docs" / "runtimes.md"
HEADING = "\n## Measured\n"
RUNTIMES = ("onnx", "coreml", "aoti", "executorch:xnnpack")
TAKEN = ("taken", "rewritten", "partly")
_PACKAGES = ("torch", "transformers", "onnxscript", "onnxruntime", "executorch", "coremltools")
_IMPORTED = (
    *("coremltools", "onnxscript", "onnxscript.optimizer", "torch.onnx._internal.exporter._core"),
    *("executorch.backends.xnnpack.partition.xnnpack_partitioner", "executorch.exir"),
    *("torch._inductor.compile_fx", "torch._inductor.codegen.cpp_wrapper_cpu", "transformers"),
)
_LIMIT_S = 400.0

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares the answers of runtimes with real conversions.")
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines, to add rows to")
    parser.add_argument("--every", type=int, default=1, help="one of so many architectures")
    parser.add_argument("--only", type=lambda names: names.split(","), help="types, separated by commas")
    parser.add_argument("--runtimes", type=lambda names: names.split(","), default=list(RUNTIMES))
    parser.add_argument("--dynamic", choices=("auto", "static"), default="static")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no model after this time")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    if not options.page:
        rows += measure(options, {(row["model"], row["dynamic"], row["runtime"]) for row in rows})
        print(summary(rows))
        return int(any(is_false_pass(row) for row in rows))
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(HEADING)[0] + HEADING + section(rows), encoding="utf-8")
    return 0


def measure(options: argparse.Namespace, known: set[tuple[str, str, str]]) -> list[Row]:
    for module in _IMPORTED:  # Once, before the processes are forked.
        importlib.import_module(module)
    from tests.architectures import ARCHITECTURES

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    begun, rows = time.monotonic(), []
    for architecture in ARCHITECTURES[:: 1 if options.only else options.every]:
        if options.only and architecture.model_type not in options.only:
            continue
        for runtime in options.runtimes:
            key = architecture.model_type, options.dynamic, runtime
            if key in known or time.monotonic() - begun > options.seconds:
                continue
            row = dict(zip(("model", "dynamic", "runtime"), key, strict=True))
            row |= in_a_process(partial(compared, architecture, options.dynamic, runtime))
            rows.append(row)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                " ".join(map(str, key)), row.get("answer"), row.get("real"), row["reason"][:100], flush=True
            )
            if "answer" not in row:
                break  # The model does not export.
    return rows


def in_a_process(call: Callable[[], Row]) -> Row:
    """Call a function in a forked process, because converters run native code. Return its result."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def work() -> None:
        try:
            row = call()
        except Exception as error:
            row = {"reason": f"{type(error).__name__}: {first_line(error)}"}
        sending.send(row)

    process = context.Process(target=work)
    process.start()
    found: Row = {"reason": "the process ended without a result"}
    if receiving.poll(_LIMIT_S):
        with suppress(EOFError):
            found = receiving.recv()
    process.kill()
    process.join()
    return found


def compared(architecture: Any, dynamic: str, runtime: str) -> Row:
    """Return what a runtime answers for a model, and what a real conversion does."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        program = fe.export(
            architecture.source(Path(folder)), dynamic_shapes="auto" if dynamic == "auto" else None
        )
        begun = time.process_time()
        answer = fe.runtime_verdict(program, runtime)
        seconds = time.process_time() - begun
        notes = [note for found in answer.diagnostics for note in found.notes[:1]]
        row: Row = {"answer": answer.result, "seconds": round(seconds, 2), "reason": "; ".join(notes)}
        torch.manual_seed(0)
        bound = fe.bind(program, architecture.build().state_dict())
        try:
            really_run(bound, runtime, Path(folder))
        except Exception as error:
            said = f"{type(error).__name__}: {first_line(error)}"
            row |= {"real": "refused", "reason": row["reason"] or said}
        else:
            row["real"] = "taken"
        return row


def really_run(program: Any, runtime: str, folder: Path) -> None:
    """Convert a program that has its weights, and call the result if this machine can."""
    if runtime == "coreml":
        import coremltools

        coremltools.convert(program.run_decompositions({}), skip_model_load=True)
        return
    form, _, backend = runtime.partition(":")
    path = folder / {"aoti": "model.pt2", "executorch": "model.pte", "onnx": "model.onnx"}[form]
    fe.compile(program, path, to=form, backend=backend or None)  # type: ignore[arg-type]
    fe.open_program(path, trust=True)(dict(_inputs(Signature.of(program))))


def _inputs(signature: Signature) -> Iterable[tuple[str, torch.Tensor]]:
    for tensor in signature.inputs:
        sizes = [size.plus if size.symbol is None else max(size.lower or 2, 2) for size in tensor.shape]
        yield tensor.name, torch.ones(sizes, dtype=getattr(torch, tensor.dtype))


def is_false_pass(row: Mapping[str, Any]) -> bool:
    return row.get("answer") in TAKEN and row.get("real") == "refused"


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
    left_out = sorted({row["model"] for row in rows if "real" not in row})
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    wrong = [row for row in rows if is_false_pass(row) or is_false_refusal(row)]
    listed = "\n".join(
        f"- `{row['model']}`, `{row['runtime']}`, {row['dynamic']}: answered {row['answer']}, really "
        f"{row['real']}. {row['reason']}"
        for row in wrong
    )
    return f"""
The answers for small models of {models} types of transformers, without weights, compared with real
conversions with weights. Files for ONNX, ExecuTorch and AOTInductor were also called once. A *false pass* is
a program that a runtime answered to take, but that was not converted or did not run; a *false refusal* is the
opposite. The time is the median processor time of one answer, after all packages were imported.

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
    return f"\nNot compared, because the export failed or took too long: {', '.join(names)}.\n"


if __name__ == "__main__":
    sys.exit(main())
