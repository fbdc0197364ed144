"""What the shipped profiles say, against facts written down here."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest

from fakexport.emulation.devices import device_profiles
from fakexport.emulation.devices.profile import PEAK_DTYPES, default_profiles, load_profiles, profile_named


@dataclasses.dataclass(frozen=True)
class Published:
    vendor_name: str
    multiprocessors: int
    marketed_gb: int
    capability: tuple[int, int] | None = None
    capacity: str | None = None  # In an out-of-memory message of torch, GiB, as the sources name it.


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
PROFILES = load_profiles().values()
ACCELERATORS = [profile for profile in PROFILES if profile.device_type != "cpu"]


def test_every_accelerator_has_its_published_numbers_here():
    rows = [profile_named(name).name for name in PUBLISHED]

    assert sorted(rows) == sorted(profile.name for profile in ACCELERATORS), f"see PUBLISHED in {__file__}"


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_a_profile_says_what_is_published(name, published):
    profile = profile_named(name)
    gigabytes, gibibytes = published.marketed_gb, profile.memory_bytes / 2**30
    # Vendors write GB for either 10^9 or 2^30 bytes, and ECC on GDDR6 takes a sixteenth.
    smallest, largest = gigabytes * 2**30 * 15 // 16, gigabytes * 2**30
    if name in {"H200", "B200", "GB200"}:
        smallest, largest = gigabytes * 10**9, gigabytes * 10**9 * 107 // 100

    assert profile.vendor_name == published.vendor_name
    assert profile.multiprocessor_count == published.multiprocessors
    assert profile.capability == published.capability
    assert (profile.capability is None) == (profile.device_type != "cuda")
    assert smallest * 0.97 <= profile.memory_bytes <= largest
    assert published.capacity in (None, f"{gibibytes:.2f}")


@pytest.mark.parametrize("profile", [p for p in ACCELERATORS if p.capability and p.gcn_arch_name is None])
def test_the_limits_of_a_multiprocessor_are_those_of_the_cuda_programming_guide(profile):
    optin_kib, per_multiprocessor_kib, threads = CUDA_GUIDE[profile.capability]

    limits = (
        profile.shared_memory_per_block_bytes,
        profile.shared_memory_per_block_optin_bytes,
        profile.shared_memory_per_multiprocessor_bytes,
        profile.registers_per_multiprocessor,
        profile.max_threads_per_multiprocessor,
        profile.warp_size,
    )

    assert limits == (49152, optin_kib * 1024, per_multiprocessor_kib * 1024, 65536, threads, 32)


def test_an_mi300x_is_a_cuda_device_with_wavefronts_of_64():
    profile = profile_named("MI300X")

    facts = (profile.device_type, profile.warp_size, str(profile.gcn_arch_name).split(":")[0])

    assert facts == ("cuda", 64, "gfx942")


DENSE_TERAFLOPS = """
T4 float16 65, V100 float16 125, A100-40GB bfloat16 312, A100-80GB tf32 156, L4 float32 30.3,
H100 bfloat16 989.4, H100 float8 1978.9, H200 bfloat16 989.4, B200 float8 4500, MI300X bfloat16 1307.4,
RTX-3090 bfloat16 71, RTX-4090 bfloat16 165.2, RTX-5090 bfloat16 209.5, A10 bfloat16 125, A30 bfloat16 165,
A40 bfloat16 149.7, H100-PCIe bfloat16 756.5, H20 bfloat16 148, GB200 bfloat16 2500, MI250X bfloat16 191.5,
MI355X float8 5033.2, Arc-B580 int8 233
"""
GIGABYTES_PER_S = {
    "A100-40GB": 1555, "A100-80GB": 2039, "H100": 3350, "H200": 4800, "MI300X": 5300, "RTX-3090": 936,
    "RTX-4090": 1008, "RTX-5090": 1792, "H100-NVL": 3900, "H20": 4000, "MI325X": 6000, "MI355X": 8000,
    "Arc-B580": 456, "M4-Max": 546, "mps": 800,
}  # fmt: skip


def test_rates_are_dense_and_those_that_are_published():
    for row in DENSE_TERAFLOPS.split(","):
        name, dtype, teraflops = row.split()
        assert profile_named(name).peak_flops[dtype] == pytest.approx(float(teraflops) * 1e12), row
    for name, gigabytes in GIGABYTES_PER_S.items():
        assert profile_named(name).memory_bandwidth_bytes_per_s == gigabytes * 10**9, name


def test_a_dtype_without_a_unit_has_no_peak_rate_and_a_narrower_one_is_never_slower():
    def absent(name):
        return set(PEAK_DTYPES) - set(profile_named(name).peak_flops)

    assert {"tf32", "bfloat16", "float8"} <= absent("T4") & absent("V100")
    assert "float8" in absent("A100") & absent("A10G") & absent("mps")
    assert "float64" in absent("mps")
    assert not absent("H100")
    for profile in ACCELERATORS:
        order = ("float64", "float32", "tf32", "float16", "float8")
        rates = [profile.peak_flops[dtype] for dtype in order if dtype in profile.peak_flops]
        assert rates == sorted(rates), profile.name


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_each_value_has_a_source_with_an_address_and_a_wording(profile):
    fields = (field.name for field in dataclasses.fields(profile))
    values = {name for name in fields if getattr(profile, name) not in (None, {}, ())}
    rates = {f"peak_flops.{dtype}" for dtype in profile.peak_flops}

    assert values - set(profile.sources) <= {"name", "aliases", "device_type", "sources"}
    assert set(profile.sources) <= values | rates
    for text in profile.sources.values():
        assert re.fullmatch(r"https://[\w.-]+/\S*: .{5,}", text)


def test_each_shipped_accelerator_is_as_complete_as_one_of_a_user_has_to_be(tmp_path):
    tables = {}
    for number, profile in enumerate(ACCELERATORS):
        values = {key: value for key, value in dataclasses.asdict(profile).items() if value is not None}
        del values["name"]
        tables[f"X{number}"] = {**values, "aliases": []}
    (tmp_path / "devices.json").write_text(json.dumps(tables))

    with device_profiles(tmp_path / "devices.json") as read:
        assert len(read) == len(ACCELERATORS) > 20


def test_no_two_profiles_share_a_name_and_a_bare_type_stands_for_one_of_its_type():
    spellings = [each.casefold() for p in PROFILES for each in (p.name, *p.aliases)]
    defaults = {device_type: profile.device_type for device_type, profile in default_profiles().items()}

    assert len(spellings) == len(set(spellings))
    assert not set(spellings) & {"cuda", "xpu", "mps"}
    assert defaults == {"cpu": "cpu", "cuda": "cuda", "xpu": "xpu", "mps": "mps"}


def test_a_host_has_no_size_and_no_speed():
    host = profile_named("cpu")

    answers = (host.capability, host.memory_bytes, host.multiprocessor_count, host.peak_flops)

    assert answers == (None, None, None, {})


def test_aliases_and_bare_types_mean_a_profile_in_any_case():
    meant = {"H100": "H100-80GB", "h100-sxm": "H100-80GB", "a100-40gb": "A100-40GB", "V100": "V100-32GB",
             "cuda": "H100-80GB", "CPU": "cpu", "xpu": "PVC-1550", "mps": "M2-Ultra", "b580": "Arc-B580",
             "h100-pcie": "H100-PCIe"}  # fmt: skip

    assert {name: profile_named(name).name for name in meant} == meant


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("H10O", "did you mean H100"),
        ("A100-4OGB", "did you mean A100-40GB"),
        ("MI30OX", "did you mean MI300X"),
        ("no\nsuch device", "`fakexport devices`"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_if_one_is_near(misspelt, meant):
    with pytest.raises(ValueError, match="unknown device") as caught:
        profile_named(misspelt)

    assert str(caught.value).startswith(f"unknown device {misspelt!r}: {meant}")
    assert str(caught.value).endswith("`fakexport devices` lists all devices")


def test_reading_the_profiles_does_not_import_torch():
    imports = "import sys; from fakexport.emulation.devices import Topology"
    program = f"{imports}; Topology.parse('8xH100'); print('torch' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "False"
