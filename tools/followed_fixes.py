"""Follow the fixes that failing checks print: `python tools/followed_fixes.py RUN.jsonl -o fixes.jsonl`.

Each model of a sweep that does not export is checked again. What its first finding prints is then done as far
as a program can do it: an option is passed, a setting of the config is set, a line of the library is changed
in memory, and in place of a published config, which a machine without the hub does not get, the small one of
`tests/architectures` is taken. Counted apart: the model then exports, or the same line or another one stops
it. Of a line that is changed, `values` says whether the program of the changed code computes on the CPU what
the unchanged code does in eager mode.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
_TIMEOUT_S = 300
# Settings that a fix names and a default config leaves empty, as published configs have them.
_VALUES: dict[str, Any] = {
    "class_thresholds": [0.5] * 25,
    "num_experts_per_tok": 6,
    "sliding_window": 512,
    "vision_start_token_id": 151652,
}
# Larger models are not computed: their weights would not fit a small machine.
_MOST_PARAMETERS = 600_000_000


def main() -> None:
    """Follow what is printed, write a line for each model, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="JSON lines of `fakexport sweep`")
    parser.add_argument("-o", dest="output", type=Path, required=True, help="goes on where it ends")
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.run.read_text().splitlines()]
    failing = [row["command"].split()[2] for row in rows if row["status"] != "exports"]
    known = asked.output.read_text().splitlines() if asked.output.exists() else []
    done = {json.loads(line)["source"] for line in known}
    import fakexport.checking  # noqa: F401  # loaded once, before the processes fork

    for source in failing:
        if source not in done:
            with asked.output.open("a") as file:
                file.write(json.dumps(followed(source)) + "\n")
    found = [json.loads(line) for line in asked.output.read_text().splitlines()]
    for (kind, outcome), count in sorted(Counter((row["kind"], row["outcome"]) for row in found).items()):
        sys.stdout.write(f"{kind:12} {outcome:20} {count}\n")


def followed(source: str) -> dict[str, Any]:
    """Return what a model's check prints first, the kind of that fix, and what became of following it."""
    before = _apart(_check, source)
    fix = before.get("fix", "")
    kind, change = _way(source, fix, before)
    row = {"source": source, "kind": kind, "fix": fix, "code": before.get("code")}
    if before.get("is_clean"):
        return {**row, "kind": "exports", "outcome": "nothing to fix"}
    if change is None:
        return {**row, "outcome": "not followed"}
    after = _apart(_check, *change)
    is_other = (after.get("code"), after.get("place")) != (before.get("code"), before.get("place"))
    if after.get("code") in ("out of time", "killed"):
        return {**row, "outcome": after["code"]}
    outcome = "exports" if after.get("is_clean") else "another problem" if is_other else "the same problem"
    if outcome == "exports" and kind == "code":
        row["values"] = _apart(_values, source, change[-1]).get("values", "not computed")
    return {**row, "outcome": outcome, "after": after}


def _way(source: str, fix: str, before: dict[str, Any]) -> tuple[str, tuple[Any, ...] | None]:
    """Return the kind of a fix, and the arguments of the check that follows it; None where none can."""
    if fix.startswith("no fix is known"):
        return "none known", None
    if "`--dtype float32`" in fix:
        return "dtype", (source, "float32")
    if "published model" in fix and (small := _small(source)) is not None:
        return "config", (small,)
    if found := re.search(r'set `"?(\w+)"?(?:: "(\w+)")?` in the config', fix):
        value = found[2] or _VALUES.get(found[1])
        return "setting", None if value is None else (_with_setting(source, found[1], value),)
    if "published model" in fix:
        return "config", None
    if specs := re.findall(r"--input '([^']+)'", fix):
        return "inputs", (source, "bfloat16", specs)
    if (edit := _edit(fix, before)) is not None:
        return "code", (source, "bfloat16", (), (before["path"], edit))
    return ("install" if "pip install" in fix else "other"), None


def _small(source: str) -> str | None:
    """Return the source of a small config of a model type, in which no setting contradicts another."""
    from tests.architectures import ARCHITECTURES
    from tests.architectures.architecture import Architecture
    from tests.architectures.overrides import OVERRIDES

    model_type = source.removeprefix("hf:")
    folder = Path(tempfile.mkdtemp(prefix="fakexport-fixes-"))
    for architecture in ARCHITECTURES:
        if str(architecture) == model_type and architecture.is_available:
            return str(architecture.source(folder))
    # A part of another type, which has no class of `transformers.auto` to name.
    if model_type in OVERRIDES:
        return Architecture(model_type, "", is_common=False).source(folder).rstrip(":")
    return None


def _with_setting(source: str, name: str, value: Any) -> str:
    """Return the source of the default config with a setting: where one has it, else in the outermost."""
    from transformers import CONFIG_MAPPING

    model_type = source.removeprefix("hf:")
    settings = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    owners = [each for each in _dictionaries(settings) if name in each] or [settings]
    for owner in owners:
        owner[name] = value
    path = Path(tempfile.mkdtemp(prefix="fakexport-fixes-")) / "config.json"
    path.write_text(json.dumps({**settings, "model_type": model_type}))
    return f"hf:{path}"


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _dictionaries(inner)


def _values(source: str, edit: tuple[str, str]) -> dict[str, Any]:
    """Return whether the program of a changed line computes what the code did before, in float32."""
    import torch

    import fakexport as fe
    from fakexport.sources import resolve

    torch.manual_seed(0)
    made = resolve(source)
    with torch.device("meta"):
        count = sum(each.numel() for each in made.factory().parameters())
    if count > _MOST_PARAMETERS:
        return {"values": "not computed: too large"}
    module = made.factory()
    inputs = made.example_inputs(module, "cpu", None).kwargs
    for value in inputs.values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.normal_()
    with torch.no_grad():
        expected = module(**inputs)
        _exchange(*edit)
        found = fe.bind(fe.export(source, target="cpu"), module.state_dict()).module()(**inputs)
    pairs = zip(
        *(
            torch.utils._pytree.tree_leaves(dict(each) if isinstance(each, dict) else each)
            for each in (expected, found)
        ),
        strict=True,
    )
    is_close = all(
        not isinstance(one, torch.Tensor)
        or (one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True))
        for one, other in pairs
    )
    return {"values": "equal" if is_close else "different"}


def _edit(fix: str, before: dict[str, Any]) -> str | None:
    """Return the text of the file with the marked place changed as the fix says."""
    if "path" not in before or before.get("column") is None:
        return None
    lines = Path(before["path"]).read_text().splitlines(keepends=True)
    line = lines[before["line"] - 1]
    indent = re.match(r"\s*", line)[0]  # type: ignore[index]
    if found := re.search(r"set `(\w+ = (?:True|False))` before", fix):
        line = f"{indent}{found[1]}\n{line}"
    elif (found := re.search(r"write `(True|False)` in its place", fix)) or (
        found := re.search(r"leave the check of its arguments out: `(.+)`$", fix)
    ):
        line = line[: before["column"] - 1] + found[1] + line[before["end_column"] - 1 :]
    elif found := re.search(r"while exporting: `(if .*:)`", fix):
        line = f"{indent}{found[1]}\n"
    elif fix.startswith("remove the condition"):
        line = f"{indent}if True:\n"
    else:
        return None
    return "".join([*lines[: before["line"] - 1], line, *lines[before["line"] :]])


def _check(
    source: str, dtype: str = "bfloat16", inputs: Any = (), edit: tuple[str, str] | None = None
) -> dict[str, Any]:
    import fakexport as fe

    if edit is not None:
        _exchange(*edit)
    try:
        report = fe.check(source, inputs=inputs, target="H100", dtype=dtype)
    except Exception as error:  # an error line has its fix behind the last colon
        return {"code": "refused", "place": str(error)[:200], "fix": str(error).rpartition(": ")[2]}
    findings = sorted(report.diagnostics, key=lambda each: (each.severity != "error", each.code != "FE104"))
    is_clean = all(verdict.is_exportable for verdict in report.verdicts) and report.is_clean
    if is_clean or not findings:
        return {"is_clean": is_clean}
    first = findings[0]
    found = {"code": first.code, "fix": first.fix.message if first.fix else "", "place": str(first.notes[:1])}
    if first.primary is not None:
        span = first.primary.span
        found |= {"path": span.path, "line": span.line, "column": span.column, "end_column": span.end_column}
        found["place"] = f"{span.path}:{span.line}"
    return found


def _exchange(path: str, text: str) -> None:
    """Give the functions of a file, which is imported, the code of another text of it."""
    import importlib

    module = Path(path).resolve().relative_to(_site()).with_suffix("")
    importlib.import_module(".".join(module.parts))
    codes: dict[str, CodeType] = {}
    pending = [compile(text, path, "exec")]
    while pending:
        code = pending.pop()
        codes[code.co_qualname] = code
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
    for function in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
        code = function.__code__
        if code.co_filename == path and code.co_qualname in codes:
            function.__code__ = codes[code.co_qualname]


def _site() -> Path:
    import torch

    return Path(torch.__file__).resolve().parents[1]


def _apart(function: Any, *args: Any) -> dict[str, Any]:
    """Return what a function returns in a forked process, or that it ended without a result."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(function(*args)))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(_TIMEOUT_S) else {"code": "out of time"}
    except EOFError:
        return {"code": "killed"}
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    main()
