"""How a topology is read, what it answers, and what a bad one is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakexport.emulation.devices.profile import default_profiles, load_profiles, profile_named
from fakexport.emulation.devices.topology import MAX_DEVICES, Topology, VirtualDevice

SPELLINGS = sorted({spelling for p in load_profiles().values() for spelling in (p.name, *p.aliases)})
MANY = [
    name
    for name in [*SPELLINGS, "cuda", "xpu"]
    if name.casefold() != "cpu" and profile_named(name).device_type != "mps"
]


@st.composite
def specs(draw: st.DrawFn) -> str:
    """Any valid spec of up to 40 devices, in mixed case and with spaces."""
    counted = st.tuples(st.sampled_from(["", "1x", "2x", "03 x ", "8 X "]), st.sampled_from(MANY))
    parts = ["".join(part) for part in draw(st.lists(counted, max_size=5))]
    for single in draw(st.sets(st.sampled_from(["cpu", "mps"]))):
        parts.insert(draw(st.integers(0, len(parts))), single)
    spec = draw(st.sampled_from(["+", " + ", "+\t"])).join(parts or ["H100"])
    return draw(st.sampled_from([spec, spec.lower(), spec.upper()]))


@pytest.mark.parametrize(
    ("spec", "listed", "models"),
    [
        ("cpu", ("cpu",), ["cpu"]),
        ("H100", ("cuda:0",), ["H100-80GB"]),
        ("3xH100", ("cuda:0", "cuda:1", "cuda:2"), ["H100-80GB"] * 3),
        ("2xH100-80GB", ("cuda:0", "cuda:1"), ["H100-80GB"] * 2),
        ("cpu+2xA100-40GB", ("cpu", "cuda:0", "cuda:1"), ["cpu", "A100-40GB", "A100-40GB"]),
        ("H100+T4", ("cuda:0", "cuda:1"), ["H100-80GB", "T4"]),
        ("T4+cpu+H100", ("cuda:0", "cpu", "cuda:1"), ["T4", "cpu", "H100-80GB"]),
        ("H100+PVC-1550+T4", ("cuda:0", "xpu:0", "cuda:1"), ["H100-80GB", "PVC-1550", "T4"]),
        ("mps", ("mps:0",), ["M2-Ultra"]),
        ("T4+cuda:1+xpu:0", ("cuda:0", "cuda:1", "xpu:0"), ["T4", "H100-80GB", "PVC-1550"]),
        ("2xxpu", ("xpu:0", "xpu:1"), ["PVC-1550"] * 2),
        ("MI300X", ("cuda:0",), ["MI300X"]),
        ("  2 X h100 +\tCPU ", ("cuda:0", "cuda:1", "cpu"), ["H100-80GB", "H100-80GB", "cpu"]),
    ],
)
def test_a_spec_lists_its_devices_in_order(spec: str, listed: tuple[str, ...], models: list[str]) -> None:
    topology = Topology.parse(spec)

    assert topology.spec == spec
    assert topology.listed == listed
    assert [device.profile.name for device in topology.devices] == models
    assert [(each.name, f"{each.type}:{each.index}") for each in topology.accelerators] == [
        (name, name) for name in listed if name != "cpu"
    ]


@pytest.mark.parametrize(
    ("spec", "assumptions"),
    [
        ("cuda", ("'cuda' does not specify a GPU model: assuming H100-80GB",)),
        ("cuda:0", ("'cuda' does not specify a GPU model: assuming H100-80GB",)),
        ("2xCUDA+cuda", ("'cuda' does not specify a GPU model: assuming H100-80GB",)),
        (
            "xpu+mps:0",
            (
                "'xpu' does not specify a GPU model: assuming PVC-1550",
                "'mps' does not specify a GPU model: assuming M2-Ultra",
            ),
        ),
        ("H100", ()),
        ("cpu", ()),
        ("cpu:0", ()),
    ],
)
def test_what_the_spec_leaves_open_is_named_once(spec: str, assumptions: tuple[str, ...]) -> None:
    assert Topology.parse(spec).assumptions == assumptions


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("8xh100", "8xH100-80GB"),
        ("H100+H100", "2xH100-80GB"),
        ("cpu + 1xA100-40GB", "cpu+A100-40GB"),
        ("A100-40GB+cpu", "A100-40GB+cpu"),
        ("H100+T4+H100", "H100-80GB+T4+H100-80GB"),
        ("cuda", "H100-80GB"),
    ],
)
def test_the_canonical_spelling_names_models_in_full_and_counts_runs(spec: str, canonical: str) -> None:
    assert Topology.parse(spec).canonical == canonical


@given(specs())
def test_the_canonical_spelling_means_the_same_devices_and_each_name_finds_its_own(spec: str) -> None:
    topology = Topology.parse(spec)

    again = Topology.parse(topology.canonical)

    assert again.devices == topology.devices
    assert again.canonical == topology.canonical
    assert again.assumptions == ()
    assert tuple(map(topology.device, topology.listed)) == topology.devices


@given(st.text())
def test_any_text_is_a_topology_or_a_value_error_of_one_line(text: str) -> None:
    devices: tuple[VirtualDevice, ...] = ()
    fault = ""
    try:
        devices = Topology.parse(text).devices
    except ValueError as error:
        fault = str(error)

    assert bool(devices) != bool(fault)
    assert len(fault.splitlines()) == (0 if devices else 1)


@pytest.mark.parametrize(
    ("spec", "device"), [("cpu", "cpu"), ("cpu+2xT4", "cuda:0"), ("mps", "mps:0"), ("cpu+xpu+T4", "xpu:0")]
)
def test_the_default_device_is_the_first_accelerator(spec: str, device: str) -> None:
    assert Topology.parse(spec).default_device == device


def test_a_type_means_its_first_device_and_the_host_exists_in_every_topology() -> None:
    topology = Topology.parse("T4+xpu+H100")

    host = topology.device("cpu")

    assert topology.device("cuda").name == "cuda:0"
    assert [device.profile.name for device in topology.devices_of("cuda")] == ["T4", "H100-80GB"]
    assert topology.devices_of("mps") == ()
    assert (host.name, host.type, host.index, host.profile) == ("cpu", "cpu", 0, default_profiles()["cpu"])
    assert topology.has_device("cpu:0")
    assert topology.devices_of("cpu") == (host,)
    assert "cpu" not in topology.listed


@pytest.mark.parametrize(
    "name", ["cuda:8", "cuda:07", "cuda:-1", "xpu", "xpu:0", "CUDA:0", "cuda:", "", "meta"]
)
def test_a_device_that_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    topology = Topology.parse("8xH100+mps")

    with pytest.raises(ValueError, match="has no device") as caught:
        topology.device(name)

    assert not topology.has_device(name)
    assert str(caught.value).endswith(f"no device {name!r}; it has cpu, cuda:0..cuda:7, mps:0")


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("H10O", r"^unknown device 'H10O': did you mean H100, .*\? `fakexport devices` lists all devices$"),
        ("8xH10O", r"^unknown device 'H10O'"),
        ("2xpu", r"unknown device 'pu'"),
        ("8H100", r"unknown device '8H100': did you mean H100"),
        ("H100,T4", r"unknown device 'H100,T4'"),
        ("-1xH100", r"unknown device '-1xH100'"),
        ("H100:0", r"unknown device 'H100:0'"),
        ("", r"topology '' has an empty part"),
        ("H100+", r"topology 'H100\+' has an empty part"),
        ("8x", r"topology '8x' has an empty part"),
        ("0xH100", r"topology '0xH100' lists 0 of 'H100': a count must be at least 1"),
        ("2xcpu", r"topology '2xcpu' lists 2 cpu devices, but a process has only one"),
        ("cpu+H100+cpu", r"lists 2 cpu devices, but a process has only one"),
        ("2xM2-Ultra", r"lists 2 mps devices, but a process has only one"),
        ("4097xT4", r"topology '4097xT4' lists more than 4096 devices"),
        ("4096xT4+cpu", r"lists more than 4096 devices"),
        ("1" * 5000 + "xT4", r"lists more than 4096 devices"),
        ("cuda:3", r"'cuda:3' is out of order: the next cuda device is cuda:0"),
        ("H100+cuda:0", r"'cuda:0' is out of order: the next cuda device is cuda:1"),
        ("2xcuda:0", r"'cuda:0' is a single device, not 2: write '2xcuda'"),
    ],
)
def test_a_bad_spec_is_refused_in_one_line(spec: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault) as caught:
        Topology.parse(spec)

    message = str(caught.value)

    assert "\n" not in message


def test_the_largest_topology_is_accepted() -> None:
    spec = f"{MAX_DEVICES}xT4"

    topology = Topology.parse(spec)

    assert topology.listed[-1] == f"cuda:{MAX_DEVICES - 1}"
    assert topology.canonical == spec
