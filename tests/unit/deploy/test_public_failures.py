"""Failures that people reported to the projects of runtimes: fakexport answers no, at the line, with a fix.

The models and their fixes are in public_failures.toml. The real conversion of each model fails too; the model
that follows the printed fix is taken, really converted, and returns the values of eager mode.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fakexport as fe
from benchmarks.runtime_answers import TAKEN, Model, difference_from_eager, really_run
from fakexport.deploy.coverage.tensorrt import table
from fakexport.report.diagnose.forward_repairs import REPAIRS
from tests.runtime_packages import QUIET, needs

pytestmark = [
    pytest.mark.usefixtures("torchlib_read_once"),
    *QUIET,
]

CASES: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("public_failures.toml").read_text())[
    "case"
]
PAGE = Path(__file__).parents[3] / "docs" / "runtimes.md"
ASKED = ("onnx", "executorch:xnnpack", "coreml", "tensorrt", "aoti", "litert")
_SAMPLE = 1  # So many cases of each runtime run in CI.
_SOURCE = """\
import torch
{prelude}

class Model(torch.nn.Module):
    def forward(self, {names}):
        return {expression}


def factory():
    torch.manual_seed(0)
    return Model(), (), {{{inputs}}}
"""


def pairs(key: str) -> list[Any]:
    """Return each runtime with each of its cases. Only the first ones are in CI."""
    found = []
    for runtime in ASKED:
        cases = [case for case in CASES if runtime in case.get(key, {})]
        for index, case in enumerate(cases):
            is_chosen = key == "reports" and index < _SAMPLE
            marks = (pytest.mark.slow,) if is_chosen else (pytest.mark.exhaustive,)
            found.append(pytest.param(runtime, case, marks=marks, id=f"{runtime}-{case['name']}"))
    return found


def factory_of(case: dict[str, Any], key: str, folder: Path) -> tuple[Any, Path]:
    """Write the model of a case as a file. Return its factory and the file."""
    inputs = case.get(f"{key}_inputs", case["inputs"])
    path = folder / f"{key}_model.py"
    path.write_text(
        _SOURCE.format(
            prelude=case.get("prelude", ""),
            names=", ".join(inputs),
            expression=case[key],
            inputs=", ".join(f"'{name}': {value}" for name, value in inputs.items()),
        )
    )
    namespace: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    return namespace["factory"], path


def model_of(factory: Any) -> Model:
    module, _, inputs = factory()
    program = fe.export(factory)
    return Model(program, fe.bind(program, {}), inputs, [module(**inputs)])


def converts(model: Model, runtime: str, folder: Path) -> str:
    """Return "" if a model is really converted and returns the values of eager mode, otherwise why not."""
    with warnings.catch_warnings(action="ignore"):  # Converters warn about their own code.
        try:
            outputs = really_run(model, runtime, folder)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "" if outputs is None else difference_from_eager(outputs, model.expected)


@pytest.mark.parametrize(("runtime", "case"), pairs("reports"))
def test_a_public_failure_is_refused_and_its_fix_converts(
    runtime: str, case: dict[str, Any], tmp_path: Path
) -> None:
    needs(runtime)
    factory, path = factory_of(case, "failing", tmp_path)
    failing = model_of(factory)

    answer = fe.runtime_verdict(failing.program, runtime)

    _, operator = case["reports"][runtime]
    if runtime == "tensorrt":  # Nothing can be converted here: a table answers.
        assert (answer.result, answer.versions) == ("partly", f"torch-tensorrt {table()['version']}")
        fallback = next(each for each in answer.fallbacks if each.operator == operator)
        span, fix = fallback.span, fallback.fix
    else:
        assert answer.result == "refused"
        assert converts(failing, runtime, tmp_path)
        found = next(each for each in answer.diagnostics if operator in " ".join(each.notes))
        span = None if found.primary is None else found.primary.span
        fix = None if found.fix is None else found.fix.message
    assert span is not None
    assert span.path == str(path)
    assert path.read_text().splitlines()[span.line - 1].strip() == f"return {case['failing']}"
    is_known = fix in {entry["fix"] for entry in entries(runtime)}
    assert is_known == ("fixed" in case), fix
    if fix is not None and is_known:
        follow(case, runtime, fix, failing, tmp_path)


def follow(case: dict[str, Any], runtime: str, fix: str, failing: Model, folder: Path) -> None:
    """Check the model that follows a fix: it contains code of the fix, and the runtime takes it."""
    code = [each for each in re.findall("`(.+?)`", fix) if each != "forward"]
    fixed = model_of(factory_of(case, "fixed", folder)[0])
    answer = fe.runtime_verdict(fixed.program, runtime)

    assert not code or any(each in f"{case.get('prelude')} {case['fixed']}" for each in code)
    assert answer.result in (("taken",) if runtime == "tensorrt" else TAKEN), answer
    assert runtime == "tensorrt" or not converts(fixed, runtime, folder)
    for result, expected in zip(fixed.expected, failing.expected, strict=True):
        if case.get("approximate"):
            assert result.shape == expected.shape
        else:
            torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(("runtime", "case"), pairs("now_taken"))
def test_a_public_failure_of_older_versions_is_taken(
    runtime: str, case: dict[str, Any], tmp_path: Path
) -> None:
    needs(runtime)
    model = model_of(factory_of(case, "failing", tmp_path)[0])

    answer = fe.runtime_verdict(model.program, runtime)

    assert answer.result in (("taken",) if runtime == "tensorrt" else TAKEN), answer
    assert runtime == "tensorrt" or not converts(model, runtime, tmp_path)


def entries(runtime: str) -> list[dict[str, Any]]:
    """The fixes for operators of a runtime."""
    name = runtime.partition(":")[0]  # The backends of ExecuTorch have the same fixes.
    return [entry for entry in REPAIRS["unsupported"] if name in entry["runtimes"]]


def test_each_printed_fix_is_followed_by_a_case() -> None:
    for runtime in ASKED:
        cases = [case for case in CASES if "fixed" in case and runtime in case.get("reports", {})]
        texts = [f"{case['reports'][runtime][1]}: {case.get('reason')}" for case in cases]

        for entry in entries(runtime):
            assert any(re.search(entry["error"], text) for text in texts), (runtime, entry)


def test_the_page_lists_the_public_failures() -> None:
    lines = ["| runtime | still refused | taken in these versions |", "|---|---|---|"]
    for runtime in ASKED:
        cells = [
            ", ".join(
                f"{case['name']} ([{name}]({link(name)}))"
                for case in CASES
                if (report := case.get(key, {}).get(runtime)) and (name := report_of(report))
            )
            for key in ("reports", "now_taken")
        ]
        lines.append(f"| `{runtime}` | {' | '.join(cells)} |")

    assert "\n".join(lines) in PAGE.read_text(encoding="utf-8"), "\n".join(lines)


def report_of(value: Any) -> str:
    """The report in a value of `reports` or of `now_taken`."""
    return str(value[0] if isinstance(value, list) else value)


def link(report: str) -> str:
    repository, _, number = report.partition("#")
    return f"https://github.com/{repository}/issues/{number}"
