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
    ("text", "tensor", "stages", "starts", "plan"),
    [
        ("pp=4", 1, 4, (), ""),
        ("tp=8,pp=2", 8, 2, (), ""),
        ("pp=3, at=model.layers.1, model.layers.2", 1, 3, ("model.layers.1", "model.layers.2"), ""),
        ("tp=2,pp=2,at=layers.1,plan=plan.json", 2, 2, ("layers.1",), "plan.json"),
    ],
)
def test_stages_are_read(text, tensor, stages, starts, plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text('{"layers.*": "colwise"}')

    degrees = Degrees.parse(text)

    assert (degrees.tensor, degrees.stages, degrees.starts, degrees.plan_file) == (
        tensor,
        stages,
        starts,
        plan,
    )
    assert Degrees.parse(degrees.canonical) == degrees


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("8", "expected tp=N"),
        ("dp=8", "expected tp=N"),
        ("tp=", "expected tp=N"),
        ("tp=2,tp=2", "expected tp=N"),
        ("ep=2", "specify the degree of tensor parallelism"),
        ("pp=1", "a degree must be from 2 to 1024"),
        ("pp=2,ep=2", "specify the degree of tensor parallelism"),
        ("pp=3,at=layers.1", "pp=3 needs 2 modules after at=, got 1"),
        ("tp=2,at=layers.1", "at= needs the number of stages, such as pp=2"),
        ("pp=2,plan=plan.json", "specify the degree of tensor parallelism"),
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


def test_each_stage_of_each_rank_needs_a_device():
    with pytest.raises(ValueError, match="tp=2,pp=4 requires 8 devices, but 4xH100"):
        Degrees.parse("tp=2,pp=4").check_devices(Topology.parse("4xH100"))
    Degrees.parse("tp=2,pp=4").check_devices(Topology.parse("8xH100"))


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
