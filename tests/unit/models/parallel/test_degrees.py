"""What `--parallel` takes, and on which devices."""

import pytest

from fakexport.emulation.devices import Topology
from fakexport.models.parallel import Degrees


@pytest.mark.parametrize(
    ("text", "ranks"), [("tp=2", 2), (" tp = 8 ", 8), ("tp=4,ep=4", 4), ("ep=4, tp=4", 4)]
)
def test_degrees_are_read(text, ranks):
    assert Degrees.parse(text).ranks == ranks


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("8", "expected tp=N"),
        ("dp=8", "expected tp=N"),
        ("tp=", "expected tp=N"),
        ("tp=2,tp=2", "expected tp=N"),
        ("ep=2", "specify the degree of tensor parallelism"),
        ("tp=1", "a degree must be from 2 to 1024"),
        ("tp=999999", "a degree must be from 2 to 1024"),
        ("tp=4,ep=2", "use ep=4 or remove ep"),
    ],
)
def test_another_text_is_one_line(text, fragment):
    with pytest.raises(ValueError, match=fragment) as caught:
        Degrees.parse(text)

    assert "\n" not in str(caught.value)


def test_the_canonical_text_is_read_again():
    degrees = Degrees.parse("ep=4, tp=4")

    assert Degrees.parse(degrees.canonical) == degrees


@pytest.mark.parametrize(
    ("topology", "fragment"),
    [("2xH100", "requires 4 devices, but 2xH100"), ("2xH100+2xA100", "different ones")],
)
def test_ranks_need_devices_of_one_model(topology, fragment):
    with pytest.raises(ValueError, match=fragment):
        Degrees.parse("tp=4").check_devices(Topology.parse(topology))


@pytest.mark.parametrize("topology", ["cpu", "8xH100", "cpu+4xA100"])
def test_ranks_share_the_cpu_or_have_a_device_each(topology):
    Degrees.parse("tp=4").check_devices(Topology.parse(topology))
