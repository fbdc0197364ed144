"""Measure six models in all modes of `fakexport bench`, and write docs/deploy_table.md.

Each mode is measured in two new processes: one writes the files, the other loads them. For latency, calls of
the mode and of eager mode alternate in one process, so that other load on the machine affects both. If a mode
of fakexport returns different outputs than eager mode, the run ends with an error and writes nothing.

    python -m benchmarks.deploy_table [--work FOLDER] [--only vit,gpt2] [--modes aoti,onnx]

The results of each mode are stored in FOLDER and not measured again, so a stopped run can be continued. The
page is written when all results exist. Results in FOLDER from different versions, machines or settings are an
error. Needs g++ and the packages of all modes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import ROOT
from fakexport.deploy.benchmark import bench
from fakexport.deploy.benchmark.modes import MODES
from fakexport.report.as_json import to_dict
from fakexport.report.quantity import bytes_text, duration_text

PAGE = ROOT / "docs" / "deploy_table.md"
REPEAT, WARMUP, THREADS = 30, 5, 1
_FACTORIES = "benchmarks/deploy_models/factories.py"
# If one of these is missing, a mode would fail because of this machine and not because of the mode.
_PACKAGES = ("transformers", "onnx", "onnxscript", "onnxruntime", "executorch")
# Modes that are only in the table for comparison.
_MAY_BE_WRONG = {"weights", "torchscript-trace", "torchscript-script"}


@dataclass(frozen=True)
class Case:
    """A model of the table.

    Args:
        name: Name on the page.
        source: Source for `fakexport bench`.
        dynamic, inputs: Values of `--dynamic` and `--input`.
        has_library: Whether the model needs the operators of examples/custom_ops.
    """

    name: str
    source: str
    dynamic: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    has_library: bool = False


CASES = {
    "mlp": Case("MLP", f"{_FACTORIES}:mlp", ("input.0=2..64",)),
    "vit": Case("ViT", "hf:benchmarks/deploy_models/vit.json:ViTModel", ("pixel_values.0=2..8",)),
    "gpt2": Case(
        "GPT-2",
        "hf:benchmarks/deploy_models/gpt2.json",
        ("input_ids.0=2..8", "input_ids.1=2..256"),
        ("input_ids=int64[2,128]", "attention_mask=int64[2,128]"),
    ),
    "whisper": Case("Whisper encoder", f"{_FACTORIES}:whisper_encoder", ("input_features.0=2..8",)),
    "resnet": Case(
        "ResNet-18", "hf:benchmarks/deploy_models/resnet.json:ResNetModel", ("pixel_values.0=2..8",)
    ),
    "custom": Case("C++ operator", f"{_FACTORIES}:soft_clipped", ("x.0=2..64",), has_library=True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures ways to hand models over, and writes a page.")
    parser.add_argument("--work", type=Path, default=Path("/tmp/fakexport-deploy-table"))
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    if missing := _missing_tools():
        parser.error(f"not installed: {', '.join(missing)}")
    options.work.mkdir(parents=True, exist_ok=True)
    wanted = [(key, mode) for key in options.only.split(",") for mode in options.modes.split(",")]
    for number, (key, mode) in enumerate(wanted, start=1):
        measure(key, mode, options.work, f"[{number}/{len(wanted)}] {CASES[key].name}, {mode}")
    found = {
        key: json.loads(path.read_text()) for key in CASES if (path := _file(key, options.work)).exists()
    }
    check_alike(found, options.work)
    if wrong := list(_wrong(found)):
        print("error: other outputs than eager's:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    left = [f"{key} {mode}" for key in CASES for mode in MODES if mode not in _modes(found.get(key))]
    if left:
        count = len(CASES) * len(MODES)
        print(f"{PAGE.name} not written: {len(left)} of {count} are left, first {left[0]}", file=sys.stderr)
        return 0
    PAGE.write_text(page(found), encoding="utf-8")
    return 0


def measure(key: str, mode: str, work: Path, name: str) -> None:
    """Measure a mode, unless the model's file in the folder contains it, and add the results to that file.

    Raises:
        SystemExit: the file contains results from different versions, machines or settings.
    """
    case, file = CASES[key], _file(key, work)
    known = json.loads(file.read_text()) if file.exists() else None
    if mode in _modes(known):
        return
    load = os.getloadavg()[0]
    report = bench(
        case.source,
        modes=[mode],
        inputs=case.inputs,
        dynamic_shapes=case.dynamic,
        libraries=[str(_library(work))] if case.has_library else (),
        threads=THREADS,
        warmup=WARMUP,
        repeat=REPEAT,
        on_progress=lambda line: print(f"{name}: {line.partition(': ')[2]}", file=sys.stderr, flush=True),
    )
    new = to_dict(report)
    new["measured"] |= {"warmup": WARMUP, "repeat": REPEAT, "loads": [load]}
    new_file = file.with_suffix(".new")
    new_file.write_text(json.dumps(new if known is None else merged(known, new, file), indent=2))
    new_file.replace(file)


def merged(known: dict[str, Any], new: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the known and the new results of a model as one report.

    Raises:
        SystemExit: the model, its sizes, the versions, the machine or the settings differ.
    """
    for name in ("source", "inputs", "other_inputs"):
        if known[name] != new[name]:
            raise SystemExit(f"error: {file} is of {name} {known[name]}, now it is {new[name]}: remove it")
    check_alike({"known": known, "new": new}, file)
    measured = {
        **known["measured"],
        **{each: known["measured"][each] + new["measured"][each] for each in ("modes", "loads")},
    }
    return {
        **known,
        "versions": {**known["versions"], **new["versions"]},
        "modes": known["modes"] + new["modes"],
        "measured": measured,
    }


def check_alike(found: Mapping[str, Any], place: Path) -> None:
    """Check that all results come from the same machine, settings and package versions.

    Raises:
        SystemExit: they do not. The message names the difference.
    """
    known: dict[str, Any] = {}
    for each in found.values():
        settings = {name: each["measured"][name] for name in ("processor", "threads", "warmup", "repeat")}
        for name, value in {**settings, **each["versions"]}.items():
            if known.setdefault(name, value) != value:
                raise SystemExit(
                    f"error: {place} has figures of {name} {known[name]} and of {name} {value}: remove it"
                )


def _missing_tools() -> list[str]:
    packages = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    return packages + ([] if shutil.which("g++") else ["g++"])


def _modes(report: Mapping[str, Any] | None) -> set[str]:
    return set() if report is None else set(_by_mode(report["modes"]))


def _file(key: str, work: Path) -> Path:
    return work / f"{key}.json"


def _library(work: Path) -> Path:
    """Return the library with the C++ operators of examples/custom_ops. Build it on first use."""
    library = work / "libsignal_ops.so"
    if not library.exists():
        sys.path.insert(0, str(ROOT / "examples" / "custom_ops"))
        from build import build

        made = work / "building.so"
        build(made)
        shutil.move(made, library)
    return library


def _wrong(found: Mapping[str, Any]) -> Iterator[str]:
    for key, report in found.items():
        for row in report["modes"]:
            if row["is_equal"] is False and row["mode"] not in _MAY_BE_WRONG:
                yield f"{CASES[key].name}, {row['mode']}"


def page(found: Mapping[str, Any]) -> str:
    """Return the page. `found` maps the key of each model to its report."""
    measured = [each["measured"] for each in found.values()]
    versions: dict[str, str] = {}
    for each in found.values():
        versions |= each["versions"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    modes = [mode for mode in MODES if any(mode in _by_mode(each["modes"]) for each in found.values())]
    machine = f"{measured[0]['processor']}, no GPU, torch with {measured[0]['threads']} thread"
    loads = [load for each in measured for load in each["loads"]]
    parts = [
        "# Deployment formats, measured",
        "Written by `python -m benchmarks.deploy_table`. Each model is constructed with random weights and\n"
        "deployed in each mode of [`fakexport bench`](cli.md#fakexport-bench-source), which explains the\n"
        "columns. One fresh process writes the files, and a second one loads them. In the second one, the\n"
        "model's package cannot be imported unless the mode needs code. Outputs were compared with eager\n"
        "mode before timing.",
        f"Machine: {machine}. Before each mode, the system's load average\n"
        f"was {statistics.median(loads):.1f} in the median and {max(loads):.1f} at most; earlier modes "
        "raised it. Latency is a ratio to\neager mode: calls of both alternate in one process. "
        "ONNX Runtime uses as many threads as torch.\n"
        "ExecuTorch with XNNPACK uses one thread per processor.\n"
        f"{told}.",
        "## Latency relative to eager mode",
        f"Median and quartiles of {measured[0]['repeat']} timed calls after {measured[0]['warmup']} others. "
        "A ratio below 1 is faster than\neager mode. `-`: the mode does not work; the reasons are below.",
        _ratios(found, modes),
    ]
    for key, each in found.items():
        parts += [f"## {CASES[key].name}", _about(CASES[key], each), _table(each, modes)]
        parts += ["\n".join(_reasons(each))] if any(row["failures"] for row in each["modes"]) else []
    return "\n\n".join(parts) + "\n"


def _by_mode(rows: Any) -> dict[str, Any]:
    return {row["mode"]: row for row in rows}


def _ratios(found: Mapping[str, Any], modes: list[str]) -> str:
    lines = [
        "| mode | " + " | ".join(CASES[key].name for key in found) + " |",
        "|---" * (len(found) + 1) + "|",
    ]
    for mode in modes:
        figures = [_by_mode(each["measured"]["modes"]).get(mode, {}).get("ratio") for each in found.values()]
        lines.append(f"| `{mode}` | " + " | ".join(map(_ratio, figures)) + " |")
    return "\n".join(lines)


def _about(case: Case, report: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"`{text}`" for text in report["inputs"])
    others = ", ".join(f"`{text}`" for text in report["other_inputs"])
    eager = _by_mode(report["measured"]["modes"]).get("eager", {}).get("latency_s")
    latency = "" if eager is None else f" Eager took {duration_text(eager['median'])}."
    return f"`{case.source}` with {sizes}; other sizes: {others}.{latency}"


def _table(report: Mapping[str, Any], modes: list[str]) -> str:
    head = (
        "mode",
        "captures",
        "dynamic",
        "needs code",
        "difference",
        "size",
        "make",
        "load",
        "first call",
        "memory",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    rows, figures = _by_mode(report["modes"]), _by_mode(report["measured"]["modes"])
    for mode in (mode for mode in modes if mode in rows):
        row, found = rows[mode], figures[mode]
        cells = (
            f"`{mode}`",
            *(_verdict(row[name]) for name in ("is_captured", "keeps_dynamic", "needs_code")),
            _difference(row, found["difference"]),
            _or_dash(found["size_bytes"], bytes_text),
            *(_or_dash(found[name], duration_text) for name in ("make_s", "load_s", "first_call_s")),
            _or_dash(found["memory_bytes"], bytes_text),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_WHEN = {
    "make": "while writing the files",
    "load": "while loading",
    "run": "in the first call",
    "compare": "in the comparison with eager mode",
    "resize": "with a different input size",
    "time": "while timing",
}


def _reasons(report: Mapping[str, Any]) -> Iterator[str]:
    for row in report["modes"]:
        for failure in row["failures"]:
            reason = failure["reason"].replace(f"{ROOT}/", "").replace("|", "\\|").replace("`", "'")
            yield f"- `{row['mode']}`, {_WHEN[failure['step']]}: `{_shortened(reason)}`"


def _shortened(reason: str) -> str:
    """Remove the folders above `site-packages` from paths, and limit the text to 240 characters."""
    parts = [part.rpartition("site-packages/")[2] for part in reason.split(" ")]
    text = " ".join(parts)
    return text if len(text) <= 240 else f"{text[:237]}..."


def _difference(row: Mapping[str, Any], difference: float | str | None) -> str:
    if difference is None:
        return "-"
    shown = "inf" if difference == "inf" or math.isinf(float(difference)) else f"{difference:.2g}"
    return shown if row["is_equal"] else f"{shown} (wrong)"


def _ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['median']:.2f} ({ratio['lower']:.2f} to {ratio['upper']:.2f})"


def _verdict(is_so: bool | None) -> str:
    return "-" if is_so is None else "yes" if is_so else "no"


def _or_dash(value: Any, text: Any) -> str:
    return "-" if value is None else str(text(value))


if __name__ == "__main__":
    sys.exit(main())
