"""Measure the time of a capture: with the operator memo, without fast paths, and with stock `torch.export`.

All three trace the same fake model in one process. After a warm-up round that is not measured, they
alternate, and each round begins with a different one. Times are processor time, and the garbage collector
does not run during a measurement. The programs with and without the memo must be equal, including the names
of nodes. The program of stock torch must have the same operators.

    python -m benchmarks.trace_time [--config CONFIG | --source SOURCE] [--layers 126] [--dynamic auto]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fakexport.emulation.devices import peak_bytes, resident_bytes

CONFIG = "examples/configs/llama-3.1-405b.json"
WAYS = ("stock", "plain", "memo")


def main() -> int:
    parser = argparse.ArgumentParser(description="Times captures against stock torch.export.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument(
        "--source", help="instead of a configuration, such as diffusers:FluxTransformer2DModel"
    )
    parser.add_argument("--layers", type=int, help="instead of those of the configuration")
    parser.add_argument("--dynamic", choices=("auto", "static"), default="static")
    parser.add_argument("--target", default="H100")
    parser.add_argument(
        "--ways", default=",".join(WAYS), help="comma-separated; without one of them, nothing is compared"
    )
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args()
    ways = [way for way in WAYS if way in options.ways.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        config = _with_layers(options.config, options.layers, Path(folder))
        seconds, programs, growth = measured(config, ways, options)
    if (fault := difference(programs)) is not None:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    nodes = len(programs[ways[-1]].graph.nodes)
    peak = peak_bytes() / 2**30
    if options.out is not None:
        _write(options.out, seconds, nodes, growth)
    named = options.source or options.config
    print(f"{named}, {options.dynamic}, {nodes} nodes, peak of {peak:.2f} GiB for all")
    for way in ways:
        print(f"  {way:12} {min(seconds[way]):6.2f} s   {_ratio(seconds, ways[0], way)}")
    return 0


def _write(path: Path, seconds: Mapping[str, list[float]], nodes: int, growth: int) -> None:
    figures = {
        "nodes": nodes,
        "seconds": seconds,
        "growth_bytes": growth,
        "peak_bytes": peak_bytes(),
        "versions": {name: version(name) for name in ("torch", "transformers", "fakexport")},
    }
    path.write_text(json.dumps(figures))


def _with_layers(config: str, layers: int | None, folder: Path) -> str:
    if layers is None:
        return config
    path = folder / "config.json"
    settings = json.loads(Path(config).read_text())
    path.write_text(json.dumps({**settings, "num_hidden_layers": layers}))
    return str(path)


def measured(
    config: str, ways: list[str], options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, Any], int]:
    """Return the seconds of each method, the program of each method, and the memory growth in bytes."""
    import torch

    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import build, install_transfers
    from fakexport.exporting.capture import capture
    from fakexport.exporting.capture.dynamic_dims import as_torch_shapes
    from fakexport.models import parse_dynamic
    from fakexport.models.sources import resolve

    source = resolve(options.source or f"hf:{config}")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    programs: dict[str, Any] = {}
    with emulate(options.target) as devices:
        placed = "balanced" if len(devices.devices) > 1 else None
        built = build(source.factory, device_map=placed or devices.default_device, dtype=torch.bfloat16)
        with built.mode:
            inputs = source.example_inputs(built.module, devices.default_device, torch.bfloat16)
        dynamic = parse_dynamic("auto") if options.dynamic == "auto" else None

        def export(way: str) -> Any:
            tracing = partial(source.tracing, built.module, inputs)
            if way == "stock":
                shapes = as_torch_shapes(dynamic, inputs.kwargs) if dynamic else None
                with tracing():
                    return torch.export.export(
                        built.module, inputs.args, dict(inputs.kwargs), dynamic_shapes=shapes
                    )
            os.environ["FAKEXPORT_SPEED"] = "1" if way == "memo" else "0"
            captured = capture(built.module, inputs.args, inputs.kwargs, dynamic=dynamic, tracing=tracing)
            if captured.program is None:
                raise SystemExit(str(captured.failure))
            return captured.program

        with install_transfers(built.module, built.placement):
            before = resident_bytes()
            for turn in range(options.rounds + 1):
                for at in range(len(ways)):
                    way = ways[(at + turn) % len(ways)]
                    taken, programs[way] = _timed(lambda way=way: export(way))  # type: ignore[misc]
                    print(f"{way}: {taken:.2f} s{'' if turn else ', not counted'}", file=sys.stderr)
                    if turn:
                        seconds[way].append(taken)
    return seconds, programs, resident_bytes() - before


def _timed(export: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        program = export()
        return time.process_time() - start, program
    finally:
        gc.enable()


def difference(programs: Mapping[str, Any]) -> str | None:
    from tests.identity import first_difference

    if {"memo", "plain"} <= programs.keys():
        difference = first_difference(programs["memo"], programs["plain"])
        if difference is not None:
            return f"the memo changes the program: {difference}"
    found = [_operators(programs[way]) for way in ("stock", "memo") if way in programs]
    return "stock torch has other operators" if len(found) == 2 and found[0] != found[1] else None


def _ratio(seconds: Mapping[str, list[float]], base: str, way: str) -> str:
    ratios = [a / b for a, b in zip(seconds[base], seconds[way], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _operators(program: Any) -> Counter[str]:
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


if __name__ == "__main__":
    sys.exit(main())
