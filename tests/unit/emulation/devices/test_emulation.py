"""Virtual devices: entering and leaving, fake tensors on them, and that torch is whole again afterwards."""

import contextvars
import sys
import threading
import types
from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor

from fakexport.emulation.devices import Topology
from fakexport.emulation.devices.emulation import emulate, emulated_topology
from tests.forked import run_python

PACKAGES = (
    "torch.cuda",
    "torch.xpu",
    "torch.mps",
    "torch.accelerator",
    "torch.backends.mps",
    "torch.version",
)
STOCK_ERROR = "Torch not compiled with CUDA enabled"
is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel answers")


def attributes() -> dict[tuple[object, str], object]:
    """`(owner, name) -> object` of all that emulation could touch."""
    modules = [
        m for name, m in sys.modules.items() if name.startswith(PACKAGES) and isinstance(m, types.ModuleType)
    ]
    owners = [
        *modules,
        torch,
        torch.autograd,
        torch.autograd.graph,
        FakeTensorMode,
        FakeTensor,
        fake_tensor,
        proxy_tensor,
    ]
    return {
        (owner, name): value
        for owner in owners
        for name, value in vars(owner).items()
        if not name.startswith("cache_")  # torch counts its own cache's hits there
    }


def changes(before: dict[tuple[object, str], object]) -> list[str]:
    now = attributes()
    changed = [key for key, value in before.items() if now.get(key) is not value]
    owners = {owner for owner, _ in before}
    # torch imports some of its modules on first use, which become attributes.
    modules = {key for key, value in now.items() if isinstance(value, types.ModuleType)}
    added = [key for key in now.keys() - before.keys() - modules if key[0] in owners]
    return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in [*changed, *added]]


def export_on(device: str) -> torch.export.ExportedProgram:
    with FakeTensorMode() as mode:
        model, x = torch.nn.Linear(4, 2, device=device), torch.empty(3, 4, device=device)
    assert mode is not None
    return torch.export.export(model, (x,))


def nothing() -> None:
    """An empty block."""


def failure() -> None:
    raise KeyError


@pytest.mark.parametrize(
    "block",
    [nothing, lambda: export_on(emulated_topology().default_device), failure],
    ids=["empty", "export", "failing"],
)
@pytest.mark.parametrize("spec", ["cpu", "8xH100", "xpu", "mps", "MI300X", "cpu+H100+xpu"])
def test_every_name_of_torch_is_the_original_object_afterwards(spec: str, block: Callable[[], object]):
    export_on("cpu")  # what torch imports and registers on first use is not a change of ours
    before = attributes()

    try:
        with emulate(spec):
            assert spec == "cpu" or changes(before)
            block()
    except KeyError:
        pass

    assert changes(before) == []


def test_a_new_tensor_is_on_the_device_of_the_old_one():
    with emulate("8xH100"), FakeTensorMode():
        x = torch.empty(2, device="cuda:7")
        made = [
            x.new_tensor([1.0]),
            x.new_empty(2),
            torch.zeros_like(x),
            torch.tensor([x.size(0)], device="cuda"),
        ]

        assert [tensor.device.index for tensor in made] == [7, 7, 7, 0]
        assert torch.cuda.current_device() == 0


def test_each_thread_has_its_own_current_device():
    seen = []

    with emulate("2xH100"):
        torch.cuda.set_device(1)
        ask = contextvars.copy_context().run
        thread = threading.Thread(target=ask, args=(lambda: seen.append(torch.cuda.current_device()),))
        thread.start()
        thread.join()
        seen.append(torch.cuda.current_device())

    assert seen == [0, 1]


def test_nested_blocks_answer_for_the_innermost_topology_also_after_a_failure():
    before = attributes()

    with emulate("8xH100"):
        with emulate("T4"), emulate("cpu"), emulate("2xT4") as innermost:
            inner = torch.cuda.device_count(), torch.cuda.memory.mem_get_info()[0] < 20 * 2**30
            assert emulated_topology() is innermost == Topology.parse("2xT4")
        with pytest.raises(KeyError), emulate("T4"), emulate("cpu"):
            failure()
        outer = torch.cuda.device_count(), torch.cuda.get_device_capability(7)

    assert inner == (2, True)
    assert outer == (8, (9, 0))
    assert emulated_topology() is None
    assert changes(before) == []


def test_one_object_may_be_entered_again_and_within_itself_with_the_current_device_of_a_new_block():
    before = attributes()
    emulation = emulate("2xH100")

    for _ in range(2):
        with emulation as outer, emulation as inner:
            assert outer is inner is emulation.topology
            assert torch.cuda.current_device() == 0
            torch.cuda.set_device(1)
        assert changes(before) == []


def test_an_unknown_device_changes_nothing():
    before = attributes()

    with pytest.raises(ValueError, match="H1000"), emulate("H1000"):
        pass

    assert changes(before) == []
    assert emulated_topology() is None


@is_cpu_wheel
def test_a_real_tensor_on_a_virtual_device_fails_as_stock_does():
    program = "import torch; torch.ones(1, device='cuda')"
    stock = run_python(program)
    messages = []

    def note() -> None:
        with pytest.raises(AssertionError) as caught:
            torch.ones(1, device="cuda")
        messages.append(f"AssertionError: {caught.value}")

    note()
    with emulate("H100"):
        note()
        export_on("cuda")
        note()
    export_on("cpu")
    note()

    assert messages == [stock.stderr.strip().splitlines()[-1]] * 4
    assert STOCK_ERROR in messages[0]


@pytest.mark.parametrize(("spec", "device"), [("2xH100", "cuda:1"), ("xpu", "xpu:0"), ("mps", "mps:0")])
def test_fake_tensors_live_on_a_virtual_device(spec: str, device: str):
    with emulate(spec), FakeTensorMode():
        x = torch.empty(4, 4)
        made = [
            x.to(device),
            torch.empty(4, 4, device=device).uniform_(),
            torch.empty(4, 4, device=device).copy_(x),
            torch.randn(4, 4, device=device)[torch.tensor([0, 1], device=device)],
            torch.randn(4, 4, device=device)[1:, ::2],
            torch.nn.Linear(4, 4, device=device).weight,
            torch.nn.functional.conv2d(x.to(device)[None, None], x.to(device)[None, None]),
            torch.tensor([], device=device),
            torch.tensor([1.0, 2.0], device=device) * 2,
            torch.full((2,), 3.0, device=device).to("cpu").to(device),
        ]

    assert [each.device for each in made] == [torch.device(device)] * len(made)


def test_a_device_without_an_index_is_the_first_or_the_current_one():
    with emulate("2xH100+xpu"), FakeTensorMode():
        x = torch.empty(4, 4)
        assert [x.cuda().device.index, x.to("cuda").device.index, x.xpu().device.index] == [0, 0, 0]

        torch.cuda.set_device(1)

        assert x.cuda().device == torch.device("cuda:1")


def test_a_result_that_depends_on_the_device_is_not_remembered_for_another_device():
    def second_output(spec: str) -> torch.Size:
        with emulate(spec), FakeTensorMode():
            q = torch.empty(1, 2, 16, 64, dtype=torch.float16, device="cuda")
            return torch.ops.aten._flash_attention_forward(q, q, q, None, None, 16, 16, 0.0, False, False)[
                3
            ].dtype

    assert second_output("H100") != second_output("MI300X")


@pytest.mark.parametrize(
    ("spec", "device"), [("8xH100", "cuda:0"), ("8xH100", "cuda:7"), ("xpu", "xpu"), ("mps", "mps")]
)
def test_a_backward_pass_runs_on_a_virtual_device(spec: str, device: str):
    with FakeTensorMode():
        on_cpu = gradients("cpu")

    with emulate(spec), FakeTensorMode():
        on_device = gradients(device)

    assert [(g.shape, g.stride(), g.dtype) for g in on_device] == [
        (g.shape, g.stride(), g.dtype) for g in on_cpu
    ]
    assert {g.device.type for g in on_device} == {torch.device(device).type}


def gradients(device: str) -> list[torch.Tensor]:
    """Through both entry points, a hook, several roots and a mixed graph."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, device=device), torch.nn.LayerNorm(4, device=device))
    x = torch.ones(3, 4, device=device, requires_grad=True)
    hooked: list[torch.Tensor] = []
    hidden = model(x)
    hidden.register_hook(hooked.append)
    (hidden * x + torch.ones((), requires_grad=True)).sum().backward()
    y, z = (x * x).sum(), x.sin()
    both = torch.autograd.grad([y, z], [x], [torch.ones_like(y), torch.ones_like(z)])
    return [x.grad, *both, *hooked, *(parameter.grad for parameter in model.parameters())]


@is_cpu_wheel
def test_after_a_backward_pass_torch_still_has_no_accelerator():
    with emulate("H100"), FakeTensorMode():
        gradients("cuda")

    assert torch.accelerator.current_accelerator() is None
    assert torch.autograd.grad((x := torch.ones(2, requires_grad=True)).sum(), x)[0].tolist() == [1.0, 1.0]


def test_an_exception_below_a_device_guard_arrives_as_it_was_raised():
    done = run_python(RAISING_BELOW_A_GUARD)

    assert done.stdout.strip() == "KeyError 'mine'"
    assert done.stderr == ""


RAISING_BELOW_A_GUARD = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from fakexport.emulation.devices import emulate

class Raising(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise KeyError("mine")

with emulate("8xH100"), FakeTensorMode():
    x = torch.empty(2, device="cuda:3")
    try:
        with Raising():
            x.new_tensor([1.0])
    except KeyError as error:
        print("KeyError", error)
"""
