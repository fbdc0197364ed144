"""The examples of the rules about compilers: the failing model gives its rule, the repaired one compiles."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import fakexport as fe
from fakexport.rules import rule

pytestmark = pytest.mark.usefixtures("torchlib_read_once")

FORMS: dict[str, tuple[Any, str, str]] = {
    "FE801": ("executorch", "model.pte", "aten.nanmedian.dim at node aten_nanmedian_dim has no kernel"),
    "FE802": ("onnx", "model.onnx", "aten.median.dim at node median"),
    "FE803": ("aoti", "model.pt2", "the operator is `acme.positives.default`"),
    "FE804": (
        "cpp-project",
        "project",
        "acme.softened.default at node softened is implemented in Python",
    ),
}


def example(source: str, path: Path, form: str) -> tuple[Any, Any, Any]:
    """The bound program of an example, the model, and its inputs."""
    if form == "executorch":
        pytest.importorskip("executorch")
    elif form == "onnx":
        pytest.importorskip("onnxscript")
    elif shutil.which("g++") is None:
        pytest.skip("needs g++")
    path.write_text(source)
    namespace: dict[str, Any] = {"__name__": path.stem}
    exec(compile(source, str(path), "exec"), namespace)
    model, inputs = namespace["factory"]()
    return fe.bind(fe.export(namespace["factory"]), model.state_dict()), model, inputs


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("FE801", marks=pytest.mark.slow),
        pytest.param("FE802", marks=pytest.mark.slow),
        "FE803",
        "FE804",
    ],
)
def test_the_failing_model_gives_the_rule_at_the_marked_line(code: str, tmp_path: Path) -> None:
    form, name, note = FORMS[code]
    source, path = rule(code).failing_model or "", tmp_path / "model_that_fails.py"
    program, *_ = example(source, path, form)

    with pytest.raises(fe.CompileFailure) as raised:
        fe.compile(program, tmp_path / name, to=form)

    (found,) = raised.value.diagnostics
    (marked,) = (number for number, line in enumerate(source.splitlines(), 1) if f"# <- {code}" in line)
    assert found.code == code
    assert found.primary is not None
    assert (found.primary.span.path, found.primary.span.line) == (str(path), marked)
    assert found.notes[0].startswith(note)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("code", ["FE801", "FE802", "FE803"])
def test_the_repaired_model_is_compiled_and_computes_the_same(code: str, tmp_path: Path) -> None:
    form, name, _ = FORMS[code]
    program, model, (x,) = example(rule(code).repaired_model or "", tmp_path / "repaired.py", form)

    made = fe.compile(program, tmp_path / name, to=form)

    assert made.notes == ()
    (found,) = fe.open_program(made.path, trust=True)({"x": x}).values()
    torch.testing.assert_close(found, model(x))
