import pytest
import torch
from torch import nn

from fakexport.emulation.devices import Topology, emulate
from fakexport.emulation.fake import constant_value, fake_mode
from fakexport.emulation.fake.place import place
from fakexport.emulation.history import DataReadError


class Decoder(nn.Module):
    """Like a language model: an embedding, blocks, a table, and a head that may be tied."""

    def __init__(self, layers: int = 6, size: int = 8, is_tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, size)
        self.layers = nn.ModuleList(Block(size) for _ in range(layers))
        self.rotary = Rotary()
        self.dropout = nn.Dropout()
        self.head = nn.Linear(size, 11, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.arange(4.0))


@pytest.fixture
def devices():
    with emulate("4xH100"), fake_mode():
        yield


@pytest.mark.usefixtures("devices")
def test_the_longest_prefix_decides():
    model = Decoder()

    weight = model.layers[2].up.weight

    placement = place(model, {"": "cpu", "layers": "cuda:1", "layers.2.up": "cuda:2"})

    assert model.layers[2].up.weight is weight
    assert isinstance(weight, nn.Parameter)
    assert weight.requires_grad
    assert weight.is_leaf
    assert str(model.embed.weight.device) == "cpu"
    assert str(model.layers[2].down.weight.device) == "cuda:1"
    assert str(model.layers[2].up.bias.device) == "cuda:2"
    assert placement.device_map["layers.2.up"] == "cuda:2"
    assert placement.devices == ("cpu", "cuda:1", "cuda:2")
    assert placement.tensor_devices["rotary.inv_freq"] == "cpu"
    assert placement.input_device == "cpu"


@pytest.mark.usefixtures("devices")
def test_a_tie_that_the_map_pulls_apart_stays_one_tensor_and_is_noted():
    model = Decoder(is_tied=True)

    placement = place(model, {"head": "cuda:3", "": "cuda:0"})

    assert model.head.weight is model.embed.weight
    assert placement.tensor_devices["head.weight"] == "cuda:0"
    assert placement.device_map["head"] == "cuda:0"
    assert placement.notes == (
        "head.weight is tied to embed.weight on cuda:0 and stays there, although the device map assigns "
        "cuda:3",
    )


@pytest.mark.usefixtures("devices")
def test_nothing_is_moved_by_a_map_that_does_not_fit():
    model = Decoder()

    with pytest.raises(ValueError, match="not a module"):
        place(model, {"embed": "cuda:1", "heads": "cuda:1"})

    assert {str(p.device) for p in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("is_changed", [False, True])
def test_placement_does_not_hide_that_a_tensor_was_given_other_data(is_changed):
    with emulate("H100"):
        with fake_mode():
            model = nn.Module()
            model.register_buffer("scale", torch.arange(3.0))
        if is_changed:
            model.scale.data = model.scale.data.flip(0)

        place(model, "cuda:0")

        if is_changed:
            with pytest.raises(DataReadError, match="assigned different data"):
                constant_value(model.scale)
        else:
            assert constant_value(model.scale).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.usefixtures("devices")
class TestBalanced:
    def test_blocks_are_contiguous_and_about_equal(self):
        model = Decoder(layers=32)

        placement = place(model, "balanced")

        order = [placement.device_map[f"layers.{i}"] for i in range(32)]
        assert order == [f"cuda:{index}" for index in range(4) for _ in range(8)]
        assert placement.device_map["embed"] == placement.input_device == "cuda:0"
        assert placement.device_map["head"] == "cuda:3"
        assert placement.tensor_devices["rotary.inv_freq"] == "cuda:0"

    def test_a_block_stays_whole(self):
        placement = place(Decoder(layers=5), "balanced")

        for i in range(5):
            devices = {placement.tensor_devices[f"layers.{i}.{name}.weight"] for name in ("up", "down")}
            assert len(devices) == 1

    def test_a_head_that_is_tied_in_part_is_with_its_embedding(self):
        """As BERT's: layers of its own, the weight of the embedding, and one bias under two names."""
        model = Decoder(layers=32)
        model.head = nn.Module()
        model.head.dense = nn.Linear(8, 8)
        model.head.decoder = nn.Linear(8, 11)
        model.head.decoder.weight = model.embed.weight
        model.bias = model.head.decoder.bias

        placement = place(model, "balanced")

        tied = ("embed.weight", "head.dense.weight", "head.decoder.weight", "head.decoder.bias", "bias")
        assert {placement.tensor_devices[name] for name in tied} == {"cuda:0"}
        assert placement.device_map["layers.31"] == "cuda:3"
        assert placement.notes == ()

    def test_a_class_that_must_not_be_split_is_not(self):
        class Whole(nn.Module):
            _no_split_modules = ("Decoder",)

            def __init__(self):
                super().__init__()
                self.decoder = Decoder(layers=8)

        placement = place(Whole(), "balanced")

        assert set(placement.device_map) == {"decoder"}

    def test_a_block_larger_than_a_share_is_split(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))

        placement = place(model, "balanced")

        assert placement.device_map["1.0"] != placement.device_map["1.1"]


def test_devices_get_shares_of_their_memory():
    with emulate("A100-80GB+A100-40GB"), fake_mode():
        placement = place(Decoder(layers=30), "balanced")

    order = [placement.device_map[f"layers.{i}"] for i in range(30)]
    assert order.count("cuda:0") in (19, 20, 21)


@pytest.mark.parametrize(("spec", "device"), [("H100", "cuda:0"), ("cpu", "cpu"), ("cpu+H100", "cuda:0")])
def test_balanced_over_one_device_is_that_device(spec, device):
    with emulate(spec), fake_mode():
        placement = place(Decoder(), "balanced", topology=Topology.parse(spec))

    assert placement.devices == (device,)
