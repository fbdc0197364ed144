"""Compare the cost of saving and loading a program with stock `torch.export.save` and `load`.

The program of each config is exported once (CPU, bfloat16, `--dynamic auto`). Then fakexport and stock torch
alternate in saving and loading it. Each measurement runs in a new process, which first saves or loads a small
program in the same way. Stock torch writes weights without data and reads them back as zeros, so the weights
cost nothing in either case. `fakexport.diff` must find no difference between the exported program and the
programs that fakexport and stock torch load. Stock torch cannot load its own file if a weight is larger than
the first weight; then only fakexport's loading is measured. Linux only: peaks are read from /proc.

    python -m benchmarks.archive_time [--config llama-3.1-405b]... [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import ROOT, in_a_process
from fakexport.emulation.devices import peak_bytes, resident_bytes

CONFIGS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "deepseek-v3")
WAYS = ("fakexport", "stock")


def main() -> int:
    parser = argparse.ArgumentParser(description="Times archives against torch.export.save and load.")
    parser.add_argument("--config", action="append", help="Files of examples/configs; default: four.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    configs = options.config or CONFIGS
    if options.step:
        step, way = options.step
        print(json.dumps(_STEPS[step](options.folder, way if step != "export" else configs[0])))
        return 0
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            _measure(config, folder, options.rounds)
    return 0


def _measure(config: str, folder: str, rounds: int) -> None:
    def run(step: str, way: str = "-") -> dict[str, Any]:
        arguments = ("--step", step, way, "--config", config, "--folder", folder)
        return in_a_process("benchmarks.archive_time", *arguments)

    print(f"{config}: {run('export')}", flush=True)
    for step in ("save", "load"):
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                found[way].append(run(step, way))
        for way in WAYS:
            print(f"  {step} {way:9} {_spread(found[way])}", flush=True)
        if "refused" in found["stock"][0]:
            continue
        for figure in ("cpu_s", "wall_s", "growth_mb", "peak_mb"):
            pairs = zip(found["fakexport"], found["stock"], strict=True)
            ratios = sorted(stock[figure] / max(ours[figure], 1e-3) for ours, stock in pairs)
            print(f"  {step} ratio of {figure}: {ratios[0]:.1f} to {ratios[-1]:.1f}", flush=True)


def _spread(figures: list[dict[str, Any]]) -> str:
    columns = {name: sorted({figure[name] for figure in figures}) for name in figures[0]}
    return ", ".join(f"{name} {values[0]}..{values[-1]}" for name, values in columns.items())


def _export(folder: Path, config: str) -> dict[str, Any]:
    import torch

    import fakexport as fe

    rows = ({0: torch.export.Dim.AUTO},)
    small = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),), dynamic_shapes=rows)
    small._example_inputs = None
    fe.save(small, folder / "small-fakexport.pt2")
    torch.export.save(small, folder / "small-stock.pt2")
    program = exported(config)
    fe.save(program, folder / "program.pt2")
    assert fe.diff(program, fe.load(folder / "program.pt2")).is_identical
    return {"nodes": len(program.graph.nodes)}


def _save(folder: Path, way: str) -> dict[str, Any]:
    import torch

    import fakexport as fe

    save: Callable[..., Any] = fe.save if way == "fakexport" else torch.export.save
    program, path = fe.load(folder / "program.pt2"), folder / f"{way}.pt2"
    small = fe.load(folder / "small-fakexport.pt2")
    if way == "stock":  # A loaded program rejects stock torch, which would write zeros for its weights.
        program.__class__ = torch.export.ExportedProgram
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(small, folder / "small-again.pt2")
        figures, _ = _measured(lambda: save(program, path))
    if way == "fakexport":
        assert path.read_bytes() == (folder / "program.pt2").read_bytes()
    return {**figures, "file_bytes": path.stat().st_size}


def _load(folder: Path, way: str) -> dict[str, Any]:
    import torch

    import fakexport as fe

    load: Callable[..., Any] = fe.load if way == "fakexport" else torch.export.load
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(folder / f"small-{way}.pt2")
        try:
            figures, loaded = _measured(lambda: load(folder / f"{way}.pt2"))
        except RuntimeError as error:
            if way == "stock":
                return {"refused": str(error).strip()}
            raise
    if way == "stock":
        assert fe.diff(fe.load(folder / "program.pt2"), loaded).is_identical
    return figures


_STEPS: dict[str, Callable[[Path, str], dict[str, Any]]] = {"export": _export, "save": _save, "load": _load}


def exported(config: str) -> Any:
    """Export an example config for the CPU in bfloat16, with dynamic dimensions, and return the program."""
    import torch

    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import build
    from fakexport.exporting.capture import capture
    from fakexport.models import parse_dynamic
    from fakexport.models.sources import resolve

    source = resolve(f"hf:{ROOT / 'examples' / 'configs' / config}.json")
    with emulate("cpu"):
        built = build(source.factory, device_map="cpu", dtype=torch.bfloat16)
        with built.mode:
            inputs = source.example_inputs(built.module, "cpu", torch.bfloat16)
        tracing = partial(source.tracing, built.module, inputs)
        captured = capture(
            built.module, inputs.args, inputs.kwargs, dynamic=parse_dynamic("auto"), tracing=tracing
        )
    if captured.program is None:
        raise SystemExit(str(captured.failure))
    return captured.program


def _measured(run: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Return the times, the peak memory and its growth as a dict, and the result of the function."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Reset the peak to the current memory.
    before, cpu, wall = resident_bytes(), time.process_time(), time.perf_counter()
    result = run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak = peak_bytes()
    figures = {
        "cpu_s": round(cpu, 3),
        "wall_s": round(wall, 2),
        "growth_mb": (peak - before) / 1e6,
        "peak_mb": peak / 1e6,
    }
    return {name: round(figure, 3) for name, figure in figures.items()}, result


if __name__ == "__main__":
    sys.exit(main())
