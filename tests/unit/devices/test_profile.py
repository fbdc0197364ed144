"""What the shipped profiles say, against facts written down here, and what a bad profile file is told."""

import dataclasses
import pickle
import re
import subprocess
import sys
import tomllib
from importlib import resources

import pytest

from fakexport.devices.profile import (
    PEAK_DTYPES,
    DeviceProfile,
    default_profiles,
    load_profiles,
    profile_named,
    read_profiles,
)


@dataclasses.dataclass(frozen=True)
class Published:
    """What is published about one accelerator.

    Args:
        vendor_name: What the driver prints.
        multiprocessors: Its number of multiprocessors, compute units or cores.
        marketed_gb: Its memory, as it is sold.
        capability: Its compute capability. None if its type has no such thing.
        capacity: The "total capacity" in an out-of-memory message of torch, GiB, as the sources name it.
    """

    vendor_name: str
    multiprocessors: int
    marketed_gb: int
    capability: tuple[int, int] | None = None
    capacity: str | None = None


PUBLISHED = {
    "T4": Published("Tesla T4", 40, 16, capability=(7, 5)),
    "V100": Published("Tesla V100-SXM2-32GB", 80, 32, capability=(7, 0)),
    "A10G": Published("NVIDIA A10G", 80, 24, capability=(8, 6)),
    "L4": Published("NVIDIA L4", 58, 24, capability=(8, 9)),
    "L40S": Published("NVIDIA L40S", 142, 48, capability=(8, 9)),
    "A100-40GB": Published("NVIDIA A100-SXM4-40GB", 108, 40, capability=(8, 0)),
    "A100-80GB": Published("NVIDIA A100-SXM4-80GB", 108, 80, capability=(8, 0), capacity="79.25"),
    "H100": Published("NVIDIA H100 80GB HBM3", 132, 80, capability=(9, 0), capacity="79.19"),
    "H200": Published("NVIDIA H200", 132, 141, capability=(9, 0)),
    "B200": Published("NVIDIA B200", 148, 180, capability=(10, 0)),
    "MI300X": Published("AMD Instinct MI300X", 304, 192, capability=(9, 4)),
    "RTX-3090": Published("NVIDIA GeForce RTX 3090", 82, 24, capability=(8, 6), capacity="23.56"),
    "RTX-4090": Published("NVIDIA GeForce RTX 4090", 128, 24, capability=(8, 9), capacity="23.52"),
    "RTX-5090": Published("NVIDIA GeForce RTX 5090", 170, 32, capability=(12, 0), capacity="31.35"),
    "RTX-6000-Ada": Published("NVIDIA RTX 6000 Ada Generation", 142, 48, capability=(8, 9), capacity="44.43"),
    "RTX-PRO-6000": Published(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, 96, capability=(12, 0), capacity="94.97"
    ),
    "A10": Published("NVIDIA A10", 72, 24, capability=(8, 6), capacity="21.99"),
    "A30": Published("NVIDIA A30", 56, 24, capability=(8, 0), capacity="23.50"),
    "A40": Published("NVIDIA A40", 84, 48, capability=(8, 6), capacity="44.35"),
    "H100-PCIe": Published("NVIDIA H100 PCIe", 114, 80, capability=(9, 0), capacity="79.11"),
    "H100-NVL": Published("NVIDIA H100 NVL", 132, 94, capability=(9, 0), capacity="93.00"),
    "H20": Published("NVIDIA H20", 78, 96, capability=(9, 0), capacity="95.00"),
    "GH200": Published("NVIDIA GH200 480GB", 132, 96, capability=(9, 0), capacity="94.50"),
    "GB200": Published("NVIDIA GB200", 152, 186, capability=(10, 0), capacity="184.31"),
    "Jetson-AGX-Orin": Published("Orin", 16, 64, capability=(8, 7)),
    "MI250X": Published("AMD Instinct MI250X", 110, 64, capability=(9, 0), capacity="63.98"),
    "MI325X": Published("AMD Instinct MI325X", 304, 256, capability=(9, 4), capacity="255.98"),
    "MI355X": Published("AMD Instinct MI355X", 256, 288, capability=(9, 5), capacity="287.98"),
    "xpu": Published("Intel(R) Data Center GPU Max 1550", 64, 64),
    "mps": Published("Apple M2 Ultra", 76, 192),
    "Arc-B580": Published("Intel(R) Arc(TM) B580 Graphics", 20, 12, capacity="11.33"),
    "M3-Max": Published("Apple M3 Max", 40, 128),
    "M4-Max": Published("Apple M4 Max", 40, 128),
}
# Shared memory of a block with opt-in and of a multiprocessor, KiB, and resident threads, by capability of
# NVIDIA GPUs.
CUDA_GUIDE = {
    (7, 0): (96, 96, 2048),
    (7, 5): (64, 64, 1024),
    (8, 0): (163, 164, 2048),
    (8, 6): (99, 100, 1536),
    (8, 9): (99, 100, 1536),
    (9, 0): (227, 228, 2048),
    (10, 0): (227, 228, 2048),
    (8, 7): (163, 164, 1536),
    (12, 0): (99, 100, 1536),
}
ALL_PROFILES = pytest.mark.parametrize("profile", load_profiles().values(), ids=lambda profile: profile.name)
ACCELERATORS = pytest.mark.parametrize(
    "profile",
    [p for p in load_profiles().values() if p.device_type != "cpu"],
    ids=lambda profile: profile.name,
)
MINIMAL = """
[X]
device_type = "cpu"
vendor_name = "x"
[X.sources]
vendor_name = "https://example.org: x"
"""


@ACCELERATORS
def test_every_accelerator_has_its_published_numbers_here(profile: DeviceProfile) -> None:
    names = [name for name in PUBLISHED if profile_named(name) is profile]

    assert len(names) == 1, f"add a row for {profile.name} to PUBLISHED in {__file__}"
    assert (PUBLISHED[names[0]].capability is None) == (profile.device_type != "cuda")


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_a_profile_says_what_is_published(name: str, published: Published) -> None:
    profile = profile_named(name)

    assert profile.vendor_name == published.vendor_name
    assert profile.multiprocessor_count == published.multiprocessors
    assert profile.capability == published.capability


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_the_memory_is_the_marketed_size_less_what_the_driver_keeps(name: str, published: Published) -> None:
    memory_bytes, gigabytes = profile_named(name).memory_bytes, published.marketed_gb

    # Vendors write GB for either 10^9 or 2^30 bytes, and ECC on GDDR6 takes a sixteenth.
    smallest, largest = gigabytes * 2**30 * 15 // 16, gigabytes * 2**30
    if name in {"H200", "B200", "GB200"}:
        smallest, largest = gigabytes * 10**9, gigabytes * 10**9 * 107 // 100

    assert memory_bytes is not None
    assert smallest * 0.97 <= memory_bytes <= largest


@pytest.mark.parametrize(
    ("name", "gibibytes"), [(name, row.capacity) for name, row in PUBLISHED.items() if row.capacity]
)
def test_the_memory_is_the_total_capacity_that_torch_prints(name: str, gibibytes: str) -> None:
    memory_bytes = profile_named(name).memory_bytes

    assert memory_bytes is not None
    assert f"{memory_bytes / 2**30:.2f}" == gibibytes


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        (name, row.capability)
        for name, row in PUBLISHED.items()
        if row.capability and not row.vendor_name.startswith("AMD")
    ],
)
def test_the_limits_of_a_multiprocessor_are_those_of_the_cuda_programming_guide(
    name: str, capability: tuple[int, int]
) -> None:
    profile = profile_named(name)
    assert capability in CUDA_GUIDE, f"add its limits to CUDA_GUIDE in {__file__}"
    optin_kib, per_multiprocessor_kib, threads = CUDA_GUIDE[capability]

    limits = (
        profile.shared_memory_per_block_bytes,
        profile.shared_memory_per_block_optin_bytes,
        profile.shared_memory_per_multiprocessor_bytes,
        profile.registers_per_multiprocessor,
        profile.max_threads_per_multiprocessor,
        profile.warp_size,
    )

    assert limits == (49152, optin_kib * 1024, per_multiprocessor_kib * 1024, 65536, threads, 32)


def test_an_mi300x_is_a_cuda_device_with_wavefronts_of_64() -> None:
    profile = profile_named("MI300X")

    facts = (profile.device_type, profile.warp_size, str(profile.gcn_arch_name).split(":")[0])

    assert facts == ("cuda", 64, "gfx942")


@pytest.mark.parametrize(
    ("name", "dtype", "rate"),
    [
        ("T4", "float16", 65e12),
        ("V100", "float16", 125e12),
        ("A100-40GB", "bfloat16", 312e12),
        ("A100-80GB", "tf32", 156e12),
        ("L4", "float32", 30.3e12),
        ("H100", "bfloat16", 989.4e12),
        ("H100", "float8", 1978.9e12),
        ("H200", "bfloat16", 989.4e12),
        ("B200", "float8", 4.5e15),
        ("MI300X", "bfloat16", 1307.4e12),
        ("RTX-3090", "bfloat16", 71e12),
        ("RTX-4090", "bfloat16", 165.2e12),
        ("RTX-5090", "bfloat16", 209.5e12),
        ("A10", "bfloat16", 125e12),
        ("A30", "bfloat16", 165e12),
        ("A40", "bfloat16", 149.7e12),
        ("H100-PCIe", "bfloat16", 756.5e12),
        ("H20", "bfloat16", 148e12),
        ("GB200", "bfloat16", 2.5e15),
        ("MI250X", "bfloat16", 191.5e12),
        ("MI355X", "float8", 5033.2e12),
        ("Arc-B580", "int8", 233e12),
    ],
)
def test_peak_rates_are_dense(name: str, dtype: str, rate: float) -> None:
    profile = profile_named(name)

    answer = profile.peak_flops[dtype]

    assert answer == rate


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("T4", {"tf32", "bfloat16", "float8"}),
        ("V100", {"tf32", "bfloat16", "float8"}),
        ("A100", {"float8"}),
        ("A10G", {"float8"}),
        ("mps", {"float64", "float8"}),
        ("H100", set()),
    ],
)
def test_a_dtype_without_a_unit_has_no_peak_rate(name: str, dtypes: set[str]) -> None:
    profile = profile_named(name)

    absent = set(PEAK_DTYPES) - set(profile.peak_flops)

    assert dtypes <= absent
    assert dtypes or not absent


@ACCELERATORS
def test_a_narrower_dtype_is_never_slower(profile: DeviceProfile) -> None:
    order = ("float64", "float32", "tf32", "float16", "float8")

    rates = [profile.peak_flops[dtype] for dtype in order if dtype in profile.peak_flops]

    assert rates == sorted(rates)


@pytest.mark.parametrize(
    ("name", "gigabytes_per_s"),
    [
        ("A100-40GB", 1555),
        ("A100-80GB", 2039),
        ("H100", 3350),
        ("H200", 4800),
        ("MI300X", 5300),
        ("RTX-3090", 936),
        ("RTX-4090", 1008),
        ("RTX-5090", 1792),
        ("H100-NVL", 3900),
        ("H20", 4000),
        ("MI325X", 6000),
        ("MI355X", 8000),
        ("Arc-B580", 456),
        ("M4-Max", 546),
        ("mps", 800),
    ],
)
def test_the_memory_bandwidth_is_the_published_one(name: str, gigabytes_per_s: int) -> None:
    profile = profile_named(name)

    answer = profile.memory_bandwidth_bytes_per_s

    assert answer == gigabytes_per_s * 10**9


@ALL_PROFILES
def test_each_value_has_a_source_with_an_address_and_a_wording(profile: DeviceProfile) -> None:
    empty: tuple[object, ...] = (None, {}, ())
    fields = (f.name for f in dataclasses.fields(profile))
    values = {name for name in fields if getattr(profile, name) not in empty}

    unsourced = values - set(profile.sources) - {"name", "aliases", "device_type", "sources"}

    assert not unsourced
    for text in profile.sources.values():
        assert re.fullmatch(r"https://[\w.-]+/\S*: .{5,}", text)


@ALL_PROFILES
def test_the_loaded_values_are_those_of_the_file(profile: DeviceProfile) -> None:
    file = resources.files("fakexport.devices") / "profiles.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))[profile.name]

    loaded = {key: getattr(profile, key) for key in table}

    assert {key: list(v) if isinstance(v, tuple) else v for key, v in loaded.items()} == table


def test_a_host_has_no_size_and_no_speed() -> None:
    host = profile_named("cpu")

    answers = (host.capability, host.memory_bytes, host.multiprocessor_count, host.peak_flops)

    assert answers == (None, None, None, {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H100", "H100-80GB"),
        ("h100-sxm", "H100-80GB"),
        ("A100", "A100-80GB"),
        ("a100-40gb", "A100-40GB"),
        ("V100", "V100-32GB"),
        ("H200-141GB", "H200"),
        ("cuda", "H100-80GB"),
        ("CPU", "cpu"),
        ("xpu", "PVC-1550"),
        ("mps", "M2-Ultra"),
        ("4090", "RTX-4090"),
        ("b580", "Arc-B580"),
        ("h100-pcie", "H100-PCIe"),
    ],
)
def test_aliases_and_bare_types_mean_a_profile_in_any_case(name: str, expected: str) -> None:
    by_name = load_profiles()[expected]

    found = profile_named(name)

    assert found is by_name


def test_each_bare_type_stands_for_a_profile_of_that_type() -> None:
    defaults = default_profiles()

    types = {device_type: profile.device_type for device_type, profile in defaults.items()}

    assert types == {"cpu": "cpu", "cuda": "cuda", "xpu": "xpu", "mps": "mps"}


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("H10O", "H100"), ("A100-4OGB", "A100-40GB"), ("MI30OX", "MI300X"), ("l4s", "L4"), ("H-100", "H100")],
)
def test_a_misspelt_name_is_answered_with_the_nearest(misspelt: str, meant: str) -> None:
    with pytest.raises(ValueError, match="unknown device") as caught:
        profile_named(misspelt)

    message = str(caught.value)

    assert re.search(rf"did you mean [^?]*\b{meant}\b", message)
    assert message.endswith("`fakexport devices` lists them all")
    assert "\n" not in message


def test_a_name_near_nothing_gets_no_suggestion() -> None:
    with pytest.raises(ValueError, match="unknown device") as caught:
        profile_named("no\nsuch device")

    message = str(caught.value)

    assert message == r"unknown device 'no\nsuch device': `fakexport devices` lists them all"


def test_a_profile_can_be_hashed_pickled_and_turned_into_plain_data() -> None:
    profile = profile_named("H100")

    copy = pickle.loads(pickle.dumps(profile))

    assert {profile: 1}[copy] == 1
    assert dataclasses.asdict(copy)["capability"] == (9, 0)


def test_the_shipped_profiles_are_read_only() -> None:
    profiles = load_profiles()

    with pytest.raises(TypeError):
        profiles["X"] = profile_named("H100")  # type: ignore[index]

    assert load_profiles() is profiles


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (('vendor_name = "x"\n', 'vendor_name = "x"\nsm_count = 4\n'), r"\[X\]: unknown field 'sm_count'"),
        (('vendor_name = "x"\n', ""), r"missing field 'vendor_name'"),
        (('"cpu"', '"tpu"'), r"device_type must be one of cpu, cuda, xpu, mps"),
        (('"cpu"', '"cuda"'), r"missing field 'capability'"),
        (('vendor_name = "x"\n', "vendor_name = 3\n"), r"field 'vendor_name' cannot be 3"),
        (
            ('vendor_name = "x"\n', 'vendor_name = "x"\nmemory_bytes = true\n'),
            r"'memory_bytes' cannot be True",
        ),
        (('vendor_name = "x"\n', 'vendor_name = "x"\nmemory_bytes = -1\n'), r"'memory_bytes' cannot be -1"),
        (('vendor_name = "x"\n', 'vendor_name = "x"\nmemory_bytes = 8\n'), r"'memory_bytes' has no source"),
        (("[X.sources]", "peak_flops = {float4 = 1e12}\n[X.sources]"), r"field 'peak_flops' cannot be"),
        (("[X.sources]", "capability = [9]\n[X.sources]"), r"field 'capability' cannot be \[9\]"),
        (
            ("[X.sources]", '[X.sources]\nwarp_size = "https://example.org: 32"'),
            r"source 'warp_size' has no value",
        ),
        (("https://example.org: x", "somebody told me"), r"source 'vendor_name' has no URL"),
        (("[X.sources]\nvendor_name", "sources"), r"field 'sources' cannot be"),
        (("[X]", "Y = 1\n[X]"), r"'Y' is not a table"),
        (("[X]", '[defaults]\ncuda = "X"\n[X]'), r"default 'cuda' = 'X' is not a cuda profile"),
        (("[X]", '[defaults]\ncpu = "Z"\n[X]'), r"default 'cpu' = 'Z' is not a cpu profile"),
        (
            ('vendor_name = "x"\n', 'vendor_name = "x"\naliases = ["CUDA"]\n'),
            r"\[X\]: the name 'CUDA' is taken",
        ),
        (("[X]", "[X"), r"Expected ']'"),
    ],
)
def test_a_bad_profile_file_is_refused_with_its_fault(change: tuple[str, str], fault: str) -> None:
    toml = MINIMAL.replace(*change, 1)

    with pytest.raises(ValueError, match=fault) as caught:
        read_profiles(toml)

    assert "\n" not in str(caught.value)


def test_two_profiles_cannot_share_a_name() -> None:
    second = MINIMAL.replace("[X", "[Y").replace('"x"\n', '"x"\naliases = ["x"]\n', 1)

    with pytest.raises(ValueError, match="the name 'x' is taken") as caught:
        read_profiles(MINIMAL + second)

    assert "[Y]" in str(caught.value)


def test_reading_the_profiles_does_not_import_torch() -> None:
    imports = "import sys; from fakexport.devices import Topology"
    program = f"{imports}; Topology.parse('8xH100'); print('torch' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "False"
