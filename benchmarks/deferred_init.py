"""Measure recording, compare deferred construction with other methods, and measure one shard.

1. Recording: construct Llama-3.1-405B in torch's fake mode, with and without recording.
2. Construction of Llama-3.2-1B: on the meta device, with accelerate's `init_empty_weights`, deferred, and
   with real weights. The deferred model is materialized; a digest of all its bytes must match the real model.
3. One of eight shards of Llama-2-13B in float32 (52 GB in total): peak memory compared with the sizes of the
   largest tensor and of the shard. One layer of the same model: time to draw only the weights of this layer.

Each measurement runs in its own process, and compared measurements alternate. Recording is too fast for that,
so both methods also alternate in one process, measured in processor time.

    python -m benchmarks.deferred_init [--rounds 5] [--only recording|construction|shards]
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.fresh_process import ROOT, in_a_process
from fakexport.emulation.devices.host_memory import peak_bytes

RECORDING = ("fake mode", "recorded")
CONSTRUCTION = ("meta", "accelerate", "deferred", "real")
TURNS = 9
SHARDS = 8
CONFIGS = {"recording": "llama-3.1-405b", "construction": "llama-3.2-1b", "shards": "llama-2-13b"}


def model_factory(name: str) -> Callable[[], Any]:
    """Return a function that constructs the language model of an example config in torch's default dtype."""
    from transformers import LlamaConfig, LlamaForCausalLM

    fields = json.loads((ROOT / "examples" / "configs" / f"{name}.json").read_text())
    return lambda: LlamaForCausalLM(LlamaConfig(**{k: v for k, v in fields.items() if k != "torch_dtype"}))


def measure(what: str, way: str) -> dict[str, Any]:
    """Run one measurement in this process, and return its results."""
    make = model_factory(CONFIGS[what])
    match what:
        case "recording":
            return measure_recording(make, way)
        case "construction":
            return measure_construction(make, way)
        case _:
            return measure_shard(make) if way == "shard" else measure_layer(make)


def timed(make: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Call `make`. Return its result, and a dict with its times and the memory growth in bytes."""
    before = peak_bytes()
    start, cpu_start = time.perf_counter(), time.process_time()
    made = make()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    growth = peak_bytes() - before
    return made, {"seconds": seconds, "cpu_seconds": cpu_seconds, "growth_bytes": growth}


def measure_recording(make: Callable[[], Any], way: str) -> dict[str, Any]:
    """Time construction in fake mode with one method, or with both in turns. Recover recorded buffers."""
    from fakexport.emulation.history import constant_value

    if way == "turns":
        ratios = []
        for _ in range(TURNS + 1):
            stock, ours = (constructed(make, other)[1]["cpu_seconds"] for other in RECORDING)
            ratios.append(ours / stock)
        return {"ratios": ratios[1:]}  # The first turn imports modules and fills caches.
    constructed(model_factory("llama-3.2-1b"), way)
    model, result = constructed(make, way)
    result["tensors"] = len(list(model.parameters())) + len(list(model.buffers()))
    if way == "recorded":
        buffers = dict(model.named_buffers())
        values, recovery = timed(lambda: {name: constant_value(tensor) for name, tensor in buffers.items()})
        result["recovery_seconds"] = recovery["seconds"]
        result["recovered_bytes"] = sum(value.nbytes for value in values.values())
        assert all(bool(value.isfinite().all()) for value in values.values())
    return result


def constructed(make: Callable[[], Any], way: str) -> tuple[Any, dict[str, Any]]:
    """Construct the model in fake mode, with or without recording. Return the result of `timed`."""
    from fakexport._torch.emulation.fake_tensors import new_fake_mode
    from fakexport.emulation.fake import fake_mode

    gc.collect()
    with fake_mode() if way == "recorded" else new_fake_mode():
        return timed(make)


def measure_construction(make: Callable[[], Any], way: str) -> dict[str, Any]:
    """Time one method of construction. If the tensors have data, also return a digest of all bytes."""
    import torch

    from fakexport.emulation.fake import deferred_init, materialize_module

    torch.manual_seed(0)
    if way == "accelerate":
        from accelerate import init_empty_weights

        def build() -> Any:
            with init_empty_weights():
                return make()

    elif way == "meta":

        def build() -> Any:
            with torch.device("meta"):
                return make()

    else:

        def build() -> Any:
            return deferred_init(make) if way == "deferred" else make()

    model, result = timed(build)
    if way == "deferred":
        _, materialising = timed(lambda: materialize_module(model))
        result["materialise_seconds"] = materialising["seconds"]
    if way in ("deferred", "real"):
        result["digest"] = digest(model)
    return result


def digest(model: Any) -> str:
    """Return a digest of the bytes of all parameters and buffers."""
    import torch

    digest = hashlib.blake2b()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def measure_shard(make: Callable[[], Any]) -> dict[str, Any]:
    """Materialize the last of eight shards of every matrix, split in the first dimension."""
    import torch

    from fakexport.emulation.fake import deferred_init, materialize_module

    torch.manual_seed(0)
    model, result = timed(lambda: deferred_init(make))
    whole = sum(p.nbytes for p in model.parameters())
    largest = max(p.nbytes for p in model.parameters())

    def last_rows(name: str, tensor: torch.Tensor) -> slice | None:
        rows = tensor.shape[0] // SHARDS
        return slice(-rows, None) if tensor.dim() == 2 else None

    _, sharding = timed(lambda: materialize_module(model, shard_fn=last_rows))
    kept = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    return {
        "whole_bytes": whole,
        "largest_bytes": largest,
        "kept_bytes": kept,
        "growth_bytes": sharding["growth_bytes"] + result["growth_bytes"],
        "seconds": sharding["seconds"],
    }


def measure_layer(make: Callable[[], Any]) -> dict[str, Any]:
    """Materialize the last layer, which skips all earlier ones; then the first layer, for comparison."""
    import torch

    from fakexport.emulation.fake import deferred_init, materialize_module

    torch.manual_seed(0)
    model = deferred_init(make)
    layers = model.model.layers
    _, last = timed(lambda: materialize_module(layers[-1]))
    _, first = timed(lambda: materialize_module(layers[0]))
    size = sum(p.numel() for p in layers[0].parameters())
    return {"parameters": size, "last_seconds": last["seconds"], "first_seconds": first["seconds"]}


def taking_turns(what: str, ways: Sequence[str], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Measure each method once per round, in new processes, and return the results by method."""
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            results[way].append(in_a_process("benchmarks.deferred_init", "--measure", what, "--way", way))
            print(f"{what}, {way}: {results[way][-1]['seconds']:.2f} s", file=sys.stderr, flush=True)
    return results


def show_recording(rounds: int) -> None:
    """Print the cost of recording."""
    results = taking_turns("recording", RECORDING, rounds)
    stock, ours = (results[way] for way in RECORDING)
    assert ours[0]["tensors"] == stock[0]["tensors"]
    print(f"{CONFIGS['recording']}, {ours[0]['tensors']} tensors, {rounds} rounds")
    for way in RECORDING:
        show(way, results[way])
    turns = in_a_process("benchmarks.deferred_init", "--measure", "recording", "--way", "turns")["ratios"]
    print(f"  ratio of processor time, {TURNS} turns in one process: {statistics.median(turns):.2f} "
          f"({min(turns):.2f} to {max(turns):.2f})")  # fmt: skip
    recovery = [result["recovery_seconds"] for result in ours]
    print(
        f"  {ours[0]['recovered_bytes']} bytes of buffers recovered in {max(recovery) * 1e3:.1f} ms at most"
    )


def show_construction(rounds: int) -> None:
    """Compare the methods of constructing a model that fits into memory."""
    results = taking_turns("construction", CONSTRUCTION, rounds)
    digests = {result["digest"] for way in ("deferred", "real") for result in results[way]}
    assert len(digests) == 1, "the deferred model is not the real one"
    print(f"{CONFIGS['construction']}, float32, {rounds} rounds; deferred and real have the same bytes")
    for way in CONSTRUCTION:
        show(way, results[way])
    materialising = [result["materialise_seconds"] for result in results["deferred"]]
    print(f"  materialising the deferred one: {min(materialising):.2f} to {max(materialising):.2f} s")


def show(way: str, results: Sequence[dict[str, Any]]) -> None:
    """Print the range of times and the memory growth of one method."""
    seconds = [result["seconds"] for result in results]
    growth = max(result["growth_bytes"] for result in results)
    print(f"  {way:12} {min(seconds):8.3f} to {max(seconds):8.3f} s, grows by {growth / 1e6:8.1f} MB")


def show_shards() -> None:
    """Print the cost of one shard and of one layer of a model that does not fit into memory."""
    shard = in_a_process("benchmarks.deferred_init", "--measure", "shards", "--way", "shard")
    print(f"{CONFIGS['shards']}, float32, {shard['whole_bytes'] / 1e9:.1f} GB as a whole")
    allowed = shard["largest_bytes"] + shard["kept_bytes"]
    print(
        f"  one shard of {SHARDS}: kept {shard['kept_bytes'] / 1e9:.2f} GB, largest tensor "
        f"{shard['largest_bytes'] / 1e9:.2f} GB, the process grew by {shard['growth_bytes'] / 1e9:.2f} GB "
        f"({shard['growth_bytes'] / allowed:.2f} of both), {shard['seconds']:.0f} s"
    )
    layer = in_a_process("benchmarks.deferred_init", "--measure", "shards", "--way", "layer")
    print(
        f"  a layer ({layer['parameters'] / 1e6:.0f} M parameters): the last {layer['last_seconds']:.1f} s, "
        f"the first {layer['first_seconds']:.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures deferred initialisation.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=tuple(CONFIGS))
    parser.add_argument("--measure", choices=tuple(CONFIGS), help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.way)))
        return 0
    if options.only in (None, "recording"):
        show_recording(options.rounds)
    if options.only in (None, "construction"):
        show_construction(min(options.rounds, 3))
    if options.only in (None, "shards"):
        show_shards()
    return 0


if __name__ == "__main__":
    sys.exit(main())
