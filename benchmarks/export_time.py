"""Compare fakexport's capture with `torch.export` in time and memory, for 405 billion parameters.

Both trace the same fake Llama-3.1-405B on 8 emulated H100s, in bfloat16, with `--dynamic auto`. They
alternate in new processes, so that other load on the machine affects both. Both programs must have the same
operators.

    python -m benchmarks.export_time [--rounds 3] [--config examples/configs/llama-3.1-8b.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from functools import partial
from typing import Any

from benchmarks.fresh_process import in_a_process
from fakexport.emulation.devices.host_memory import peak_bytes

CONFIG = "examples/configs/llama-3.1-405b.json"
WAYS = ("fakexport", "torch.export")


def measure(way: str, config: str) -> dict[str, Any]:
    """Capture in this process. Return the time, the memory growth after imports, and the operators."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import build, install_transfers
    from fakexport.exporting.capture import capture
    from fakexport.exporting.capture.dynamic_dims import as_torch_shapes
    from fakexport.models import parse_dynamic
    from fakexport.models.sources import resolve

    source = resolve(f"hf:{config}")
    imported = peak_bytes()
    with emulate("8xH100"):
        built = build(source.factory, device_map="balanced", dtype=torch.bfloat16)
        with built.mode:
            inputs = source.example_inputs(built.module, "cuda:0", torch.bfloat16)
        tracing = partial(source.tracing, built.module, inputs)
        dynamic = parse_dynamic("auto")
        with install_transfers(built.module, built.placement):
            start = time.perf_counter()
            if way == "fakexport":
                captured = capture(built.module, inputs.args, inputs.kwargs, dynamic=dynamic, tracing=tracing)
                if captured.program is None:
                    raise SystemExit(str(captured.failure))
                program = captured.program
            else:
                shapes = as_torch_shapes(dynamic, inputs.kwargs)
                with tracing():
                    program = torch.export.export(
                        built.module, inputs.args, dict(inputs.kwargs), dynamic_shapes=shapes
                    )
            seconds = time.perf_counter() - start
    operators = Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")
    return {
        "seconds": seconds,
        "growth_bytes": peak_bytes() - imported,
        "nodes": len(program.graph.nodes),
        "operators": dict(sorted(operators.items())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Times fakexport's capture against torch.export.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.config)))
        return 0
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            arguments = ("--way", way, "--config", options.config)
            results[way].append(in_a_process("benchmarks.export_time", *arguments))
            print(f"{way}: {results[way][-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    ours, stock = (results[way] for way in WAYS)
    if ours[0]["operators"] != stock[0]["operators"]:
        print("error: the two programs have other operators", file=sys.stderr)
        return 1
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(ours, stock, strict=True)]
    print(f"{options.config}, {ours[0]['nodes']} nodes, same operators both ways, {options.rounds} rounds")
    for way in WAYS:
        seconds = [result["seconds"] for result in results[way]]
        growth = max(result["growth_bytes"] for result in results[way])
        print(f"  {way:13} {min(seconds):6.1f} to {max(seconds):6.1f} s, grows by {growth / 1e6:.0f} MB")
    print(f"  ratio         {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
