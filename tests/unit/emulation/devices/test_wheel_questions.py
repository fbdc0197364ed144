"""A GPU target answers questions about torch itself as the CUDA wheel does, under whatever name it is asked.

The oracle is the table that tools/wheel_answers.py reads off the CUDA wheel of this version.
"""

from __future__ import annotations

import ast
import functools
import importlib
import tomllib
from pathlib import Path
from types import FunctionType

import pytest
import torch
import torch.backends.cudnn as cudnn_alias
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention
from torch.backends.cuda import is_built as was_built
from torch.backends.cudnn import is_available as has_cudnn
from torch.cuda import device_count, get_device_capability, is_available
from torch.distributed import is_nccl_available
from torch.utils._triton import has_triton

import fakexport as fe
from fakexport._torch.emulation import wheel_answers
from fakexport.emulation.devices.emulation import emulate

TABLE = tomllib.loads(Path(wheel_answers.__file__).with_suffix(".toml").read_text())[
    ".".join(torch.__version__.split(".")[:2])
]
# Torch's functions read these flags, also where they answer for this process: see `wheel_answers.py`.
ASKED = sorted(name for name in TABLE if name != "wheel" and not name.startswith("torch._C._has_"))
ON_CPU_WHEEL = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU wheel cannot know")
pytestmark = ON_CPU_WHEEL


def answer_of(name, capability):
    stored = TABLE[name]
    return ast.literal_eval(stored if isinstance(stored, str) else stored[capability])


def ask(name):
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    return found() if callable(found) else found


@pytest.mark.parametrize(("target", "capability"), [("H100", "9.0"), ("T4", "7.5"), ("B200", "10.0")])
def test_each_answer_is_that_of_the_wheel(target, capability):
    before = {name: ask(name) for name in ASKED if "nccl.version" not in name and "tunable" not in name}

    with emulate(target):
        answers = {name: ask(name) for name in ASKED}

    assert answers == {name: answer_of(name, capability) for name in ASKED}
    assert {name: ask(name) for name in before} == before


SPELLINGS = {
    "imported function": lambda: has_cudnn(),
    "imported module": lambda: cudnn_alias.is_available(),
    "functools.partial": functools.partial(has_cudnn),
    "method of an object": type("Asking", (), {"ask": staticmethod(has_cudnn)})().ask,
    "is_built": lambda: was_built(),
    "is_nccl_available": lambda: is_nccl_available(),
    "is_backend_available": lambda: torch.distributed.is_backend_available("nccl"),
    "has_triton": lambda: has_triton(),
    "is_available": lambda: is_available(),
    "device_count": lambda: device_count() == 1,
    "capability": lambda: is_available() and get_device_capability() == (9, 0),
    "a loop": lambda: all(ask() for ask in (is_available, has_cudnn, was_built)),
    "has_magma": lambda: torch.cuda.has_magma,
    "getattr": lambda: getattr(torch.backends, "cuda").is_built(),  # noqa: B009
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_a_name_that_was_imported_before_answers_the_same(spelling):
    before = spelling()

    with emulate("H100"):
        asked = spelling()

    assert (before, asked, spelling()) == (False, True, False)


@pytest.mark.parametrize(
    ("target", "dtype", "flash", "cudnn"),
    [
        ("H100", torch.float16, True, True),
        ("H100", torch.float32, False, False),
        ("T4", torch.float16, False, False),
    ],
)
def test_an_attention_kernel_can_be_used_where_the_device_has_it(target, dtype, flash, cudnn):
    with emulate(target), FakeTensorMode():
        query = torch.zeros(1, 8, 16, 64, device="cuda", dtype=dtype)
        params = SDPAParams(query, query, query, None, 0.0, False, False)
        here = SDPAParams(*[torch.zeros(1, 8, 16, 64, dtype=dtype)] * 3, None, 0.0, False, False)

        assert can_use_flash_attention(params) is flash
        assert can_use_cudnn_attention(params, debug=True) is cudnn
        assert torch.backends.cuda.can_use_efficient_attention(params)
        assert not can_use_flash_attention(here)


def test_a_question_with_a_tensor_is_answered():
    with emulate("H100"), FakeTensorMode():
        x = torch.zeros(2, device="cuda")

        assert torch.backends.cudnn.is_acceptable(x)
        assert not torch.backends.cudnn.is_acceptable(torch.zeros(2))
        assert torch.cuda.nccl.is_available([x])
        with torch.backends.cudnn.flags(enabled=False):
            assert not torch.backends.cudnn.is_acceptable(x)


def test_an_unknown_answer_of_a_rocm_wheel_raises():
    with emulate("MI300X"):
        assert (torch.version.cuda, was_built(), has_cudnn(), is_nccl_available()) == (None, True, True, True)
        assert torch.cuda.get_arch_list() == ["gfx942"]
        with pytest.raises(RuntimeError, match=r"does not know what torch\.backends\.cudnn\.version\(\)"):
            torch.backends.cudnn.version()


def test_code_of_functions_is_restored():
    functions = {name: value for name, value in vars(torch.cuda).items() if isinstance(value, FunctionType)}
    before = {name: function.__code__ for name, function in functions.items()}

    with emulate("H100"):
        assert functions["is_available"].__code__ is not before["is_available"]

    assert {name: function.__code__ for name, function in functions.items()} == before


def test_cached_questions_of_transformers_are_asked_again():
    utilities = pytest.importorskip("transformers.utils")

    before = utilities.is_torch_cuda_available(), utilities.is_torch_bf16_gpu_available()
    with emulate("H100"):
        asked = utilities.is_torch_cuda_available(), utilities.is_torch_bf16_gpu_available()
    afterwards = utilities.is_torch_cuda_available(), utilities.is_torch_bf16_gpu_available()

    assert (before, asked, afterwards) == ((False, False), (True, True), (False, False))


MODEL = """
import functools
import torch
from torch import nn
from torch.backends.cudnn import is_available as has_cudnn
from beside import HAS_CUDA as SAME

HAS_CUDA = torch.cuda.is_available()
ASK = functools.partial(torch.backends.cuda.is_built)


def decorated(function, found=torch.cuda.is_available()):
    return function if found else lambda self, x: x * 100


class Model(nn.Module):
    has_cudnn = has_cudnn()
    version = torch.version.cuda

    def __init__(self, built=torch.cuda._is_compiled()):
        super().__init__()
        self.built = built
        self.nccl = torch.distributed.is_nccl_available()

    @decorated
    def forward(self, x):
        in_forward = [has_cudnn(), ASK(), torch.backends.cuda.is_flash_attention_available()]
        known = [HAS_CUDA, SAME, self.has_cudnn, self.version is not None, self.built, self.nccl, *in_forward]
        return x * (1 + sum(known)) if HAS_CUDA else x * -(1 + sum(known))


def factory():
    return Model(), (torch.ones(2),)
"""


@pytest.fixture
def model(tmp_path):
    (tmp_path / "beside.py").write_text("import torch\nHAS_CUDA = torch.cuda.is_available()\n")
    path = tmp_path / "asks_at_import.py"
    path.write_text(MODEL)
    return f"{path}:factory"


def factor(program):
    (node,) = (each for each in program.graph.nodes if each.op == "call_function")
    return node.args[1]


def test_a_file_is_imported_with_the_devices_of_the_target(model):
    assert factor(fe.export(model, target="cpu")) == 100
    assert factor(fe.export(model, target="H100")) == 10
    assert factor(fe.export(model)) == 100


def test_each_target_of_a_check_gets_its_own(model):
    report = fe.check(model, target=["H100", "cpu", "T4"])

    found = {verdict.target.name: factor(verdict.program) for verdict in report.verdicts}
    assert found == {"cpu": 100, "H100": 10, "T4": 10}


def test_a_question_without_an_answer_names_its_line(tmp_path):
    path = tmp_path / "asks_rocm.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return x * 2 if torch.backends.cudnn.version() > 1 else x\n"
        "def factory(): return Model(), (torch.ones(2),)\n"
    )

    (found,) = fe.check(f"{path}:factory", target="MI300X").diagnostics

    assert (found.code, found.labels[0].span.line) == ("FE202", 5)


def test_a_file_that_asks_nothing_is_imported_once(tmp_path):
    path = tmp_path / "registers.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "LIBRARY = torch.library.Library('imported_once', 'DEF')\n"
        "LIBRARY.define('twice(Tensor x) -> Tensor')\n"
        "LIBRARY.impl('twice', lambda x: x * 2, 'CompositeImplicitAutograd')\n"
        "class Model(nn.Module):\n    def forward(self, x): return torch.ops.imported_once.twice(x)\n"
        "def factory(): return Model(), (torch.ones(2),)\n"
    )

    report = fe.check(f"{path}:factory", target=["cpu", "H100"])

    assert [verdict.is_exportable for verdict in report.verdicts] == [True, True]
