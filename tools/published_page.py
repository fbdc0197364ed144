"""Write the page of published configs, or the zoo file that its runs need.

    python tools/published_page.py zoo FOLDER WAY > zoo.yaml
    python tools/published_page.py plan FOLDER RUN.jsonl
    python tools/published_page.py page COMMIT WAY=RUN.jsonl ... > docs/zoo/published.md

FOLDER contains configs with names such as `Qwen--Qwen3-32B_config.json`, as in the package
`aiconfigurator-core`. WAY is `static`, `auto`, `prefill`, `decode` or `plan`. There is no zoo file for
`plan`, because a sweep only runs `check`: the command `plan` runs `fakexport plan --workload decode`, and
skips configs that are already in its output.
"""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zoo_page import cell, clipped, first_error

_WAYS = {
    "static": "dynamic: static",
    "auto": "dynamic: auto",
    "prefill": "workloads: prefill",
    "decode": "workloads: decode",
}
_ZOO = """\
timeout: 240
memory: 8 GiB
targets: 8xH100
device-map: balanced
{way}
models:
"""
_CONTEXT = 4096
_PLAN = (
    "--target", "8xH100", "--device-map", "balanced", "--workload", "decode", "--context", str(_CONTEXT),
    "--format", "json", "--no-progress",
)  # fmt: skip
_PAGE = """\
# Published models

This page lists which of the configs in NVIDIA's package `aiconfigurator-core` export for eight H100 GPUs with
`--device-map balanced`. The configs are as their publishers wrote them. No weights and no GPU were used.
Parameters are counted before quantization.

`static` and `auto` are checks with fixed sizes and with `--dynamic auto`. `prefill` and `decode` are the
workloads of `check`, and `plan` is `fakexport plan` of a decode step.

{counts}
Ran with {versions} ({machine})
and fakexport at commit {commit}. Seconds are the wall time of the whole command, one command at a time.
To run it again:

```
pip download aiconfigurator-core --no-deps && unzip -j aiconfigurator_core-*.whl '*_config.json' -d configs
python tools/published_page.py zoo configs static > zoo.yaml
fakexport sweep zoo.yaml -o static.jsonl
python tools/published_page.py page $(git rev-parse --short HEAD) static=static.jsonl > docs/zoo/published.md
```

| model | parameters | weights | {heads} | reason |
|---|---:|---:|{rules}---|
"""
_PASSED = ("exports", "plans")
_HEADS = {"plan": "cache per token, processor seconds of the plan"}


def zoo(folder: Path, way: str) -> str:
    """Return a zoo file with every config of a folder, for one way of checking them."""
    return _ZOO.format(way=_WAYS[way]) + "".join(f"  - hf:{path}\n" for path in _configs(folder))


def _configs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*config.json") if "hf_quant" not in path.name)


def plan(configs: Iterable[Path], output: Path) -> None:
    """Plan a decode step of each config, one after the other. Append a line of JSON per config to a file."""
    lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
    done = {json.loads(line)["command"] for line in lines}
    for path in configs:
        arguments = ["plan", f"hf:{path}", *_PLAN]
        command = shlex.join(["fakexport", *arguments])
        if command in done:
            continue
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = subprocess.run(
            [sys.executable, "-m", "fakexport", *arguments], capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        record = {
            "command": command,
            "status": "plans" if ran.stdout else "fails",
            "reason": "" if ran.stdout else next(iter(ran.stderr.splitlines()), ""),
            "seconds": time.monotonic() - start,
            "processor_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "report": json.loads(ran.stdout) if ran.stdout else None,
        }
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def page(commit: str, runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return the page. `runs` maps each way to the records of `fakexport sweep`."""
    by_model: dict[str, dict[str, dict[str, Any]]] = {}
    for way, records in runs.items():
        for record in records:
            by_model.setdefault(_model(record), {})[way] = record
    some = next(iter(runs.values()))[0]
    versions = ", ".join(f"{name} {some['versions'][name]}" for name in ("torch", "transformers", "python"))
    head = _PAGE.format(
        counts="".join(_counts(way, by_model) for way in runs) + _excluded(by_model),
        versions=versions,
        machine=some["machine"],
        commit=commit,
        heads=" | ".join(_HEADS.get(way, f"{way}: nodes, seconds") for way in runs),
        rules="---:|" * len(runs),
    )
    return head + "".join(
        _row(model, by_model[model], list(runs)) for model in sorted(by_model, key=str.lower)
    )


def _model(record: dict[str, Any]) -> str:
    path = record["command"].split()[2]
    return Path(path).name.removesuffix("config.json").rstrip("_-").replace("--", "/", 1)


def _counts(way: str, by_model: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a line with the number of models that pass in one way. No way counts an excluded model."""
    kinds = {model: _not_counted(records.values()) for model, records in by_model.items()}
    known = [model for model, kind in kinds.items() if kind is None and way in by_model[model]]
    passed = sum(by_model[model][way]["status"] in _PASSED for model in known)
    return f"- `{way}`: **{passed} of {len(known)}** pass ({passed / len(known):.0%}).\n"


_LACKING, _PACKED, _PARTIAL = (
    "configs have a type or class that transformers lacks",
    "configs have a quantization that transformers cannot build (FE105)",
    "configs lack a part of the published config, such as `vision_config`",
)


def _excluded(by_model: dict[str, dict[str, dict[str, Any]]]) -> str:
    kinds = Counter(_not_counted(records.values()) for records in by_model.values())
    return "\nNot counted:\n\n" + "".join(f"- {kinds[kind]} {kind}\n" for kind in kinds if kind)


def _not_counted(records: Iterable[dict[str, Any]]) -> str | None:
    """Return why a model is not counted, or None: its config does not describe the published model."""
    found = list(records)
    if any(each["status"] == "refused" and "has no " in each["reason"] for each in found):
        return _LACKING
    if any(each["reason"].startswith("FE105") for each in found):
        return _PACKED
    assumed = [
        text
        for each in found
        if each["report"] and "targets" in each["report"]
        for text in each["report"]["targets"][0]["assumptions"]
    ]
    is_partial = any(re.match(r"the config has no \w+_config:", text) for text in assumed)
    return _PARTIAL if is_partial or any("which is missing" in each["reason"] for each in found) else None


def _row(model: str, records: dict[str, dict[str, Any]], ways: list[str]) -> str:
    summaries = {way: _summary(records[way]) for way in ways if way in records}
    some = next((summary for summary in summaries.values() if summary is not None), None)
    cells = [model, "-", "-"]
    if some is not None:
        held = some["parameters"]["bytes_per_device"].values(), some["buffers"]["bytes_per_device"].values()
        cells[1:] = [f"{some['parameters']['elements']:,}", f"{sum(map(sum, held)) / 2**30:.1f} GiB"]
    for way in ways:
        record, summary = records.get(way), summaries.get(way)
        if record is None:
            cells.append("-")
        elif way == "plan" and record["report"]:
            held = sum(device["state_after"] for device in record["report"]["points"][0]["devices"])
            cells.append(f"{held / _CONTEXT / 2**10:.1f} KiB, {record['processor_seconds']:.0f} s")
        elif record["status"] == "exports" and summary is not None:
            cells.append(f"{summary['node_count']:,}, {record['seconds']:.0f} s")
        else:
            cells.append(record["status"])
    reasons = dict.fromkeys(_reason(record) for record in records.values() if record["status"] not in _PASSED)
    return f"| {' | '.join(cells)} | {'; '.join(reasons)} |\n"


def _summary(record: dict[str, Any]) -> dict[str, Any] | None:
    report = record["report"]
    found: dict[str, Any] | None = report["targets"][0]["summary"] if report and "targets" in report else None
    return found


def _reason(record: dict[str, Any]) -> str:
    """Return why a config does not export: a note of its first error or warning, or why it was refused."""
    text = re.sub(r"\S+_config\.json: ?", "", record["reason"].removeprefix("error: "))
    if (found := first_error(record)) and found["notes"]:
        text = f"{found['code']}: {found['notes'][0]}"
    return cell(clipped(" ".join(text.split())))


def main() -> None:
    command, first, *more = sys.argv[1:]
    if command == "zoo":
        sys.stdout.write(zoo(Path(first), more[0]))
        return
    if command == "plan":
        plan(_configs(Path(first)), Path(more[0]))
        return
    pairs = [pair.split("=", 1) for pair in more]
    runs = {
        way: [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        for way, path in pairs
    }
    sys.stdout.write(page(first, runs))


if __name__ == "__main__":
    main()
