"""Follow the fixes that failing checks print: `python tools/followed_fixes.py RUN.jsonl -o fixes.jsonl`.

Each model of a sweep that does not export is checked again, and the fix of its first finding is applied if a
program can apply it: an option is passed, a config setting is set, or a line of the library is changed in a
copy of its file. If the fix is to use a published config, the small config of `tests/architectures` is used,
because it needs no access to the hub. If the next check stops at a different line, its fix is applied too.
The results distinguish whether the model exports (and after how many steps), still fails at the same line, or
fails at a different line. For changed lines, `values` says whether the program of the changed code computes
the same values on the CPU as the unchanged code in eager mode.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from linecache import getlines
from pathlib import Path
from typing import Any

from fakexport.rules.diagnostics import edited_text, source_text

sys.path.insert(0, str(Path(__file__).parents[1]))
# Limit on processor time, which does not depend on other programs.
_TIMEOUT_S = 300
_MOST_STEPS = 8
# Values from published configs, for settings that a fix names and that a default config leaves empty.
_VALUES: dict[str, Any] = {
    "class_order": list(range(25)),
    "class_thresholds": [0.5] * 25,
    "num_experts_per_tok": 6,
    "sliding_window": 512,
    "vision_start_token_id": 151652,
}
# Dimensions of an input that replaces a computed value: `cu_seqlens` of two samples.
_DIMS = "3"
# The values of larger models are not computed, because their weights would not fit a small machine.
_MOST_PARAMETERS = 600_000_000


def main() -> None:
    """Apply the printed fixes, write a line per model, and print the counts."""
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
    counts = Counter((row["kind"], row["outcome"], len(row.get("steps", ()))) for row in found)
    for (kind, outcome, steps), count in sorted(counts.items()):
        sys.stdout.write(f"{kind:12} {outcome:20} after {steps} {count}\n")


@dataclass(frozen=True)
class _Asked:
    """A model, and the options and code changes of a check.

    Args:
        source: The model.
        dtype: Value of `--dtype`.
        inputs: Values of `--input`.
        assume: Values of `--assume`.
        edits: Path (relative to `site-packages`) and new text of each changed library file.
        refused: Values of `--assume` that the tried inputs violate. The alternative fix is applied instead.
    """

    source: str
    dtype: str = "bfloat16"
    inputs: tuple[str, ...] = ()
    assume: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()


def followed(source: str) -> dict[str, Any]:
    """Return the first finding of a model's check, the kind of its fix, and the result of applying it.

    Fixes of the next checks are applied too, until the model exports or no fix can be applied. If the full
    size takes too long, the small config of the model type is used, and `size` is `small`.
    """
    row = _followed(source, _Asked(source))
    if (
        row["outcome"] == "out of time"
        and row["kind"] in ("code", "assume")
        and (small := _small(source)) is not None
    ):
        again = _followed(source, _Asked(small))
        if again["code"] == row["code"]:
            return {**again, "size": "small"}
    return row


def _followed(source: str, asked: _Asked) -> dict[str, Any]:
    found = _apart(_check, asked)
    row = {"source": source, "code": found.get("code"), "kind": "exports", "fix": found.get("fix", "")}
    if found.get("is_clean"):
        return {**row, "outcome": "nothing to fix"}
    row["kind"], _ = _way(asked, found)
    return _follow(row, asked, found, ())


def _follow(
    row: dict[str, Any], asked: _Asked, found: dict[str, Any], steps: tuple[str, ...]
) -> dict[str, Any]:
    """Return a row with the result of applying the fix of a check, and the fixes of the next checks."""
    kind, change = _way(asked, found)
    if change is None or len(steps) == _MOST_STEPS:
        outcome = "another problem" if steps else "not followed"
        return {**row, "outcome": outcome, "steps": [*steps], "after": found}
    after = _apart(_check, change)
    row = {**row, "steps": [*steps, kind]}
    if after.get("code") in ("out of time", "killed"):
        return {**row, "outcome": after["code"]}
    if after.get("is_clean"):
        row["outcome"] = "exports"
        if change.edits or change.assume:
            row["values"] = _values(row["source"], change)
            is_refused = change.assume and "exported under the assumption" in row["values"]
            if is_refused and kind == "assume":
                refused = replace(asked, refused=(*asked.refused, *change.assume))
                otherwise = _follow(row, refused, found, steps)
                if otherwise["outcome"] == "exports":
                    return otherwise
            if not (is_refused or row["values"].startswith(("equal", "not computed"))):
                row["outcome"] = "exports, computes another thing"
        return row
    if all(after.get(part) == found.get(part) for part in ("code", "place", "fix")):
        return {**row, "outcome": "the same problem", "after": after}
    return _follow(row, change, after, (*steps, kind))


def _way(asked: _Asked, found: dict[str, Any]) -> tuple[str, _Asked | None]:
    """Return the kind of a fix, and the check with the fix applied; None if it cannot be applied."""
    fix = found.get("fix", "")
    if fix.startswith("no fix is known"):
        return "none known", None
    if "`--dtype float32`" in fix:
        return "dtype", replace(asked, dtype="float32")
    if "published model" in fix and asked == _Asked(asked.source) and (small := _small(asked.source)):
        return "config", _Asked(small)
    if setting := re.search(r'set `"?(\w+)"?(?:: "(\w+)")?` in the config', fix):
        value = setting[2] or _VALUES.get(setting[1])
        kind = "config" if fix.startswith("pass the config") else "setting"
        if value is not None:
            edit = _edit(fix, found) if fix.startswith("decorate") else None
            edits = asked.edits if edit is None else (*asked.edits, edit)
            return kind, replace(asked, source=_with_setting(asked.source, setting[1], value), edits=edits)
    if specs := re.findall(r"--input '([^']+)'", fix):
        return "inputs", replace(asked, inputs=tuple(spec.replace("DIMS", _DIMS) for spec in specs))
    if "published model" in fix:
        return "config", None
    if assumed := re.findall(r"`--assume (\S+)`", fix):
        if not set(assumed) & set(asked.refused):
            return "assume", replace(asked, assume=(*asked.assume, *assumed))
        fix = fix.rpartition("; if not, ")[2]
    if (text := _edit(fix, found)) is not None:
        return "code", replace(asked, edits=(*(e for e in asked.edits if e[0] != text[0]), text))
    return ("install" if "pip install" in fix or fix.startswith("install ") else "other"), None


def _small(source: str) -> str | None:
    """Return the source of a small config of a model type with consistent settings."""
    from tests.architectures import ARCHITECTURES
    from tests.architectures.architecture import Architecture
    from tests.architectures.overrides import OVERRIDES

    model_type = source.removeprefix("hf:")
    folder = Path(tempfile.mkdtemp(prefix="fakexport-fixes-"))
    for architecture in ARCHITECTURES:
        if str(architecture) == model_type and architecture.is_available:
            return str(architecture.source(folder))
    # The type is a part of another type, and no auto class of transformers can load it.
    if model_type in OVERRIDES:
        return Architecture(model_type, "", is_common=False).source(folder).rstrip(":")
    return None


def _with_setting(source: str, name: str, value: Any) -> str:
    """Return the source of a config with a new value in each sub-config that has it, or at the top level."""
    from transformers import CONFIG_MAPPING

    path, _, suffix = source.removeprefix("hf:").partition(":")
    given = json.loads(Path(path).read_text()) if path.endswith(".json") else {"model_type": path}
    config = CONFIG_MAPPING[given["model_type"]].from_dict(given)
    settings = json.loads(config.to_json_string(use_diff=False)) | {"model_type": given["model_type"]}
    owners = [each for each in _dictionaries(settings) if name in each] or [settings]
    for owner in owners:
        owner[name] = value
    changed = Path(tempfile.mkdtemp(prefix="fakexport-fixes-")) / "config.json"
    changed.write_text(json.dumps(settings))
    return f"hf:{changed}" + (f":{suffix}" if suffix else "")


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _dictionaries(inner)


def _values(source: str, asked: _Asked) -> str:
    """Return whether the program of the changed code computes the same values as the original code."""
    smaller = [source, *([_small(source)] if _small(source) else [])]
    for each in [asked.source, *smaller] if asked.source.endswith(".json") else smaller:
        changed = replace(asked, source=each, dtype="float32")
        expected = _apart(_outputs, replace(changed, edits=()), False)
        if "values" in expected:
            found = _apart(_outputs, changed, True)
            return _compared(expected["values"], found["values"]) if "values" in found else f"none: {found}"
    return f"not computed: {expected}"


def _outputs(asked: _Asked, is_program: bool) -> dict[str, Any]:
    """Return the outputs of a model for random inputs, in eager mode or from its program, as arrays."""
    import torch

    import fakexport as fe
    from fakexport.models.sources import resolve

    _exchange(asked.edits)
    torch.manual_seed(0)
    made = resolve(asked.source)
    with torch.device("meta"):
        count = sum(each.numel() for each in made.factory().parameters())
    if count > _MOST_PARAMETERS:
        return {"code": "too large"}
    module = made.factory().eval()
    inputs = made.example_inputs(module, "cpu", None).kwargs
    for value in inputs.values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.normal_()
    try:
        with torch.no_grad():
            if is_program:
                program = fe.export(asked.source, target="cpu", assume=asked.assume)
                result = fe.bind(program, module.state_dict()).module()(**inputs)
            else:
                result = module(**inputs)
    except Exception as error:
        return {"code": f"{type(error).__name__}: {error}"[:200]}
    leaves = torch.utils._pytree.tree_leaves(dict(result) if isinstance(result, dict) else result)
    return {"values": [each.float().numpy() for each in leaves if isinstance(each, torch.Tensor)]}


def _compared(expected: list[Any], found: list[Any]) -> str:
    import numpy as np

    is_close = len(expected) == len(found) and all(
        one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
        for one, other in zip(expected, found, strict=True)
    )
    return "equal" if is_close else "different"


def _edit(fix: str, found: dict[str, Any]) -> tuple[str, str] | None:
    """Return the path of a library file, and its text after the fix; None if the fix changes no file."""
    new = re.match(r"decorate `(\w+)` with `@(\w+)` of `([\w.]+)`", fix)
    if new is None or "path" not in found:
        return found.get("edit")
    lines = Path(found["path"]).read_text().splitlines(keepends=True)
    at = next(i for i, each in enumerate(lines) if each.startswith(f"class {new[1]}("))
    lines[at] = f"from {new[3]} import {new[2]}\n@{new[2]}\n{lines[at]}"
    return _inside(found["path"]), "".join(lines)


def _inside(path: str) -> str:
    """Return the path of a library file relative to `site-packages`."""
    return path.rpartition("/site-packages/")[2]


def _check(asked: _Asked) -> dict[str, Any]:
    import fakexport as fe

    try:
        _exchange(asked.edits)
        report = fe.check(
            asked.source, inputs=asked.inputs, assume=asked.assume, target="H100", dtype=asked.dtype
        )
    except Exception as error:  # in a one-line error, the fix follows the last colon
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
        found["place"] = f"{Path(span.path).name}: {source_text(span)}"
    changes = first.fix.changes if first.fix else ()
    for edits in [change.edits for change in changes if change.edits][:1]:
        path = edits[0].path
        found["edit"] = _inside(path), edited_text(getlines(path), edits)
    return found


def _exchange(edits: Iterable[tuple[str, str]]) -> None:
    """Import library modules from the changed texts of their files."""
    import importlib
    import importlib.util

    for path, text in edits:
        name = path.removesuffix(".py").replace("/", ".")
        if name in sys.modules:
            raise RuntimeError(f"{name} is imported before it can be changed")
        package, _, last = name.rpartition(".")
        changed = Path(tempfile.mkdtemp(prefix="fakexport-fixes-")) / "site-packages" / path
        changed.parent.mkdir(parents=True)
        changed.write_text(text)
        specification = importlib.util.spec_from_file_location(name, changed)
        module = importlib.util.module_from_spec(specification)  # type: ignore[arg-type]
        parent = importlib.import_module(package)
        sys.modules[name] = module
        specification.loader.exec_module(module)  # type: ignore[union-attr]
        setattr(parent, last, module)


def _apart(function: Any, *args: Any) -> dict[str, Any]:
    """Call a function in a forked process. Return its result, or how the process ended without a result."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (_TIMEOUT_S, _TIMEOUT_S + 10))
        sender.send(function(*args))

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
    except EOFError:
        process.join()
        return {"code": "out of time" if process.exitcode == -signal.SIGXCPU else "killed"}
    process.kill()
    process.join()
    return found


if __name__ == "__main__":
    main()
