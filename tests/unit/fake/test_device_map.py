import json

import pytest
import torch
from torch import nn

from fakexport.devices import Topology
from fakexport.fake import DeviceMap
from fakexport.fake.placement import resolve


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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpu", "invalid device in device map: 'gpu'; expected a device such as 'cpu' or 'cuda:0'"),
        ("fc1=gpu", "invalid device in device map for 'fc1'"),
        ("fc1=cpu,fc2", "write 'module=device', got 'fc2'"),
        ("fc1=cpu,fc1=cuda", "names 'fc1' twice"),
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


@pytest.mark.parametrize(
    ("text", "message"), [("{", "broken JSON"), ("[1]", "expected an object"), ("{}", "expected an object")]
)
def test_a_bad_json_file_is_refused_in_one_line(tmp_path, text, message):
    file = tmp_path / "map.json"
    file.write_text(text)

    with pytest.raises(ValueError, match=message) as caught:
        DeviceMap.parse(file)

    assert "\n" not in str(caught.value)


def test_a_missing_json_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        DeviceMap.parse("nowhere.json")


@pytest.fixture
def model() -> nn.Module:
    return nn.ModuleDict(
        {"encoder": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "head": nn.Linear(2, 2)}
    )


def test_entries_come_in_the_order_of_the_model(model):
    device_map = DeviceMap.parse("head=cpu,encoder=cuda:0,encoder.1=cpu")

    assert list(resolve(model, device_map, Topology.parse("H100"))) == ["encoder", "encoder.1", "head"]


def test_a_path_that_names_no_module_is_answered_with_the_nearest(model):
    with pytest.raises(
        ValueError, match="names 'encodr', which is not a module of ModuleDict; nearest: encoder"
    ):
        resolve(model, DeviceMap.parse("encodr=cpu,=cpu"))


def test_a_tensor_that_no_entry_covers_is_named(model):
    with pytest.raises(ValueError, match=r"has no entry for head\.weight and 1 more: add an entry ''"):
        resolve(model, DeviceMap.parse("encoder=cpu"))


def test_a_prefix_counts_in_whole_parts(model):
    model["head2"] = nn.Linear(2, 2)

    with pytest.raises(ValueError, match=r"has no entry for head2\.weight"):
        resolve(model, DeviceMap.parse("encoder=cpu,head=cpu"))


def test_a_device_that_the_topology_lacks_is_named(model):
    with pytest.raises(ValueError, match=r"no device 'cuda:1': it has cpu, cuda:0"):
        resolve(model, DeviceMap.parse("encoder=cuda:1,=cpu"), Topology.parse("H100"))


def test_a_parameter_can_be_mapped_by_name(model):
    entries = resolve(model, DeviceMap.parse("head.weight=cuda:0,=cpu"), Topology.parse("H100"))

    assert entries == {"": "cpu", "head.weight": "cuda:0"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real device")
def test_without_a_topology_there_are_only_real_devices(model):
    with pytest.raises(ValueError, match="no device 'cuda:0': no topology is emulated"):
        resolve(model, DeviceMap.parse("cuda"))
