"""Write the page of a zoo and its JSON.

    python tools/zoo_page.py LIBRARY COMMIT sweep.json RUN.jsonl [AGAIN.jsonl] docs/zoo

LIBRARY is that of `model_zoo.py`, COMMIT the source of fakexport that ran, `sweep.json` is that of
`fakexport sweep-report --zoo`, RUN.jsonl its run, and AGAIN.jsonl the run of checks that were done a second
time. The last argument is the folder.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from model_zoo import part_types

_WIDTH = 110
_MOST_REASONS = 25
_MOST_CHARACTERS = 160

_TITLES = {
    "transformers": """\
# Model types of transformers

Which model types of transformers export at the full size of their default config: every key of
`transformers.CONFIG_MAPPING`, with inputs that fakexport derives.""",
    "diffusers": """\
# Models of diffusers

Which models of diffusers export in the default configuration of their class: every class of models that
diffusers names, an autoencoder as encoder and decoder, with inputs that fakexport derives. Some classes
have no default configuration, or one with which the model does not run.""",
    "timm": """\
# Families of timm

Which families of timm export: the first architecture of each module of `timm.models`, at the size of its
images.""",
}
_HEAD = """\
{title}
A check that was refused, or that did not run, counts as not passed.

**{ran} of {total} models were run; {passed} of these export ({share} %).**{left}

{counts}
{rule}
A check took {seconds} s on average, and {slowest} s at most, on a machine that was busy with other work, and
{median} MiB of memory ({most} MiB at most).

{environments}
{without}- Each check is `fakexport check {source} {options}`.

```
python tools/model_zoo.py {library} H100/static > zoo.yaml
fakexport sweep zoo.yaml -o {library}.jsonl --jobs 2
fakexport sweep-report {library}.jsonl --zoo zoo.yaml -o site/
python tools/zoo_page.py {library} $(git rev-parse --short HEAD) site/sweep.json {library}.jsonl docs/zoo
```

[{library}.json]({library}.json) is `site/sweep.json`, with a line per model
([format](../json.md#fakexport-sweep-report)).{kinds}
"""
_SOURCES = {"transformers": "hf:TYPE", "diffusers": "diffusers:MODEL", "timm": "timm:NAME"}
_WITHOUT = """\
- torchvision and timm are installed next to torch 2.14.1 alone, where types with a backbone of timm ran:
  the other torch has no torchvision.
"""
_KINDS = """ Added are `kind` of each check, `whole` or `part`, and `kinds`,
the counts of each."""
_RULE = """
A part is a type whose config class another config class lists in its `sub_configs`: `clip_text_model` is a
part of `clip`. All other types are whole, also the few that are only ever used inside of another model,
where that model takes any config (`AutoConfig`).
"""
_LEFT = """ \
For the other {} there was no time. They are in the order of a digest of their names, parts of another
model last, so those that ran are a sample."""


def main() -> None:
    """Write the page and its JSON."""
    library, commit = sys.argv[1:3]
    results, *runs, folder = map(Path, sys.argv[3:])
    zoo = json.loads(results.read_text(encoding="utf-8"))
    if library == "transformers":
        zoo = _with_kinds(zoo)
    run, *again = (_records(path) for path in runs)
    sections = [
        _head(zoo, library, commit),
        *(_again(run, each) for each in again),
        _reasons(zoo),
        _failing(run),
        _passing(run),
    ]
    (folder / f"{library}.md").write_text("\n".join(sections), encoding="utf-8")
    (folder / f"{library}.json").write_text(_with_a_line_per_check(zoo), encoding="utf-8")


def _with_kinds(zoo: dict[str, Any]) -> dict[str, Any]:
    """Return the results with which types are a part, and the counts of both kinds."""
    parts = part_types()
    counts: dict[str, Counter[str]] = {"whole": Counter(), "part": Counter()}
    checks = []
    for check in zoo["checks"]:
        kind = "part" if check["source"].removeprefix("hf:") in parts else "whole"
        result = check["results"][0]
        counts[kind][result["status"] if result else "not run"] += 1
        checks.append({"kind": kind, **check})
    return {**zoo, "kinds": {kind: dict(found) for kind, found in counts.items()}, "checks": checks}


def _with_a_line_per_check(zoo: dict[str, Any]) -> str:
    head = json.dumps({name: value for name, value in zoo.items() if name != "checks"}, indent=2)
    checks = ",\n".join(
        json.dumps(check, separators=(",", ":"), ensure_ascii=False) for check in zoo["checks"]
    )
    return head.removesuffix("\n}") + f',\n  "checks": [\n{checks}\n  ]\n}}\n'


def _counts(zoo: dict[str, Any]) -> str:
    if "kinds" not in zoo:
        rows = [f"| {status} | {count} |" for status, count in zoo["runs"][0]["counts"].items() if count]
        return "\n".join(["| status | models |", "|---|---|", *rows, f"| all | {zoo['total']} |"])
    whole, part = zoo["kinds"]["whole"], zoo["kinds"]["part"]
    rows = [
        f"| {status} | {whole.get(status, 0)} | {part.get(status, 0)} | {count} |"
        for status, count in zoo["runs"][0]["counts"].items()
        if count
    ]
    total = f"| all | {sum(whole.values())} | {sum(part.values())} | {zoo['total']} |"
    return "\n".join(["| status | whole types | parts | all |", "|---|---|---|---|", *rows, total])


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _head(zoo: dict[str, Any], library: str, commit: str) -> str:
    counts, total = zoo["runs"][0]["counts"], zoo["total"]
    found = [result for check in zoo["checks"] if (result := check["results"][0]) is not None]
    peaks = sorted(result["peak_bytes"] >> 20 for result in found)
    seconds = [result["seconds"] for result in found]
    return _HEAD.format(
        ran=len(found),
        total=total,
        passed=counts["exports"],
        share=round(100 * counts["exports"] / len(found)),
        left=_LEFT.format(counts["not run"]) if counts["not run"] else "",
        counts=_counts(zoo),
        title=_TITLES[library],
        rule=_RULE if "kinds" in zoo else "",
        kinds=_KINDS if "kinds" in zoo else "",
        library=library,
        source=_SOURCES[library],
        without=_WITHOUT if library == "transformers" else "",
        seconds=round(sum(seconds) / len(found)),
        slowest=round(max(seconds)),
        median=peaks[len(peaks) // 2],
        most=peaks[-1],
        environments="\n".join(_environment(found, commit) for found in zoo["environments"]),
        options=zoo["checks"][0]["options"],
    )


def _environment(found: dict[str, Any], commit: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"- {versions}; {found['machine']}; source of commit {commit}."


def _again(run: list[dict[str, Any]], again: list[dict[str, Any]]) -> str:
    first = {record["command"]: record for record in run}
    other = [each for each in again if _outcome(each) != _outcome(first[each["command"]])]
    told = "All came out with the same status, reason and findings." if not other else "These differ:"
    lines = [f"{len(again)} of the models that ran, drawn at random, were run again. {told}", ""]
    for record in other:
        before = first[record["command"]]
        lines.append(f"- {_type(record)}: {_why(before)}; then {_why(record)}")
    return "\n".join([*lines, ""] if other else lines)


def _outcome(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return what must be the same again: not the words of a fix, which the source may have changed, nor the
    folder of the environment.
    """
    found = [
        (one["code"], one["message"], one["notes"], [label["span"]["line"] for label in one["labels"]])
        for one in (record["report"] or {}).get("diagnostics", [])
    ]
    return record["status"], record["reason"], found


def _reasons(zoo: dict[str, Any]) -> str:
    rows = [
        f"| {found['count']} | {found['status']} | {_cell(_clipped(found['reason']))} |"
        for found in zoo["runs"][0]["reasons"][:_MOST_REASONS]
    ]
    return "\n".join(["## Reasons", "", "| models | status | reason |", "|---|---|---|", *rows, ""])


def _failing(run: list[dict[str, Any]]) -> str:
    rows = [
        f"| {_type(record)} | {record['status']} | {_cell(_why(record))} |"
        for record in sorted(run, key=_type)
        if record["status"] != "exports"
    ]
    head = ["## Models that do not export", "", "| model | status | reason |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _why(record: dict[str, Any]) -> str:
    """Return the reason, with what the first note of the first error says."""
    found = (record["report"] or {}).get("diagnostics", [])
    error = next((each for each in found if each["severity"] == "error"), found[0] if found else None)
    note = " ".join(error["notes"][0].split()) if error and error["notes"] else ""
    return _clipped(f"{record['reason']} ({note})" if note else record["reason"] or record["status"])


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _passing(run: list[dict[str, Any]]) -> str:
    names = sorted(_type(record) for record in run if record["status"] == "exports")
    lines, line = ["## Models that export", ""], ""
    for name in names:
        if line and len(line) + len(name) >= _WIDTH:
            lines.append(f"{line},")
            line = ""
        line = f"{line}, {name}" if line else name
    return "\n".join([*lines, line, ""])


def _type(record: dict[str, Any]) -> str:
    return f"`{record['command'].split()[2].partition(':')[2]}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    main()
