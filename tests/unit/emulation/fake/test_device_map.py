import json

import pytest
import torch
from torch import nn

from fakexport.emulation.devices import Topology
from fakexport.emulation.fake import DeviceMap
from fakexport.emulation.fake.module_tensors import Inventory
from fakexport.emulation.fake.placement import resolve
from fakexport.error import InvalidValue


@pytest.mark.parametrize(
    ("spec", "entries"),
    [
        ("cpu", {"": "cpu"}),
        ("cuda", {"": "cuda:0"}),
        ("cuda:3", {"": "cuda:3"}),
        (" cuda:3 ", {"": "cuda:3"}),
        (1, {"": "cuda:1"}),
        (torch.device("xpu"), {"": "xpu:0"}),
        ("fc1=cpu,fc2=cuda", {"fc1": "cpu", "fc2": "cuda:0"}),
        (" fc1 = cpu , =cuda:1,", {"fc1": "cpu", "": "cuda:1"}),
        ({"a.b": 0, "": torch.device("cpu"), "c": "1"}, {"a.b": "cuda:0", "": "cpu", "c": "cuda:1"}),
        ("balanced", {}),
    ],
)
def test_a_device_map_is_read(spec, entries):
    device_map = DeviceMap.parse(spec)

    assert dict(device_map.entries) == entries
    assert device_map.is_balanced is (spec == "balanced")
    assert DeviceMap.parse(device_map) is device_map


def test_a_device_map_is_read_from_json(tmp_path):
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"model": 0, "": "cpu"}))

    for spec in (file, str(file)):
        assert dict(DeviceMap.parse(spec).entries) == {"model": "cuda:0", "": "cpu"}
    cases = (("{", "invalid JSON"), ("[1]", "nonempty JSON object"), ("{}", "nonempty JSON object"))
    for text, message in cases:
        file.write_text(text)
        with pytest.raises(ValueError, match=rf"^.*{message}.*$"):
            DeviceMap.parse(file)
    with pytest.raises(InvalidValue, match=r"^device map nowhere\.json: No such file or directory$"):
        DeviceMap.parse("nowhere.json")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpu", "invalid device in device map: 'gpu'; expected a device such as 'cpu' or 'cuda:0'"),
        ("fc1=gpu", "invalid device in device map for 'fc1'"),
        ("fc1=cpu,fc2", "expected 'module=device', got 'fc2'"),
        ("fc1=cpu,fc1=cuda", "contains 'fc1' twice"),
        ({"a": True}, "device map for 'a': expected a device, got True"),
        ({"a": None}, "device map for 'a': expected a device, got None"),
        ({"a": "disk"}, "for 'a': 'disk'; expected a device"),
        ("", "map: ''; expected a device"),
        ({}, "is empty"),
        ("cuda:-1", "map: 'cuda:-1'; expected a device"),
    ],
)
def test_a_bad_device_map_is_refused_in_one_line(spec, message):
    with pytest.raises(ValueError, match=message) as caught:
        DeviceMap.parse(spec)

    assert "\n" not in str(caught.value)


@pytest.fixture
def model() -> nn.Module:
    return nn.ModuleDict(
        {"encoder": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "head": nn.Linear(2, 2)}
    )


def test_entries_come_in_the_order_of_the_model_and_may_name_a_parameter(model):
    device_map = DeviceMap.parse("head.weight=cpu,head=cpu,encoder=cuda:0,encoder.1=cpu")

    entries = resolve(Inventory.of(model), device_map, Topology.parse("H100"))

    assert list(entries) == ["encoder", "encoder.1", "head", "head.weight"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("encodr=cpu,=cpu", "names 'encodr', which is not a module of ModuleDict; nearest: encoder"),
        ("encoder=cpu", r"has no entry for head\.weight and 3 more: add one, or an entry ''"),
        ("encoder=cpu,head=cpu", r"has no entry for head2\.weight"),  # A prefix counts in whole parts.
        ("encoder=cuda:1,=cpu", r"no device 'cuda:1'; it has cpu, cuda:0"),
    ],
)
def test_a_map_that_does_not_fit_the_model_is_refused(model, spec, message):
    model["head2"] = nn.Linear(2, 2)

    with pytest.raises(ValueError, match=message):
        resolve(Inventory.of(model), DeviceMap.parse(spec), Topology.parse("H100"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real device")
def test_without_a_topology_there_are_only_real_devices(model):
    with pytest.raises(ValueError, match="device 'cuda:0' does not exist: no topology is emulated"):
        resolve(Inventory.of(model), DeviceMap.parse("cuda"))
