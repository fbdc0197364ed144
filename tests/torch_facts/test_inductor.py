"""AOTInductor behaves as `inductor` and `deploy/aoti` rely on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.exc import InductorError
from torch._inductor.package import package_aoti
from torch._inductor.utils import is_same_tensor
from torch.export import ExportedProgram

from fakexport._torch.emulation.fake_tensors import new_fake_mode, real_to_fake
from fakexport._torch.operators.inductor import (
    AotiPackage,
    compile_graph,
    failed_node,
    generated_calls,
    root_cause,
)
from tests.forked import run_python

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
slow = pytest.mark.slow


class Scaled(nn.Module):
    """Two equally shaped weights, a scalar one, a buffer of the program alone, a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4))
        self.second = nn.Parameter(torch.randn(4))
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("offsets", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        literal = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return x * self.first + self.second * (self.scale * 2) + self.offsets + literal


def exported(module: nn.Module) -> ExportedProgram:
    return torch.export.export(module, (torch.zeros(2, 4),))


def compiled(program: ExportedProgram, folder: Path, *, has_weights: bool) -> Path:
    files = compile_graph(
        program.module(check_guards=False), (torch.empty(0),), {}, folder, has_weights=has_weights
    )
    for file in files:
        if file.name.endswith("_metadata.json"):
            file.write_text(json.dumps({**json.loads(file.read_text()), "ours": "here"}))
    path = folder / "package.pt2"
    package_aoti(str(path), [str(file) for file in files])
    return path


@pytest.fixture(scope="module")
def unbound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(exported(Scaled()), tmp_path_factory.mktemp("unbound"), has_weights=False)


@slow
def test_code_without_weights_asks_for_all_of_them_by_name_and_others_can_be_bound(unbound: Path) -> None:
    other, x = Scaled(), torch.randn(2, 4)
    with torch.no_grad():
        other.scale.fill_(-5.0)
    metadata = torch._inductor.aoti_load_package(str(unbound)).get_metadata()
    package = AotiPackage(unbound)

    # A literal of the program gets a name of Inductor's own, unless it is made a buffer.
    literal = torch.tensor([1.0, 2.0, 3.0, 4.0])
    weights = {**other.state_dict(), "offsets": other.offsets, "_tensor_constant0": literal}
    assert set(package.constant_names) == set(weights)
    package.bind(weights)
    (got,) = package.run([x])

    assert (metadata["ours"], metadata["AOTI_DEVICE_KEY"]) == ("here", "cpu")
    assert torch.allclose(got, other(x), atol=1e-6)


@slow
def test_a_call_of_an_unbound_package_ends_the_process(unbound: Path) -> None:
    code = (
        "import sys, torch; from pathlib import Path\n"
        "from fakexport._torch.operators.inductor import AotiPackage\n"
        "AotiPackage(Path(sys.argv[1])).run([torch.zeros(2, 4)])"
    )

    done = run_python(code, unbound)

    assert done.returncode < 0, "it is refused now: deploy/aoti need not take care any more"


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")
def test_inductor_takes_equally_shaped_fakes_for_one_tensor() -> None:
    mode = new_fake_mode()
    first, second = (real_to_fake(mode, torch.zeros(4), torch.device("cpu")) for _ in range(2))

    are_one = is_same_tensor(first, second)

    assert are_one, "fakes can be compiled now: deploy/aoti/stand_ins.py can go"


def test_the_node_and_the_cause_of_a_failure_are_found() -> None:
    program = exported(Scaled())
    graph = program.graph_module
    fault = OSError("nothing is left")

    class Failing(torch.fx.Interpreter):
        def call_function(self, target, args, kwargs):  # type: ignore[no-untyped-def]
            raise fault

    with pytest.raises(OSError, match="nothing is left") as caught:
        Failing(graph).run(*[node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")])
    wrapped = InductorError(caught.value, None).with_traceback(caught.value.__traceback__)

    node = failed_node(wrapped)

    assert node is next(node for node in graph.graph.nodes if node.op == "call_function")
    assert root_cause(wrapped) is fault


def test_compilers_use_the_folder_and_inductor_keeps_its_cache(tmp_path: Path) -> None:
    """`temporary_files_in` relies on the name of the default cache, and on when torch reads TMPDIR."""
    code = """
import os, sys, tempfile
from pathlib import Path
from fakexport._torch.operators.inductor import temporary_files_in
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir
usual = Path(default_cache_dir())
assert usual.parent == Path(tempfile.gettempdir()), usual
with temporary_files_in(Path(sys.argv[1]), caches=sys.argv[2]):
    assert os.environ["TMPDIR"] == sys.argv[1]
    assert Path(cache_dir()) == Path(sys.argv[2], usual.name), cache_dir()
assert os.environ.get("TMPDIR") != sys.argv[1]
print("as expected")
"""
    ended = run_python(code, tmp_path / "files", tmp_path / "caches")

    assert ended.stdout.strip() == "as expected", ended.stderr


def test_code_is_generated_without_a_compiler() -> None:
    class Wrapped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nanmedian(x @ x.T, dim=-1).values.relu()

    graph = torch.export.export(Wrapped(), (torch.ones(3, 4),)).module(check_guards=False)

    with torch._inductor.config.patch({"cpp.cxx": (None, "/bin/false")}):
        assert generated_calls(graph, (torch.ones(3, 4),), {}) == ("aten.nanmedian.dim",)
