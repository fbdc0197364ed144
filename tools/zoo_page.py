"""Write the page of a model zoo and its JSON, or update some rows of the page.

    python tools/zoo_page.py LIBRARY COMMIT sweep.json RUN.jsonl [AGAIN.jsonl] docs/zoo
    python tools/zoo_page.py LIBRARY COMMIT --rows sweep.json RUN.jsonl docs/zoo
    python tools/zoo_page.py LIBRARY COMMIT --other OTHER.jsonl docs/zoo
    python tools/zoo_page.py LIBRARY COMMIT --options OPTIONS.jsonl docs/zoo

The last argument is the folder of the page. LIBRARY is an argument of `model_zoo.py`, and COMMIT is the
commit of fakexport that ran. RUN.jsonl is a run of `fakexport sweep`, and `sweep.json` was written from it by
`fakexport sweep-report --zoo`. AGAIN.jsonl is a second run of some of the checks. A check that stops at a
missing package keeps its row on the page.

- `--rows`: the run covers only some checks of the page, and replaces their rows.
- `--other`: OTHER.jsonl is a run of some checks with a different torch, a different target or dynamic sizes.
  It is stored next to the page, and compared with the page whenever the page is written.
- `--options`: OPTIONS.jsonl is a run of models that do not export, with the options that their checks print.
  The page lists the models that export with these options, but does not count them.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_zoo import part_types

_WIDTH = 110
# Kind of the file that stores a run with `--options`.
_OPTIONS = "options"
_MOST_REASONS = 25
_MOST_CHARACTERS = 160
_LONGEST_NOTE = 300

_TITLES = {
    "transformers": """\
# Model types of transformers

This page lists which model types of transformers export at the full size of their default config, with inputs
that fakexport derives. It covers every key of `transformers.CONFIG_MAPPING` except the types in
`WITHOUT_DEFAULT` of `tools/model_zoo.py`: their default config does not work, or only the model that contains
them can compute their inputs.""",
    "diffusers": """\
# Models of diffusers

This page lists which models of diffusers export with the default config of their class and with inputs that
fakexport derives. It covers every model class of diffusers; the encoder and the decoder of an autoencoder are
separate models. Some classes have no default config, or one with which the model does not run.""",
    "timm": """\
# Families of timm

This page lists which families of timm export. A family is a module of `timm.models`, represented by its first
architecture at the image size of that architecture.""",
}
_HEAD = """\
{title}
A check that was refused, or that did not run, counts as not passed.

**{ran} of {total} models were run; {passed} of these export ({share} %).**{left}

{counts}
{rule}
A check took {seconds} s on average and {slowest} s at most. All checks together took {minutes} minutes,
{each} at a time. The median peak memory of a check was {median} MiB, the largest {most} MiB.

{environments}
{commits}
{without}- Each check is `fakexport check {source} {options}`.{otherwise}

```
python tools/model_zoo.py {library} H100/static > zoo.yaml
fakexport sweep zoo.yaml -o {library}.jsonl --jobs {jobs}
fakexport sweep-report {library}.jsonl --zoo zoo.yaml -o site/
python tools/zoo_page.py {library} $(git rev-parse --short HEAD) site/sweep.json {library}.jsonl docs/zoo
```

[{library}.json]({library}.json) is `site/sweep.json`, with a line per model
([format](../json.md#fakexport-sweep-report)).{kinds}
"""
# Number of checks that ran at the same time.
_JOBS = {"transformers": 2, "diffusers": 1, "timm": 2}
_SOURCES = {"transformers": "hf:TYPE", "diffusers": "diffusers:MODEL", "timm": "timm:NAME"}
_WITHOUT = """\
- Only the environment with torch 2.15.0 has torchvision and timm, so types with a timm backbone ran there.
"""
_KINDS = """ In addition, each check has a `kind`
(`whole` or `part`), and `kinds` counts both. A check that fails also has the text of its first finding
(`note`) and, if eager mode fails too, the reason (`eager`). A check that was run again later has its
`commit`."""
_NOTES = """ In addition, a check that fails
has the text of its first finding (`note`) and, if eager mode fails too, the reason (`eager`). A check that
was run again later has its `commit`."""
_RULE = """
A type is a part if the config class of a different type lists the type's config class in its `sub_configs`.
For example, `clip_text_model` is a part of `clip`. All other types are whole, including the few that are used
only inside other models that accept any config (`AutoConfig`).
"""
_LEFT = """ \
There was no time for the other {}. Models run in the order of a digest of their names, parts last, so
the models that ran are a sample."""


def main() -> None:
    """Write the page and its JSON."""
    library, commit, *arguments = sys.argv[1:]
    if arguments[0] in ("--other", "--options"):
        run, folder = map(Path, arguments[1:])
        _keep_other(_records(run), commit, folder, library, "" if arguments[0] == "--other" else _OPTIONS)
        _write(_page_as_it_is(folder / f"{library}.json"), folder, library)
        return
    is_rows = arguments[0] == "--rows"
    results, *runs, folder = map(Path, arguments[is_rows:])
    run, *again = (_records(path) for path in runs)
    zoo = _with_notes(json.loads(results.read_text(encoding="utf-8")), run)
    page = folder / f"{library}.json"
    if is_rows:
        zoo = _replaced(_page_as_it_is(page), zoo, commit)
    else:
        zoo |= {"source": commit, "again": "\n".join(_again(run, each) for each in again)}
        if library == "transformers" and page.exists():
            zoo = _with_kept(zoo, json.loads(page.read_text(encoding="utf-8")))
    if library == "transformers":
        zoo = _with_kinds(zoo)
    page.write_text(_with_a_line_per_check(zoo), encoding="utf-8")
    _write(zoo, folder, library)


def _write(zoo: dict[str, Any], folder: Path, library: str) -> None:
    others = []
    for path in sorted(folder.glob(f"{library}-*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        kind = path.stem.removeprefix(f"{library}-")
        section = _with_options if kind == _OPTIONS else _with_torch if "torch-" in kind else _with_way
        others.append(section(zoo, kept, path.name))
    sections = [
        _head(zoo, library),
        zoo["again"],
        _reasons(zoo),
        _not_in_eager(zoo),
        *others,
        _failing(zoo),
        _passing(zoo),
    ]
    text = "\n".join(section for section in sections if section)
    (folder / f"{library}.md").write_text(text, encoding="utf-8")


def _page_as_it_is(path: Path) -> dict[str, Any]:
    zoo: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "source" not in zoo:
        sys.exit("the page is older than `--rows`, and its JSON lacks what that needs: write all of it")
    return zoo


def _keep_other(run: list[dict[str, Any]], commit: str, folder: Path, library: str, kind: str) -> None:
    """Store the status and reason of each check in a further run, in the JSON file for this kind of run."""
    versions = run[0]["versions"]
    kept = {
        "source": commit,
        "versions": versions,
        "machine": run[0]["machine"],
        "checks": [{name: each[name] for name in ("command", "status", "reason")} for each in run],
    }
    page = json.loads((folder / f"{library}.json").read_text(encoding="utf-8"))
    torch = ".".join(versions["torch"].split(".")[:2])
    known = {check["command"] for check in page["checks"]}
    way = kind or (f"torch-{torch}" if run[0]["command"] in known else "-".join(_way(run[0]["command"])))
    (folder / f"{library}-{way}.json").write_text(_with_a_line_per_check(kept), encoding="utf-8")


def _way(command: str) -> list[str]:
    """Return the target and the sizes of a check, such as `cpu` and `static`."""
    words = shlex.split(command)
    return [
        words[words.index("--target") + 1],
        words[words.index("--dynamic") + 1] if "--dynamic" in words else "static",
    ]


def _outcome_text(result: dict[str, Any]) -> str:
    return cell(clipped(result["reason"] or result["status"]))


def _with_way(zoo: dict[str, Any], other: dict[str, Any], name: str) -> str:
    """Return a section about a run for a different target or with dynamic sizes: results that differ."""
    first = {check["source"]: check for check in _ran_with(zoo, other["versions"]["torch"])}
    sources = [(each["command"].split()[2], each) for each in other["checks"]]
    pairs = [(first[source], each) for source, each in sources if source in first]
    target, sizes = _way(other["checks"][0]["command"])
    columns = [_options_text(checks[0]["command"]) for checks in (zoo["checks"], other["checks"])]
    sample = (
        ""
        if len(pairs) == len(first)
        else ": the first models in the order of a digest of their names, parts last"
    )
    text = (
        f"{len(pairs)} of the models were checked with {columns[1]} as well ([{name}]({name})), with torch "
        f"{other['versions']['torch']} and the source of fakexport of commit {other['source']}{sample}."
    )
    head = "## Dynamic sizes" if sizes != "static" else f"## On the target {target}"
    return _beside(head, text, columns, pairs)


def _with_options(zoo: dict[str, Any], other: dict[str, Any], name: str) -> str:
    """Return a section about the models that export only with an option."""
    failing = {_type(check) for check in zoo["checks"] if _status(check) not in ("exports", None)}
    found = [check for check in other["checks"] if _type(check) in failing and check["status"] == "exports"]
    if not found:
        return ""
    usual = shlex.split(zoo["checks"][0]["options"])
    rows = [
        f"| {_type(check)} | `{cell(shlex.join(_besides(check['command'], usual)))}` |"
        for check in sorted(found, key=_type)
    ]
    text = (
        f"{len(found)} of the models that do not export do so with the options that their checks print "
        f"([{name}]({name})), with torch {other['versions']['torch']} and the source of fakexport of commit "
        f"{other['source']}. They are not counted above. With `--assume`, the program rejects inputs that "
        "contradict the assumption."
    )
    head = ["## Models that export with an option", "", *textwrap.wrap(text, _WIDTH, break_on_hyphens=False)]
    return "\n".join([*head, "", "| model | options |", "|---|---|", *rows, ""])


def _besides(command: str, usual: list[str]) -> list[str]:
    """Return the options of a check that the usual command does not have."""
    words = shlex.split(command)[3:]
    pairs = [words[i : i + 2] for i in range(0, len(words), 2)]
    return [
        word
        for pair in pairs
        if pair not in (usual[i : i + 2] for i in range(0, len(usual), 2))
        for word in pair
    ]


def _options_text(command: str) -> str:
    target, sizes = _way(command)
    return f"`--target {target}" + (f" --dynamic {sizes}`" if sizes != "static" else "`")


def _ran_with(zoo: dict[str, Any], torch: str) -> Iterator[dict[str, Any]]:
    """Yield the checks of the page that ran with this torch. Those that need timm ran with another one."""
    for check in zoo["checks"]:
        result = check["results"][0]
        if result is not None and zoo["environments"][result["environment"]]["versions"]["torch"] == torch:
            yield check


def _with_torch(zoo: dict[str, Any], other: dict[str, Any], name: str) -> str:
    """Return a section about checks that ran with two versions of torch: results that differ."""
    torches = [zoo["environments"][0]["versions"]["torch"], other["versions"]["torch"]]
    first = {check["command"]: check for check in _ran_with(zoo, torches[0])}
    pairs = [(first[each["command"]], each) for each in other["checks"] if each["command"] in first]
    text = (
        f"{len(pairs)} of the models that ran with torch {torches[0]} were run with torch {torches[1]} as "
        f"well ([{name}]({name})), with the source of fakexport of commit {other['source']}. They are a "
        "sample: the first models in the order of a digest of their names."
    )
    return _beside("## Two versions of torch", text, [f"torch {each}" for each in torches], pairs)


def _beside(
    head: str, text: str, columns: list[str], pairs: list[tuple[dict[str, Any], dict[str, Any]]]
) -> str:
    """Return a section: counts by status on the page and in a further run, and the differing checks."""
    counts = [Counter(check["results"][0]["status"] for check, _ in pairs)]
    counts.append(Counter(each["status"] for _, each in pairs))
    differ = [
        (check, each)
        for check, each in pairs
        if (check["results"][0]["status"], check["results"][0]["reason"]) != (each["status"], each["reason"])
    ]
    text += f" For {len(pairs) - len(differ)} of them, the status and the reason are the same in both runs."
    statuses = dict.fromkeys(status for column in counts for status in column)
    rows = [
        f"| {_type(check)} | {_outcome_text(check['results'][0])} | {_outcome_text(each)} |"
        for check, each in sorted(differ, key=lambda pair: _type(pair[0]))
    ]
    lines = [head, "", *textwrap.wrap(text, _WIDTH, break_on_hyphens=False), ""]
    lines += [f"| status | {columns[0]} | {columns[1]} |", "|---|---|---|"]
    lines += [*(f"| {status} | {counts[0][status]} | {counts[1][status]} |" for status in statuses), ""]
    if rows:
        lines += [f"| model | {columns[0]} | {columns[1]} |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _with_notes(zoo: dict[str, Any], run: list[dict[str, Any]]) -> dict[str, Any]:
    """Add the first note of each check, and the reason why eager mode fails too, to the results."""
    records = {record["command"]: record for record in run}
    checks = []
    for check in zoo["checks"]:
        record = records.get(check["command"])
        more = {} if record is None else _said(record)
        checks.append({**check, **{name: value for name, value in more.items() if value}})
    return {**zoo, "checks": checks}


def _said(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the page adds to the status of a check."""
    if record["status"] == "exports":
        return {}
    return {"note": _note(record), "eager": _eager(record)}


def _with_kept(zoo: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return the results. Checks that need a missing package keep their results from the previous page."""
    stopped = {check["command"] for check in zoo["checks"] if check.get("eager") == _NO_PACKAGE}
    rows = [
        check
        for check in before.get("checks", [])
        if check["command"] in stopped and check.get("eager") != _NO_PACKAGE
    ]
    if not rows:
        return zoo
    return _replaced(zoo, {**before, "checks": rows}, f"{before['source']}, with timm")


def _replaced(zoo: dict[str, Any], rows: dict[str, Any], commit: str) -> dict[str, Any]:
    """Return the results of a page in which some checks are replaced by `rows`."""
    environments = list(zoo["environments"])
    changed = {}
    for check in rows["checks"]:
        environment = rows["environments"][check["results"][0]["environment"]]
        if environment not in environments:
            environments.append(environment)
        result = {**check["results"][0], "environment": environments.index(environment)}
        changed[check["command"]] = {**check, "results": [result], "commit": check.get("commit", commit)}
    checks = [changed.pop(check["command"], check) for check in zoo["checks"]]
    if changed:
        sys.exit(f"not on the page: {', '.join(changed)}")
    environments = _used(environments, checks)
    found, counts = Counter[tuple[str, str]](), Counter[str]()
    for check in checks:
        result = check["results"][0]
        counts[result["status"]] += 1
        if result["status"] != "exports":
            found[result["status"], result["reason"].replace(check["source"], "SOURCE")] += 1
    order = list(zoo["runs"][0]["counts"])
    reasons = [
        {"status": status, "reason": reason, "count": count}
        for (status, reason), count in sorted(found.items(), key=lambda each: (-each[1], each[0]))
    ]
    merged = {**zoo["runs"][0], "counts": {status: counts[status] for status in order}, "reasons": reasons}
    return {**zoo, "runs": [merged], "environments": environments, "checks": checks}


def _used(environments: list[Any], checks: list[dict[str, Any]]) -> list[Any]:
    """Return only the environments that results refer to, and renumber these references."""
    results = [result for check in checks if (result := check["results"][0]) is not None]
    used = sorted({result["environment"] for result in results})
    for result in results:
        result["environment"] = used.index(result["environment"])
    return [environments[index] for index in used]


def _with_kinds(zoo: dict[str, Any]) -> dict[str, Any]:
    """Add to the results whether each type is a part of another type, and the counts of both kinds."""
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


def _head(zoo: dict[str, Any], library: str) -> str:
    jobs = _JOBS[library]
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
        kinds=_KINDS if "kinds" in zoo else _NOTES,
        library=library,
        source=_SOURCES[library],
        without=_WITHOUT if library == "transformers" else "",
        seconds=round(sum(seconds) / len(found)),
        slowest=round(max(seconds)),
        minutes=round(sum(result["seconds"] for result in found if not result["environment"]) / 60 / jobs),
        jobs=jobs,
        each={1: "one", 2: "two"}[jobs],
        median=peaks[len(peaks) // 2],
        most=peaks[-1],
        environments="\n".join(map(_environment, zoo["environments"])),
        commits=_commits(zoo),
        options=zoo["checks"][0]["options"],
        otherwise=_in_float32(zoo),
    )


def _in_float32(zoo: dict[str, Any]) -> str:
    """Return a sentence that lists the types that are checked in float32, or "" if there are none."""
    found = sorted(_type(check) for check in zoo["checks"] if "--dtype float32" in check["options"])
    if not found:
        return ""
    text = f"{len(found)} types that eager mode does not run in bfloat16 are checked with `--dtype float32`: "
    return "\n" + textwrap.fill(
        text + ", ".join(found) + ".", _WIDTH, initial_indent="  ", subsequent_indent="  "
    )


def _commits(zoo: dict[str, Any]) -> str:
    """Return a list item with the commits of fakexport that ran."""
    again = Counter(check["commit"] for check in zoo["checks"] if "commit" in check)
    more = "".join(f"; for {count} rows, it is {commit}" for commit, count in again.items())
    lines = textwrap.wrap(f"The source of fakexport is commit {zoo['source']}{more}.", _WIDTH - 2)
    return "\n".join([f"- {lines[0]}", *(f"  {line}" for line in lines[1:])])


def _environment(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"- {versions}; {found['machine']}."


def _again(run: list[dict[str, Any]], again: list[dict[str, Any]]) -> str:
    first = {record["command"]: record for record in run}
    other = [each for each in again if _outcome(each) != _outcome(first[each["command"]])]
    told = "All had the same status, reason and findings as before." if not other else "These differ:"
    lines = [f"{len(again)} of the models that ran, drawn at random, were run again. {told}", ""]
    for record in other:
        before = first[record["command"]]
        lines.append(f"- {_type(record)}: {_told(before)}; then {_told(record)}")
    return "\n".join([*lines, ""] if other else lines)


def _told(record: dict[str, Any]) -> str:
    note = _note(record)
    return clipped(f"{record['reason']} ({note})" if note else record["reason"] or record["status"])


def _outcome(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the parts of a result that must be equal in a second run.

    The text of a fix, which may have changed in the source, and the folder of the environment are excluded.
    """
    found = [
        (one["code"], one["message"], one["notes"], [label["span"]["line"] for label in one["labels"]])
        for one in (record["report"] or {}).get("diagnostics", [])
    ]
    return record["status"], record["reason"], found


def _reasons(zoo: dict[str, Any]) -> str:
    rows = [
        f"| {found['count']} | {found['status']} | {cell(clipped(found['reason']))} |"
        for found in zoo["runs"][0]["reasons"][:_MOST_REASONS]
    ]
    return "\n".join(["## Reasons", "", "| models | status | reason |", "|---|---|---|", *rows, ""])


def _failing(zoo: dict[str, Any]) -> str:
    rows = [
        f"| {_type(check)} | {_status(check)} | {cell(_why(check))} |"
        for check in sorted(zoo["checks"], key=_type)
        if _status(check) not in ("exports", None)
    ]
    head = ["## Models that do not export", "", "| model | status | reason |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _status(check: dict[str, Any]) -> str | None:
    result = check["results"][0]
    return result["status"] if result else None


def _why(check: dict[str, Any]) -> str:
    """Return the reason of a check, with the note of its first finding."""
    reason = check["results"][0]["reason"] or check["results"][0]["status"]
    return clipped(f"{reason} ({check['note']})" if "note" in check else reason)


def _note(record: dict[str, Any]) -> str:
    """Return the first note of the first error, or ""."""
    error = first_error(record)
    return " ".join(error["notes"][0].split())[:_LONGEST_NOTE] if error and error["notes"] else ""


def first_error(record: dict[str, Any]) -> dict[str, Any] | None:
    found = (record["report"] or {}).get("diagnostics", [])
    return next((each for each in found if each["severity"] == "error"), found[0] if found else None)


# Pattern in the output of a check -> why eager mode does not run the model either. The first match counts.
_NO_PACKAGE = "a package is not installed that it needs"
_EAGER = (
    (r"requires the \w+ library|No module named", _NO_PACKAGE),
    (r"(\w+)' own default config cannot build", r"\1 cannot build its default config"),
    (r"Config re(fuses|jects) it|has no default configuration", "it has no default config"),
    (r"(is made|consists) of other models", "it is made of other models, and has no config"),
    (r"has no forward", "it has no `forward`: one calls methods of it, or its parts"),
    (r"no class of transformers accepts", "transformers has no class for it"),
    (r"eager mode fails", "eager mode fails on an image"),
    (r"eager mode raises (it too|the same error)", "eager mode raises the same error"),
    (r"it does not run on its example inputs", "a part of a type that does not run"),
)


def _eager(record: dict[str, Any]) -> str:
    """Return why eager mode does not run a model, according to its check; "" if eager mode may run it."""
    error = first_error(record)
    said = " ".join([record["reason"], *(error["notes"] if error else [])])
    found = ((re.search(pattern, said), reason) for pattern, reason in _EAGER)
    return next((match.expand(reason) for match, reason in found if match), "")


def _not_in_eager(zoo: dict[str, Any]) -> str:
    """Return a table of the models that do not export and that eager mode does not run."""
    failed = [check for check in zoo["checks"] if _status(check) not in ("exports", None)]
    found = Counter(check["eager"] for check in failed if "eager" in check)
    if not found:
        return ""
    whole = sum("eager" in check and check.get("kind") == "whole" for check in failed)
    kinds = f", {whole} of them whole types" if "kinds" in zoo else ""
    text = (
        f"{sum(found.values())} of the {len(failed)} models that do not export do not run in eager mode "
        f"either{kinds}. Each check tests this: it builds the default config without fakexport, and runs "
        "`forward` on the same inputs, in the same dtype, without a trace."
    )
    rows = [f"| {count} | {cell(reason)} |" for reason, count in found.most_common()]
    lines = textwrap.wrap(text, _WIDTH)
    return "\n".join([*lines, "", "| models | why eager mode does not run it |", "|---|---|", *rows, ""])


def clipped(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _passing(zoo: dict[str, Any]) -> str:
    names = sorted(_type(check) for check in zoo["checks"] if _status(check) == "exports")
    lines, line = ["## Models that export", ""], ""
    for name in names:
        if line and len(line) + len(name) >= _WIDTH:
            lines.append(f"{line},")
            line = ""
        line = f"{line}, {name}" if line else name
    return "\n".join([*lines, line, ""])


def _type(record: dict[str, Any]) -> str:
    return f"`{record['command'].split()[2].partition(':')[2]}`"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    main()
