"""Objects of C++ classes, where they can be deployed and where they cannot."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.deploy import CompileFailure
from fakexport.deploy.aoti import compile_aoti, open_aoti
from fakexport.deploy.executorch import compile_executorch
from fakexport.deploy.onnx import compile_onnx
from tests.torchbind import LIBRARY, Adds, fake_classes

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    with fake_classes():
        yield


@pytest.mark.parametrize(
    ("package", "compile_it", "code", "runtime"),
    [
        ("onnxscript", compile_onnx, "FE802", "ONNX"),
        ("executorch", compile_executorch, "FE801", "ExecuTorch"),
    ],
)
def test_a_runtime_without_objects_is_told_at_the_line(
    package: str, compile_it: Callable[..., object], code: str, runtime: str, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    model = Adds()
    program = fe.bind(fe.export(model, (torch.ones(2, 3),)), model.state_dict())
    path = tmp_path / ("model.onnx" if runtime == "ONNX" else "model.pte")

    with pytest.raises(CompileFailure) as caught:
        compile_it(program, path)

    (found,) = caught.value.diagnostics
    assert found.code == code
    assert found.notes == (
        "foo is an object of the C++ class _TorchScriptTesting::_Foo, "
        f"but {runtime} does not support objects",
    )
    assert found.labels[0].span.path.endswith("torchbind.py")
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_package_with_an_object_is_cached_and_takes_a_checkpoint(tmp_path: Path) -> None:
    model, z = Adds(), torch.randn(2, 3)
    program = fe.export(model, (z,))

    first, second = (
        compile_aoti(program, tmp_path / name, cache=tmp_path / "cache")
        for name in ("first.pt2", "second.pt2")
    )
    package = open_aoti(tmp_path / "second.pt2", checkpoint=model.state_dict())

    assert (first.is_cached, second.is_cached) == (False, True)
    (output,) = package({"z": z}).values()
    torch.testing.assert_close(output, model(z), rtol=0, atol=1e-6)
