"""What a process may ask about its devices, and that a topology answers it from its profiles.

The oracle is stock torch: its signatures, its names, and its own computations on top of the answers.
"""

import inspect
from types import FunctionType

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport.emulation.devices import Topology, profile_named
from fakexport.emulation.devices.emulation import emulate

EIGHT = "8xH100"


@pytest.mark.parametrize(
    ("model", "name", "capability", "has_native_bfloat16"),
    [
        ("T4", "Tesla T4", (7, 5), False),
        ("V100", "Tesla V100-SXM2-32GB", (7, 0), False),
        ("A100-40GB", "NVIDIA A100-SXM4-40GB", (8, 0), True),
        ("H100", "NVIDIA H100 80GB HBM3", (9, 0), True),
        ("B200", "NVIDIA B200", (10, 0), True),
    ],
)
def test_cuda_answers_from_the_profile(model, name, capability, has_native_bfloat16):
    memory_bytes = profile_named(model).memory_bytes

    with emulate(model):
        properties = torch.cuda.get_device_properties(0)

        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_name() == properties.name == name
        assert (
            torch.cuda.get_device_capability("cuda:0") == (properties.major, properties.minor) == capability
        )
        assert torch.cuda.mem_get_info() == (memory_bytes, memory_bytes)
        assert properties.total_memory == memory_bytes
        assert torch.cuda.get_arch_list()[-1] == "sm_120"  # Of the wheel, whatever the device.
        assert torch.cuda.is_bf16_supported()
        assert torch.cuda.is_bf16_supported(including_emulation=False) is has_native_bfloat16
        assert torch.cuda.is_tf32_supported() is (capability >= (8, 0))
        assert torch.version.cuda is not None
        assert torch.version.hip is None


def test_devices_of_one_topology_answer_each_for_itself():
    with emulate(Topology.parse("H100+T4")):
        capabilities = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
        names = [torch.cuda.get_device_name(torch.device("cuda", index)) for index in (0, 1)]

    assert capabilities == [(9, 0), (7, 5)]
    assert names == ["NVIDIA H100 80GB HBM3", "Tesla T4"]


def test_rocm_answers_as_torch_presents_it():
    with emulate("MI300X"):
        properties = torch.cuda.get_device_properties("cuda")

        assert torch.cuda.is_available()
        assert torch.version.hip is not None
        assert torch.version.cuda is None
        assert properties.gcnArchName.startswith("gfx942")
        assert torch.cuda.get_arch_list() == ["gfx942"]
        assert torch.cuda.get_gencode_flags() == ""
        assert not torch.cuda.is_tf32_supported()


def test_xpu_answers_from_the_profile():
    with emulate("2xxpu"):
        assert torch.xpu.is_available()
        assert torch.xpu.device_count() == 2
        assert torch.xpu.get_device_name(1) == "Intel(R) Data Center GPU Max 1550"
        assert torch.xpu.get_device_properties(1).total_memory == profile_named("xpu").memory_bytes
        assert isinstance(torch.xpu.get_device_capability(), dict)
        assert not torch.cuda.is_available()


def test_mps_answers_from_the_profile():
    with emulate("mps"):
        assert torch.mps.is_available()
        assert torch.backends.mps.is_available()
        assert torch.backends.mps.is_built()
        assert torch.backends.mps.is_macos_or_newer(14, 0)
        assert torch.mps.device_count() == 1
        assert torch.mps.recommended_max_memory() == profile_named("mps").memory_bytes
        assert torch.mps.current_allocated_memory() == 0
        assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    ("spec", "device_type", "count"), [(EIGHT, "cuda", 8), ("xpu", "xpu", 1), ("mps", "mps", 1)]
)
def test_the_accelerator_is_the_topologys(spec, device_type, count):
    with emulate(spec):
        assert torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator() == torch.device(device_type)
        assert torch.accelerator.current_accelerator(check_available=True) == torch.device(device_type)
        assert torch.accelerator.device_count() == count
        assert torch.accelerator.current_device_index() == 0
        assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]
        assert torch.get_device_module() is getattr(torch, device_type)
        assert torch.get_device_module(device_type) is getattr(torch, device_type)


def test_a_cpu_topology_has_no_accelerator():
    with emulate("cpu"):
        assert not torch.cuda.is_available()
        assert torch.cuda.device_count() == 0
        assert not torch.cuda.is_bf16_supported()
        assert not torch.xpu.is_available()
        assert not torch.backends.mps.is_available()
        assert not torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator() is None
        assert torch.get_device_module() is torch.cpu
        with pytest.raises(RuntimeError, match="No CUDA devices are available"):
            torch.cuda.get_device_properties(0)
        with pytest.raises(RuntimeError, match="accelerator device when none is available"):
            torch.accelerator.current_device_index()


def test_the_current_device_is_set_and_put_back():
    with emulate(EIGHT):
        torch.cuda.set_device(3)
        seen = [torch.cuda.current_device()]
        with torch.cuda.device(5):
            seen.append(torch.cuda.current_device())
            with torch.cuda.device("cuda:6"), torch.cuda.device(None), torch.cuda.device(-1):
                seen.append(torch.cuda.current_device())
        with pytest.raises(KeyError), torch.cuda.device(1):
            raise KeyError
        with torch.accelerator.device_index(7):
            seen.append(torch.accelerator.current_device_index())
        with FakeTensorMode(), torch.cuda.device_of(torch.empty(1, device="cuda:2")):
            seen.append(torch.cuda.current_device())
        seen.append(torch.cuda.current_device())
        torch.cuda.set_device(-1)
        seen.append(torch.cuda.current_device())

    assert seen == [3, 5, 6, 7, 2, 3, 3]


@pytest.mark.parametrize("index", [1, 99, -1, "cuda:4"])
@pytest.mark.parametrize("question", ["get_device_properties", "get_device_name", "get_device_capability"])
def test_an_index_out_of_range_is_an_assertion_where_torch_asserts(question, index):
    with emulate("H100"), pytest.raises(AssertionError, match=r"^Invalid device id: "):
        getattr(torch.cuda, question)(index)


@pytest.mark.parametrize(
    "question", ["set_device", "mem_get_info", "memory_allocated", "current_stream", "Stream"]
)
def test_an_index_out_of_range_is_a_driver_error_where_the_driver_answers(question):
    with emulate("H100"), pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        getattr(torch.cuda, question)(99)


def test_a_device_of_another_type_is_refused_as_torch_refuses_it():
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu") as stock:
        torch.cuda._utils._get_device_index("cpu")

    with emulate("H100"), pytest.raises(ValueError, match="Expected a cuda device") as ours:
        torch.cuda.get_device_name("cpu")

    assert str(ours.value) == str(stock.value)


def test_memory_is_empty_and_peers_see_each_other():
    with emulate("2xH100"):
        assert torch.cuda.can_device_access_peer(0, 1)
        assert not torch.cuda.can_device_access_peer(1, peer_device=1)
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved(0) == 0
        assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
        assert torch.cuda.memory_stats_as_nested_dict() == {}
        assert torch.accelerator.get_memory_info()[0] == profile_named("H100").memory_bytes
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def test_streams_and_events_work_without_a_queue():
    with emulate("2xH100"):
        stream, event = torch.cuda.Stream("cuda:1"), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            assert torch.cuda.current_device() == 1
            assert torch.cuda.current_stream().device == torch.device("cuda:1")
            event.record()
        stream.wait_event(event)
        stream.wait_stream(torch.cuda.default_stream(1))
        stream.synchronize()
        torch.cuda.synchronize()

        assert isinstance(stream, torch.cuda.Stream)
        assert isinstance(event, torch.cuda.Event)
        assert isinstance(stream.record_event(), torch.cuda.Event)
        assert stream.query()
        assert event.query()
        assert event.elapsed_time(torch.cuda.Event()) == 0.0
        assert torch.cuda.current_device() == 0
        with torch.cuda.stream(None):
            assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("device_type", ["cuda", "xpu", "mps"])
def test_random_state_is_the_hosts(device_type):
    spec = {"cuda": "H100", "xpu": "xpu", "mps": "mps"}[device_type]
    module = getattr(torch, device_type)

    with emulate(spec):
        module.manual_seed(0)
        state = module.get_rng_state()
        module.set_rng_state(state)

    assert torch.equal(state, torch.get_rng_state())


def _replaced() -> list[tuple[str, FunctionType, object]]:
    """Every function of torch that emulation replaces, with its replacement."""
    packages = {"torch.cuda", "torch.xpu", "torch.mps", "torch.backends.mps", "torch.accelerator"}
    stock = {name: dict(vars(__import__("importlib").import_module(name))) for name in packages}
    with emulate("2xH100"):
        return [
            (f"{package}.{name}", before, now)
            for package, names in sorted(stock.items())
            for name, before in sorted(names.items())
            if (now := vars(__import__("importlib").import_module(package)).get(name)) is not before
            and isinstance(before, FunctionType)
        ]


@pytest.mark.parametrize(("name", "before", "now"), _replaced())
def test_an_answer_takes_whatever_torchs_function_takes(name, before, now):
    takes = inspect.signature(now).parameters.values()
    takes_any = {parameter.kind for parameter in takes} >= {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }
    by_position = [p for p in takes if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name for p in takes if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    asked = list(inspect.signature(before).parameters.values())

    named = {p.name for p in asked if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    assert takes_any or (named <= by_name and len(asked) <= len(by_position)), name
