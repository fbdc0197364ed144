"""What stock torch answers about its devices, and the names that emulation replaces."""

import inspect
import warnings

import pytest
import torch

import fakexport as fe
from fakexport._torch.emulation import device_queries, query_patches, virtual_streams
from tests.torch_facts.stock_torch import run_stock

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel answers")

NAMES = {
    torch.cuda: """is_available is_initialized init _lazy_init _lazy_call device_count current_device
        set_device _exchange_device _maybe_exchange_device get_device_name get_device_capability
        get_device_properties can_device_access_peer mem_get_info memory_allocated max_memory_allocated
        memory_reserved max_memory_reserved memory_stats empty_cache synchronize is_bf16_supported
        is_tf32_supported get_arch_list get_gencode_flags current_stream default_stream set_stream stream
        Stream Event manual_seed manual_seed_all get_rng_state set_rng_state is_current_stream_capturing""",
    torch.xpu: """is_available device_count current_device set_device get_device_name get_device_capability
        get_device_properties mem_get_info synchronize current_stream Stream Event is_bf16_supported""",
    torch.mps: "is_available device_count synchronize Event recommended_max_memory",
    torch.backends.mps: "is_available is_built is_macos_or_newer",
    torch.accelerator: "is_available device_count current_accelerator device_index set_stream",
}


@pytest.mark.parametrize("owner", NAMES, ids=lambda module: module.__name__)
def test_torch_has_the_names_that_we_answer(owner):
    patches = query_patches.query_patches({})
    replaced = {name for (o, name) in patches._replacements if o is owner}

    assert set(NAMES[owner].split()) <= replaced


def test_every_public_name_of_the_accelerator_module_is_answered():
    functions = {name for name in torch.accelerator.__all__ if callable(getattr(torch.accelerator, name))}
    answered = {name for name in dir(query_patches.AcceleratorQueries(None)) if not name.startswith("_")}

    # A CUDA graph records kernels: there are none.
    assert functions - answered <= {"Graph"}


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        (torch.cuda.Stream, virtual_streams.VirtualStream),
        (torch.xpu.Stream, virtual_streams.VirtualStream),
        (torch.Stream, virtual_streams.VirtualStream),
        (torch.mps.Event, virtual_streams.VirtualEvent),
        (torch.cuda.Event, virtual_streams.VirtualEvent),
    ],
)
def test_streams_and_events_have_the_methods_of_torchs(stock, ours):
    of_native_code = {"from_ipc_handle", "ipc_handle", "native_handle", "device_type", "is_capturing"}
    public = {name for name in dir(stock) if not name.startswith("_")} - of_native_code

    assert public - set(dir(ours)) <= {"device", "stream_id"}  # Those two are set in `__init__`.


@is_cpu_wheel
def test_stock_cannot_answer_for_a_device_it_was_not_built_for():
    ended = run_stock("torch.cuda.get_device_capability()")
    assert ended.stderr.strip().endswith("AssertionError: Torch not compiled with CUDA enabled")

    ended = run_stock("torch.cuda._lazy_init = lambda: exit(7)\ntorch.ones(1, device='cuda')")
    assert ended.returncode == 7


def test_get_device_module_is_a_cached_function():
    assert torch.get_device_module.__wrapped__ is not None
    assert torch.get_device_module("cpu") is torch.cpu


@pytest.mark.parametrize("device_type", ["cuda", "xpu"])
def test_stock_asks_whether_it_is_initialised_before_it_initialises(device_type):
    module, is_initialized, initialise = device_queries._STOCK_INITIALISATION[device_type]

    assert initialise is module._lazy_init
    assert is_initialized.__code__ is module.is_initialized.__code__
    assert "is_initialized()" in inspect.getsource(initialise)


@pytest.mark.parametrize(("package", "target"), [(torch.mps, "M2-Ultra"), (torch.cuda, "H100")])
def test_a_context_manager_that_was_imported_before_answers(package, target):
    """A generator whose code is replaced: Python 3.13 warns, and `contextmanager` needs a generator."""
    managers = [value for name, value in vars(package).items() if name in ("stream", "device")]
    with warnings.catch_warnings(action="error"), fe.emulate(target):
        for manager in managers:
            with manager(None):  # None: no change.
                pass
