"""Run PyTorch's operator database on an emulated device, and compare the results with the CPU."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from .isolation import Plan, run
from .samples import operators
from .table import read_results, render, way_of
from .ways import WAYS


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    if options.write and not (options.render or options.results):
        parser.error("--write needs --results, where the outcomes are kept")
    if options.render:
        _write(render(read_results(options.render)), options.write)
        return
    ops = operators([name for name in options.operators.split(",") if name])
    fields = {
        "dtypes": options.dtypes,
        "samples": options.samples,
        "target": options.target,
        "operators": len(ops),
    }
    plan = Plan(
        dtype=options.dtypes,
        samples=options.samples,
        ways=tuple(options.ways.split(",")),
        target=None if options.target == "stock" else options.target,
        timeout_s=options.timeout,
        processes=options.processes,
        measured=measured(options.results, fields),
    )
    started = time.monotonic()
    with options.results.open("a", encoding="utf-8") if options.results else nullcontext(sys.stdout) as sink:
        for outcomes in run(ops, plan):
            for outcome in outcomes:
                print(json.dumps({"run": fields, **vars(outcome)}), file=sink, flush=True)
    print(f"{len(ops)} operators in {time.monotonic() - started:.0f} s", file=sys.stderr)
    if options.write:
        _write(render(read_results([options.results])), options.write)


def measured(results: Path | None, fields: dict[str, object]) -> frozenset[tuple[str, str, str]]:
    """Return each `(operator, dtype, way)` in a file of results that a run with these fields measured."""
    if results is None or not results.is_file():
        return frozenset()
    lines = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return frozenset((o["operator"], o["dtype"], way_of(o["step"])) for o in lines if o["run"] == fields)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_coverage", description=__doc__)
    parser.add_argument("--operators", default="", help="comma-separated names (default: all)")
    parser.add_argument("--dtypes", default="float32", help="one dtype, or all (default: float32)")
    parser.add_argument("--samples", choices=("first", "all"), default="first")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--target", default="H100", help="the topology to emulate; 'stock' emulates none")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per operator, dtype and way")
    parser.add_argument(
        "--results",
        type=Path,
        help="append JSON lines here, and leave out what is in it",
    )
    parser.add_argument("--render", type=Path, nargs="+", help="measure nothing, read these results")
    parser.add_argument("--write", type=Path, help="write the table here, such as docs/operators.md")
    return parser


def _write(text: str, path: Path | None) -> None:
    if path is None:
        print(text, end="")
    else:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
