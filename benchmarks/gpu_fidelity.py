"""Is the program captured under emulation the program captured where the device exists?

On a machine with an NVIDIA GPU, each model is exported twice, in two processes: once with the device visible
and without emulation, once with `CUDA_VISIBLE_DEVICES=` under emulation of the same profile. The programs are
compared line by line in canonical form (operators, arguments in order, device literals, shapes, strides,
dtypes, signature, range constraints; names are left out).

    python -m benchmarks.gpu_fidelity                      compare, and write docs/fidelity.md
    python -m benchmarks.gpu_fidelity --models mlp-gpu vit  only these

Where there is no GPU, two builds of the same torch version can be held against each other, both emulating:
the CPU-only wheel, and the CUDA wheel without a driver.

    python -m benchmarks.gpu_fidelity --against /path/to/cuda-venv/bin/python --profile H100

Exit code 0: all equal, 1: some differ, 2: no device or no profile for it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fidelity.md"
TIMEOUT_S = 300


@dataclass(frozen=True)
class Case:
    """One model, and how it is exported."""

    source: str
    dtype: str | None = None
    dynamic: tuple[str, ...] = ()
    device_map: str | None = "cuda:0"


CASES = {
    "mlp-gpu": Case("examples/mlp.py:gpu", device_map=None),
    "mlp-hybrid": Case("examples/mlp.py:hybrid", device_map=None),
    "literals": Case("benchmarks/literals.py:factory"),
    "captioning-encoder": Case("examples/captioning.py:encoder", dynamic=("pixel_values.0=1..64",)),
    "captioning-decoder": Case(
        "examples/captioning.py:decoder", dynamic=("input_ids.0=1..64", "input_ids.1=2..256")
    ),
    "vit": Case("hf:vit"),
    "vit-bf16": Case("hf:vit", "bfloat16"),
    "dinov2": Case("hf:dinov2"),
    "clip": Case("hf:clip"),
    "bert": Case("hf:bert"),
    "gpt2": Case("hf:gpt2"),
    "gpt2-dynamic": Case("hf:gpt2", "float16", ("auto",)),
    "t5": Case("hf:t5"),
    "whisper": Case("hf:whisper", "float16"),
    "wav2vec2": Case("hf:wav2vec2"),
    "llama-8b": Case("hf:examples/configs/llama-3.1-8b.json"),
    "llama-8b-dynamic": Case("hf:examples/configs/llama-3.1-8b.json", "bfloat16", ("auto",)),
    "mixtral-8x22b": Case("hf:examples/configs/mixtral-8x22b.json", "bfloat16"),
    "qwen3-moe": Case("hf:qwen3_moe", "bfloat16"),
    "gpt-oss-120b": Case("hf:examples/configs/gpt-oss-120b.json"),
    "deepseek-v3": Case("hf:examples/configs/deepseek-v3.json"),
}


def export_lines(case: Case, profile: str | None) -> tuple[str, ...]:
    """The canonical lines of one program.

    Args:
        case: The model.
        profile: Emulate this device; None: use the device that is there, with nothing patched.
    """
    import torch

    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import build
    from fakexport.exporting.capture import capture, parse_dynamic
    from fakexport.exporting.program.canonical import canonicalise
    from fakexport.models.sources import resolve

    source = resolve(case.source)
    with emulate(profile) if profile else nullcontext():
        dtype = getattr(torch, case.dtype) if case.dtype else source.dtype
        built = build(source.factory, device_map=case.device_map, dtype=dtype, default_device="cuda:0")
        with built.mode:
            args, kwargs = built.args, built.kwargs
            if not args and not kwargs:
                inputs = source.example_inputs(built.module, "cuda:0", dtype)
                args, kwargs = inputs.args, dict(inputs.kwargs)
        from fakexport.models.sources import ExampleInputs

        tracing = partial(source.tracing, built.module, ExampleInputs(args, kwargs))
        captured = capture(built.module, args, kwargs, dynamic=parse_dynamic(case.dynamic), tracing=tracing)
    if captured.program is None:
        assert captured.failure is not None
        return (f"failed: {captured.failure.error_types[0]}: {captured.failure.messages[0][:300]}",)
    return tuple(map(str, canonicalise(captured.program).lines))


def in_a_process(name: str, profile: str | None, python: str = sys.executable) -> tuple[list[str], float]:
    """The lines and the wall time in seconds, with the device hidden where a profile stands for it."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    if profile is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.json"
        command = [python, "-m", "benchmarks.gpu_fidelity", "--worker", name, "--out", str(out)]
        if profile is not None:
            command += ["--profile", profile]
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        seconds = time.perf_counter() - start
        if done.returncode != 0 or not out.exists():
            return [f"process ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"], seconds
        return json.loads(out.read_text()), seconds


def device_and_profile() -> tuple[str, str]:
    """The name of the device that is there, and the profile of that name.

    Raises:
        LookupError: there is no device, or no profile for it.
    """
    import torch

    from fakexport.emulation.devices import load_profiles

    if not torch.cuda.is_available():
        raise LookupError("no CUDA device here: run this where there is one")
    name = torch.cuda.get_device_name(0)
    for profile in load_profiles().values():
        if profile.vendor_name == name:
            return name, profile.name
    raise LookupError(f"no profile is called {name!r}; add one to profiles.toml")


def compare(names: list[str], profile: str, against: str | None = None) -> list[dict[str, Any]]:
    """One row per model: with the device, or with another interpreter, against emulation here."""
    rows = []
    for name in names:
        native, native_s = in_a_process(name, profile, against) if against else in_a_process(name, None)
        emulated, emulated_s = in_a_process(name, profile)
        is_equal = native == emulated and not native[0].startswith(("failed", "process"))
        differing = list(difflib.unified_diff(native, emulated, lineterm="", n=0))[2:]
        rows.append(
            {"model": name, "lines": len(native), "is_equal": is_equal, "differing": differing[:20]}
            | {"native_s": round(native_s, 1), "emulated_s": round(emulated_s, 1)}
        )
        print(f"{name}: {'equal' if is_equal else 'DIFFERENT'}, {len(native)} lines", flush=True)
        for line in differing[:20] or ([] if is_equal else native[:1] + emulated[:1]):
            print(f"    {line}", flush=True)
    return rows


def versions(python: str) -> str:
    program = (
        "import torch, transformers as t; print(f'torch {torch.__version__}, transformers {t.__version__}')"
    )
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def page(rows: list[dict[str, Any]], device: str, profile: str) -> str:
    equal = sum(row["is_equal"] for row in rows)
    first = (
        f"exported with a {device} visible and without emulation"
        if not device.startswith("torch")
        else f"exported with {device}, without a driver"
    )
    table = [
        f"| {row['model']} | {row['lines']} | {'equal' if row['is_equal'] else 'different'} |" for row in rows
    ]
    differences = [
        f"## {row['model']}\n\n```diff\n" + "\n".join(row["differing"]) + "\n```\n"
        for row in rows
        if not row["is_equal"]
    ]
    return "\n".join(
        [
            "# Fidelity",
            "",
            "Made by `make gpu-fidelity`; do not edit.",
            "",
            f"{equal} of {len(rows)} programs are equal, node for node: {first};",
            f"and exported with {versions(sys.executable)} and `CUDA_VISIBLE_DEVICES=` under emulation",
            f"of {profile}. Each in a process of its own.",
            "",
            "| model | lines of canonical form | programs |",
            "|---|---|---|",
            *table,
            "",
            *differences,
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares programs with and without the device.")
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--against", help="interpreter with another build of torch")
    parser.add_argument("--profile", help="with --against: the device to emulate in both")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        options.out.write_text(json.dumps(export_lines(CASES[options.worker], options.profile)))
        return 0
    if options.against:
        device, profile = versions(options.against), options.profile or "H100"
    else:
        try:
            device, profile = device_and_profile()
        except LookupError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    rows = compare(options.models, profile, options.against)
    options.page.write_text(page(rows, device, profile))
    return 0 if all(row["is_equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
