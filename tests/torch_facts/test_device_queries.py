"""What stock torch answers about its devices, and the names that emulation replaces."""

import inspect

import pytest
import torch

from fakexport._torch import accelerator_queries, device_queries, query_patches, virtual_streams
from fakexport._torch.active_modes import active_fake_mode
from tests.torch_facts.stock_torch import run_stock

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel answers")

CUDA_NAMES = [
    "is_available",
    "is_initialized",
    "init",
    "_lazy_init",
    "_lazy_call",
    "device_count",
    "current_device",
    "set_device",
    "_exchange_device",
    "_maybe_exchange_device",
    "get_device_name",
    "get_device_capability",
    "get_device_properties",
    "can_device_access_peer",
    "mem_get_info",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "empty_cache",
    "synchronize",
    "is_bf16_supported",
    "is_tf32_supported",
    "get_arch_list",
    "get_gencode_flags",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "Stream",
    "Event",
    "manual_seed",
    "manual_seed_all",
    "get_rng_state",
    "set_rng_state",
    "is_current_stream_capturing",
]
XPU_NAMES = [
    "is_available",
    "device_count",
    "current_device",
    "set_device",
    "get_device_name",
    "get_device_capability",
    "get_device_properties",
    "mem_get_info",
    "synchronize",
    "current_stream",
    "Stream",
    "Event",
    "is_bf16_supported",
]


def replaced(owner: object) -> set[str]:
    patches = query_patches.query_patches({})
    return {name for (o, name) in patches._replacements if o is owner}


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (torch.cuda, CUDA_NAMES),
        (torch.xpu, XPU_NAMES),
        (torch.mps, ["is_available", "device_count", "synchronize", "Event", "recommended_max_memory"]),
        (torch.backends.mps, ["is_available", "is_built", "is_macos_or_newer"]),
        (
            torch.accelerator,
            ["is_available", "device_count", "current_accelerator", "device_index", "set_stream"],
        ),
    ],
    ids=["cuda", "xpu", "mps", "backends.mps", "accelerator"],
)
def test_torch_has_the_names_that_we_answer(owner, names):
    assert set(names) <= replaced(owner)


def test_every_public_name_of_the_accelerator_module_is_answered():
    functions = {name for name in torch.accelerator.__all__ if callable(getattr(torch.accelerator, name))}
    answered = {name for name in dir(accelerator_queries.AcceleratorQueries) if not name.startswith("_")}

    # A CUDA graph records kernels: there are none.
    assert functions - answered <= {"Graph"}


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        (torch.cuda.Stream, virtual_streams.VirtualStream),
        (torch.xpu.Stream, virtual_streams.VirtualStream),
        (torch.mps.Event, virtual_streams.VirtualEvent),
        (torch.cuda.Event, virtual_streams.VirtualEvent),
        (torch.Stream, virtual_streams.VirtualStream),
    ],
)
def test_streams_and_events_have_the_methods_of_torchs(stock, ours):
    between_processes_or_native = {
        "from_ipc_handle",
        "ipc_handle",
        "native_handle",
        "device_type",
        "is_capturing",
    }
    public = {name for name in dir(stock) if not name.startswith("_")} - between_processes_or_native

    missing = public - set(dir(ours)) - {"device", "stream_id"}  # those two are set in `__init__`

    assert missing == set()


@is_cpu_wheel
def test_stock_cannot_answer_for_a_device_it_was_not_built_for():
    ended = run_stock("torch.cuda.get_device_capability()")

    assert ended.error.strip().endswith("AssertionError: Torch not compiled with CUDA enabled")


@is_cpu_wheel
def test_a_first_real_tensor_is_refused_by_lazy_initialisation():
    ended = run_stock("torch.cuda._lazy_init = lambda: exit(7)\ntorch.ones(1, device='cuda')")

    assert ended.code == 7


def test_get_device_module_is_a_cached_function_that_asks_for_the_accelerator():
    assert torch.get_device_module.__wrapped__ is not None
    assert torch.get_device_module("cpu") is torch.cpu


def test_torch_answers_an_index_out_of_range_with_this_type():
    assert issubclass(torch.AcceleratorError, RuntimeError)
    assert str(torch.AcceleratorError("invalid device ordinal")) == "invalid device ordinal"


def test_the_active_fake_mode_is_the_dispatchers():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        inside = active_fake_mode()

    assert inside is mode
    assert active_fake_mode() is None


@pytest.mark.parametrize("device_type", ["cuda", "xpu"])
def test_stock_asks_whether_it_is_initialised_before_it_initialises(device_type):
    module, is_initialized, initialise = device_queries._STOCK_INITIALISATION[device_type]

    assert initialise is module._lazy_init
    assert is_initialized.__code__ is module.is_initialized.__code__
    assert "is_initialized()" in inspect.getsource(initialise)
