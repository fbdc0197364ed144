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

CAPABILITIES = {
    "T4": (7, 5),
    "V100": (7, 0),
    "A10G": (8, 6),
    "L4": (8, 9),
    "L40S": (8, 9),
    "A100-40GB": (8, 0),
    "A100-80GB": (8, 0),
    "H100": (9, 0),
    "H200": (9, 0),
    "B200": (10, 0),
    "MI300X": (9, 4),
    "RTX-3090": (8, 6),
    "RTX-4090": (8, 9),
    "RTX-5090": (12, 0),
    "RTX-6000-Ada": (8, 9),
    "RTX-PRO-6000": (12, 0),
    "A10": (8, 6),
    "A30": (8, 0),
    "A40": (8, 6),
    "H100-PCIe": (9, 0),
    "H100-NVL": (9, 0),
    "H20": (9, 0),
    "GH200": (9, 0),
    "GB200": (10, 0),
    "Jetson-AGX-Orin": (8, 7),
    "MI250X": (9, 0),
    "MI325X": (9, 4),
    "MI355X": (9, 5),
}
VENDOR_NAMES = {
    "T4": "Tesla T4",
    "V100": "Tesla V100-SXM2-32GB",
    "A10G": "NVIDIA A10G",
    "L4": "NVIDIA L4",
    "L40S": "NVIDIA L40S",
    "A100-40GB": "NVIDIA A100-SXM4-40GB",
    "A100-80GB": "NVIDIA A100-SXM4-80GB",
    "H100": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "B200": "NVIDIA B200",
    "MI300X": "AMD Instinct MI300X",
    "xpu": "Intel(R) Data Center GPU Max 1550",
    "mps": "Apple M2 Ultra",
    "RTX-3090": "NVIDIA GeForce RTX 3090",
    "RTX-4090": "NVIDIA GeForce RTX 4090",
    "RTX-5090": "NVIDIA GeForce RTX 5090",
    "RTX-6000-Ada": "NVIDIA RTX 6000 Ada Generation",
    "RTX-PRO-6000": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "A10": "NVIDIA A10",
    "A30": "NVIDIA A30",
    "A40": "NVIDIA A40",
    "H100-PCIe": "NVIDIA H100 PCIe",
    "H100-NVL": "NVIDIA H100 NVL",
    "H20": "NVIDIA H20",
    "GH200": "NVIDIA GH200 480GB",
    "GB200": "NVIDIA GB200",
    "Jetson-AGX-Orin": "Orin",
    "MI250X": "AMD Instinct MI250X",
    "MI325X": "AMD Instinct MI325X",
    "MI355X": "AMD Instinct MI355X",
    "Arc-B580": "Intel(R) Arc(TM) B580 Graphics",
    "M3-Max": "Apple M3 Max",
    "M4-Max": "Apple M4 Max",
}
MULTIPROCESSORS = {
    "T4": 40,
    "V100": 80,
    "A10G": 80,
    "L4": 58,
    "L40S": 142,
    "A100-40GB": 108,
    "A100-80GB": 108,
    "H100": 132,
    "H200": 132,
    "B200": 148,
    "MI300X": 304,
    "xpu": 64,
    "mps": 76,
    "RTX-3090": 82,
    "RTX-4090": 128,
    "RTX-5090": 170,
    "RTX-6000-Ada": 142,
    "RTX-PRO-6000": 188,
    "A10": 72,
    "A30": 56,
    "A40": 84,
    "H100-PCIe": 114,
    "H100-NVL": 132,
    "H20": 78,
    "GH200": 132,
    "GB200": 152,
    "Jetson-AGX-Orin": 16,
    "MI250X": 110,
    "MI325X": 304,
    "MI355X": 256,
    "Arc-B580": 20,
    "M3-Max": 40,
    "M4-Max": 40,
}
MARKETED_GB = {
    "T4": 16,
    "V100": 32,
    "A10G": 24,
    "L4": 24,
    "L40S": 48,
    "A100-40GB": 40,
    "A100-80GB": 80,
    "H100": 80,
    "H200": 141,
    "B200": 180,
    "MI300X": 192,
    "xpu": 64,
    "mps": 192,
    "RTX-3090": 24,
    "RTX-4090": 24,
    "RTX-5090": 32,
    "RTX-6000-Ada": 48,
    "RTX-PRO-6000": 96,
    "A10": 24,
    "A30": 24,
    "A40": 48,
    "H100-PCIe": 80,
    "H100-NVL": 94,
    "H20": 96,
    "GH200": 96,
    "GB200": 186,
    "Jetson-AGX-Orin": 64,
    "MI250X": 64,
    "MI325X": 256,
    "MI355X": 288,
    "Arc-B580": 12,
    "M3-Max": 128,
    "M4-Max": 128,
}
# The "total capacity" in an out-of-memory message of torch, GiB, as the sources name it.
TOTAL_CAPACITY = {
    "A100-80GB": "79.25",
    "H100": "79.19",
    "RTX-3090": "23.56",
    "RTX-4090": "23.52",
    "RTX-5090": "31.35",
    "RTX-6000-Ada": "44.43",
    "RTX-PRO-6000": "94.97",
    "A10": "21.99",
    "A30": "23.50",
    "A40": "44.35",
    "H100-PCIe": "79.11",
    "H100-NVL": "93.00",
    "H20": "95.00",
    "GH200": "94.50",
    "GB200": "184.31",
    "MI250X": "63.98",
    "MI325X": "255.98",
    "MI355X": "287.98",
    "Arc-B580": "11.33",
}
# Shared memory of a block with opt-in and of a multiprocessor, KiB, and resident threads, by capability.
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


@pytest.mark.parametrize(("name", "capability"), CAPABILITIES.items())
def test_the_compute_capability_is_the_published_one(name: str, capability: tuple[int, int]) -> None:
    profile = profile_named(name)

    answer = profile.capability

    assert answer == capability


@pytest.mark.parametrize(("name", "vendor_name"), VENDOR_NAMES.items())
def test_the_vendor_name_is_what_the_driver_prints(name: str, vendor_name: str) -> None:
    profile = profile_named(name)

    answer = profile.vendor_name

    assert answer == vendor_name


@pytest.mark.parametrize(("name", "count"), MULTIPROCESSORS.items())
def test_the_multiprocessor_count_is_the_published_one(name: str, count: int) -> None:
    profile = profile_named(name)

    answer = profile.multiprocessor_count

    assert answer == count


@pytest.mark.parametrize(("name", "gigabytes"), MARKETED_GB.items())
def test_the_memory_is_the_marketed_size_less_what_the_driver_keeps(name: str, gigabytes: int) -> None:
    memory_bytes = profile_named(name).memory_bytes

    # Vendors write GB for either 10^9 or 2^30 bytes, and ECC on GDDR6 takes a sixteenth.
    smallest, largest = gigabytes * 2**30 * 15 // 16, gigabytes * 2**30
    if name in {"H200", "B200", "GB200"}:
        smallest, largest = gigabytes * 10**9, gigabytes * 10**9 * 107 // 100

    assert memory_bytes is not None
    assert smallest * 0.97 <= memory_bytes <= largest


@pytest.mark.parametrize(("name", "gibibytes"), TOTAL_CAPACITY.items())
def test_the_memory_is_the_total_capacity_that_torch_prints(name: str, gibibytes: str) -> None:
    memory_bytes = profile_named(name).memory_bytes

    assert memory_bytes is not None
    assert f"{memory_bytes / 2**30:.2f}" == gibibytes


@pytest.mark.parametrize("name", [name for name in CAPABILITIES if not name.startswith("MI")])
def test_the_limits_of_a_multiprocessor_are_those_of_the_cuda_programming_guide(name: str) -> None:
    profile = profile_named(name)
    optin_kib, per_multiprocessor_kib, threads = CUDA_GUIDE[CAPABILITIES[name]]

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
