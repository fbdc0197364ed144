"""Compare the planned memory of AOTInductor's buffers with real runs: `python -m benchmarks.aoti_memory`.

Small models are exported for the CPU with all dimensions dynamic, and compiled with the options of `fakexport
compile`. The compiled model and `module()` run under torch's profiler, also at sizes that differ from the
example inputs. The plan uses Inductor's own buffer plan, which Inductor creates before it writes C++.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.plan_accuracy import call_arguments, points

_MODELS = """
    llama gpt2 qwen3 gemma2 mistral gpt_neox opt phi3 bert roberta modernbert t5 bart whisper
    vit deit dinov2 convnext resnet regnet mobilenet_v2 segformer wav2vec2 clip mamba detr
"""
MODELS = tuple(_MODELS.split())
COUNT = 2


def rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the predicted and the measured bytes for each tested combination of sizes of a model."""
    import fakexport as fe
    from fakexport.deploy.aoti import compile_aoti
    from fakexport.models.sources import resolve
    from fakexport.planning import planned_buffers
    from fakexport.planning.memory import liveness, sizes_at
    from tests.measured_memory import measured_peak
    from tests.round_trip.__main__ import spec_of
    from tests.round_trip.reference import real_model, template_of
    from tests.round_trip.values import real_inputs

    with tempfile.TemporaryDirectory() as folder:
        source = resolve(spec_of(name, Path(folder)))
        program = fe.export(source, target="cpu", dtype=torch.float32, dynamic_shapes="auto")
        module = real_model(source, "float32").eval()
        template = template_of(source, module, program)
        bound = fe.bind(program, dict(module.state_dict()), check_finite=False)
        start = time.process_time()
        found = {"module()": liveness(bound), "AOTInductor": planned_buffers(bound)}
        seconds = time.process_time() - start
        package = Path(folder, "model.pt2")
        compile_aoti(bound, package)
        compiled = torch._inductor.aoti_load_package(str(package))
        runs = {"module()": bound.module(), "AOTInductor": compiled}
        count = 0
        for values, shapes in points(bound):
            inputs = real_inputs(template, shapes, getattr(module, "config", None), seed=1, is_padded=True)
            args, kwargs = call_arguments(bound, inputs)
            row: dict[str, Any] = {"model": name, "sizes": values, "seconds": round(seconds, 1)}
            try:
                for way, run in runs.items():
                    peak = sizes_at(found[way], values).peak("cpu").run_bytes
                    measured = measured_peak(functools.partial(run, *args, **kwargs))
                    row[way] = {"predicted": peak, "measured": measured}
            except Exception as error:  # The model does not accept this size.
                print(f"{name}: {type(error).__name__}: {error}".splitlines()[0][:160], flush=True)
                continue
            yield row
            count += 1
            if count == COUNT:
                return


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per model and combination of sizes, and a summary line."""
    lines = [
        "| model | sizes | `module()` | planned | compiled model | error | processor time |",
        "|---|---|---|---|---|---|---|",
    ]
    errors = []
    for row in found:
        predicted, measured = row["AOTInductor"]["predicted"], row["AOTInductor"]["measured"]
        errors.append(abs(predicted / measured - 1))
        sizes = ", ".join(str(size) for size in row["sizes"].values())
        lines.append(
            f"| {row['model']} | {sizes} | {row['module()']['measured']:,} | {predicted:,} | {measured:,} | "
            f"{predicted / measured - 1:+.2%} | {row['seconds']} s |"
        )
    errors.sort()
    exact = sum(error == 0 for error in errors)
    near = sum(error <= 0.005 for error in errors)
    lines.append(
        f"\n{len(errors)} cases of {len({row['model'] for row in found})} models: {exact / len(errors):.1%} "
        f"equal to the byte, {near / len(errors):.1%} within 0.5 %, median {statistics.median(errors):.2%}, "
        f"95th percentile {errors[int(0.95 * (len(errors) - 1))]:.2%}, worst {errors[-1]:.2%}"
    )
    return "\n".join(lines)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of models, by comma")
    parser.add_argument("--out", type=Path, help="file that gets the rows as JSON lines")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = []
    for name in arguments.only.split(",") if arguments.only else MODELS:
        try:
            for row in rows(name):
                found.append(row)
                print(json.dumps(row), flush=True)
                if arguments.out:
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}".splitlines()[0][:200], flush=True)
    print(table(found) if found else "nothing was measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
