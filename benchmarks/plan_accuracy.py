"""Compare predicted memory peaks with real runs: `python -m benchmarks.plan_accuracy`.

`--train` compares eager mode and training instead. `--peers` compares other memory estimates, for models of
published size (`plan_peers.py`). `--merge` prints a summary of the results of earlier runs.

For each architecture, a small model is made from its default config, exported once for the CPU with all
dimensions dynamic, and bound to real weights. `program.module()` runs at sizes that were not traced, while
torch's profiler records every allocation. The prediction for these sizes comes from the same export.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from benchmarks.plan_peers import CASES, peer_rows, peers_table
from fakexport.planning.memory.liveness import Liveness, Sizes, liveness, sizes_at
from fakexport.planning.memory.training import eager_liveness

_MODELS = """
    llama gpt2 qwen3 gemma2 gemma3_text mistral phi3 gpt_neox opt bloom falcon mixtral qwen2_moe olmo2 granite
    gpt_oss deepseek_v3 cohere stablelm starcoder2
    bert roberta distilbert electra albert modernbert deberta-v2 mpnet xlnet fnet squeezebert convbert
    t5 bart marian pegasus mbart whisper speech_to_text moonshine
    vit deit dinov2 beit convnext convnextv2 resnet regnet mobilenet_v2 efficientnet poolformer segformer
    swiftformer pvt hiera levit
    wav2vec2 hubert audio-spectrogram-transformer encodec clap
    mamba mamba2 falcon_mamba jamba zamba2 rwkv
    detr yolos dpt clip siglip_vision_model owlvit videomae timesformer patchtst
"""
MODELS = tuple(_MODELS.split())
COUNT = 3
EXPLAINED = {
    "dpt": "in eager mode: not explained",
    "patchtst": "a batch norm of transposed rows has other strides than its fake, so later operators copy",
}
"""Model with an error above 0.5 % -> reason for the error."""

# Factors for example sizes of up to 4 (batch), up to 64 (tokens), and above (pixels, audio samples).
_FACTORS = (
    *((4, 8, 1), (2, 4, 2), (3, 12, 1), (1, 1, 1), (4, 4, 4), (2, 2, 2), (3, 3, 3), (2, 16, 1), (5, 1, 1)),
    *((1, 2, 1), (3, 1, 1)),
)


def _scaled(hint: int, factors: tuple[int, int, int]) -> int:
    return hint * (factors[0] if hint <= 4 else factors[1] if hint <= 64 else factors[2])


_SMALLEST_SHOWN = 64
TOLERANCE = 0.005


def rows(name: str, *, explain: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the predicted and the measured bytes for each tested combination of sizes of a model."""
    import fakexport as fe
    from fakexport.models.sources import resolve
    from tests.measured_memory import measured_peak
    from tests.round_trip.__main__ import spec_of
    from tests.round_trip.reference import real_model, template_of
    from tests.round_trip.values import real_inputs

    with tempfile.TemporaryDirectory() as folder:
        source = resolve(spec := spec_of(name, Path(folder)))
        report = fe.check(spec, target=["cpu"], dtype="float32", dynamic_shapes="auto")
        program = report.verdicts[0].program
        if program is None:
            yield {"model": name, "execution": "module()", "failed": "does not export"}
            return
        module = real_model(source, "float32").eval()
        template = template_of(source, module, program)
        bound = fe.bind(program, dict(module.state_dict()), check_finite=False)
    start = time.perf_counter()
    found = liveness(bound)
    seconds = time.perf_counter() - start
    run, count, failed = bound.module(), 0, ""
    for values, shapes in points(bound):
        inputs = real_inputs(template, shapes, getattr(module, "config", None), seed=1, is_padded=True)
        args, kwargs = call_arguments(bound, inputs)
        unknown = {symbol: 0 for symbol in found.symbols if symbol not in values}
        sizes = sizes_at(found, {**values, **unknown})
        call = functools.partial(run, *args, **kwargs)
        try:
            measured = measured_peak(call)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        row = {"model": name, "sizes": values, "nodes": len(found.steps), "seconds": round(seconds, 2)}
        yield row | _compared("module()", sizes, measured, [*found.left_out, *unknown])
        if explain:
            _explain(found, sizes, call)
        yield row | _eager(source.factory, module, args, kwargs, explain=explain)
        count += 1
        if count == COUNT:
            return
    if not count:
        yield {"model": name, "execution": "module()", "failed": f"no size runs: {failed}"}


def _compared(execution: str, sizes: Sizes, measured: int, left_out: Sequence[str]) -> dict[str, Any]:
    peak = sizes.peak("cpu")
    return {
        "execution": execution, "predicted": peak.run_bytes, "measured": measured,
        "error": (peak.run_bytes - measured) / measured, "node": peak.step.name if peak.step else "",
        "left_out": list(left_out),
    }  # fmt: skip


def _eager(factory: Any, module: nn.Module, args: Any, kwargs: Any, *, explain: bool) -> dict[str, Any]:
    """Return the predicted and the measured peak of the same call in eager mode."""
    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import build
    from fakexport.models.sources.transformers import known_masks
    from tests.measured_memory import measured_peak

    def like(value: Any) -> Any:
        return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value

    call = functools.partial(module, *args, **kwargs)
    try:
        measured = measured_peak(call)
        with emulate("cpu"):
            built = build(
                lambda: (factory().eval(), tree_map(like, args), tree_map(like, kwargs)), dtype=torch.float32
            )
            leaves = tree_leaves((built.args, built.kwargs))
            given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            with known_masks(built.mode, given):
                found = eager_liveness(built, built.args, built.kwargs)
    except Exception as error:
        return {"execution": "eager", "failed": f"{type(error).__name__}: {error}".splitlines()[0][:120]}
    sizes = sizes_at(found, {})
    if explain:
        _explain(found, sizes, call)
    return _compared("eager", sizes, measured, found.left_out)


def training_rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the predicted and the measured bytes for eager mode and for training with each optimizer."""
    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import build
    from fakexport.models.sources import Workload, known_masks, resolve
    from fakexport.planning.memory.training import OPTIMIZERS, loss_of, training_liveness
    from tests.measured_memory import measured_peak, measured_training
    from tests.round_trip.__main__ import spec_of
    from tests.round_trip.reference import real_model

    with tempfile.TemporaryDirectory() as folder:
        source = resolve(spec_of(name, Path(folder)), workload=Workload("train", 4, 48))
        module = real_model(source, "float32").train()

    def inputs() -> dict[str, torch.Tensor]:
        found = dict(source.example_inputs(module, "cpu", None).kwargs)
        if "attention_mask" in found:
            found["attention_mask"][:, :3] = 0  # transformers drops a mask of ones.
        return found

    given = inputs()

    def step(own: torch.optim.Optimizer) -> None:
        own.zero_grad()
        loss_of(module(**given)).backward()
        own.step()

    for kind in ("eager", "adamw", "sgd"):
        with emulate("cpu"):
            built = build(lambda: (source.factory().train(), (), inputs()), dtype=torch.float32)
            fakes = [leaf for leaf in built.kwargs.values() if isinstance(leaf, torch.Tensor)]
            with known_masks(built.mode, fakes):
                found = (
                    eager_liveness(built, (), built.kwargs)
                    if kind == "eager"
                    else training_liveness(built, (), built.kwargs, optimizer=kind)
                )
        if kind == "eager":
            measured = measured_peak(functools.partial(module, **given))
        else:
            new = functools.partial(OPTIMIZERS[kind], list(module.parameters()))
            measured = measured_training(module, step, new)
        peak = sizes_at(found, {}).peak("cpu")
        yield {
            "model": name, "execution": kind, "sizes": {}, "predicted": peak.run_bytes, "measured": measured,
            "error": (peak.run_bytes - measured) / measured, "nodes": len(found.steps), "seconds": 0,
            "node": peak.step.operator if peak.step else "", "left_out": [],
        }  # fmt: skip


def points(program: ExportedProgram) -> Iterator[tuple[dict[str, int], dict[str, tuple[int, ...]]]]:
    """Yield values for the symbols of the inputs, with the resulting input shapes."""
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    names = [str(name) for name in program.graph_signature.user_inputs]
    shapes = {name: values[name].shape for name in names if isinstance(values.get(name), torch.Tensor)}
    hints = {
        size.node.expr: size.node.hint
        for shape in shapes.values()
        for size in shape
        if not isinstance(size, int) and size.node.expr.is_Symbol
    }
    for factor in _FACTORS if hints else _FACTORS[:1]:
        chosen = {symbol: _scaled(hint, factor) for symbol, hint in hints.items()}
        yield (
            {str(symbol): value for symbol, value in chosen.items()},
            {
                name: tuple(
                    size if isinstance(size, int) else int(size.node.expr.subs(chosen)) for size in shape
                )
                for name, shape in shapes.items()
            },
        )


def call_arguments(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
    leaves = [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else inputs[spec.arg.name]
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    return tree_unflatten(leaves, program.call_spec.in_spec)


def _explain(found: Liveness, sizes: Sizes, run: Callable[[], Any]) -> None:
    """Print the sizes whose measured and predicted numbers of allocations differ, with their operators."""
    from tests.measured_memory import measured_operators

    measured: dict[int, Counter[str]] = defaultdict(Counter)
    predicted: dict[int, Counter[str]] = defaultdict(Counter)
    for operator, size in measured_operators(run):
        measured[size][operator] += 1
    for step, event in found.events:
        if event >= 0:
            name = f"{found.storages[event].operator} in {found.steps[step].name}"
            predicted[sizes.bytes[event]][name] += 1
    for size in sorted({*measured, *predicted}, reverse=True):
        counts = measured[size].total(), predicted[size].total()
        if size > _SMALLEST_SHOWN and counts[0] != counts[1]:
            shown = dict(predicted[size].most_common(6))
            print(f"  {size}: measured {counts[0]}, predicted {counts[1]}: {dict(measured[size])}; {shown}")


def main() -> int:
    """Print a row per model and combination of sizes, and the percentages that the docs quote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of models, by comma")
    parser.add_argument("--explain", action="store_true", help="show the allocations that differ")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--train", action="store_true", help="compare eager mode and training instead")
    ways.add_argument("--peers", action="store_true", help="compare other estimates of the same memory")
    ways.add_argument("--merge", type=Path, nargs="+", help="summarize the rows in these files; run nothing")
    parser.add_argument("--out", type=Path, help="file that gets the rows as JSON lines")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if arguments.merge:
        found = [json.loads(line) for path in arguments.merge for line in path.read_text().splitlines()]
    else:
        names = arguments.only.split(",") if arguments.only else CASES if arguments.peers else MODELS
        found = list(_measured(names, arguments))
    is_of_peers = any("seconds" in row and isinstance(row["seconds"], dict) for row in found)
    print(peers_table(found) if is_of_peers else summary(found))
    return 0


def _measured(names: Iterable[str], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield and print the rows of all models."""
    explained = functools.partial(rows, explain=arguments.explain)
    way = training_rows if arguments.train else peer_rows if arguments.peers else explained
    for name in names:
        try:
            for row in way(name):
                yield row
                print(json.dumps(row) if arguments.peers else _line(row), flush=True)
                if arguments.out:
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the percentages of exact and near predictions, and the models with larger errors."""
    executions = dict.fromkeys(row["execution"] for row in found if "measured" in row)
    return "\n".join(_summary(one, [row for row in found if row["execution"] == one]) for one in executions)


def _summary(execution: str, found: Sequence[Mapping[str, Any]]) -> str:
    measured = [row for row in found if "measured" in row]
    errors = sorted(abs(row["error"]) for row in measured)
    missed = sorted({row["model"] for row in measured if abs(row["error"]) > TOLERANCE})
    return (
        f"{execution}: {len(errors)} cases of {len({row['model'] for row in measured})} models: "
        f"exact {_share(errors, 0):.1%}, within 0.5 % {_share(errors, TOLERANCE):.1%}, "
        f"median {statistics.median(errors):.3%}, "
        f"95th percentile {errors[int(0.95 * (len(errors) - 1))]:.3%}, worst {errors[-1]:.2%}; "
        f"above 0.5 %: {', '.join(missed) or 'none'}"
    )


def _share(errors: Sequence[float], most: float) -> float:
    return sum(error <= most for error in errors) / len(errors)


def _line(row: Mapping[str, Any]) -> str:
    if "measured" not in row:
        return f"{row['model']} {row['execution']}: {row['failed']}"
    sizes = " ".join(f"{name}={value}" for name, value in row["sizes"].items())
    return (
        f"{row['model']:<26} {row['execution']:<8} {sizes:<36} predicted {row['predicted']:>12,} "
        f"measured {row['measured']:>12,} "
        f"{row['error']:+8.3%} at {row['node']}, {row['seconds']} s {row['left_out'] or ''}"
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
