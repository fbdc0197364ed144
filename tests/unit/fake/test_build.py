import functools
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.real_execution import real_execution
from fakexport.devices import emulate
from fakexport.fake import Built, build, fake_mode, is_fake


class Mlp(nn.Module):
    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size, dtype=torch.float32)
        self.fc2 = nn.Linear(size, 2)
        self.register_buffer("table", torch.linspace(0, 1, size), persistent=False)
        self.scale = torch.arange(2.0)

    def forward(self, x):
        x = self.norm(self.fc1(x).float()).to(self.fc2.weight.dtype)
        return self.fc2(x + self.table) * self.scale


@pytest.fixture
def h100():
    with emulate("2xH100"):
        yield


def tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def test_every_tensor_of_the_module_is_a_fake_of_the_mode():
    built = build(Mlp)

    assert isinstance(built, Built)
    assert all(t.fake_mode is built.mode for t in [*tensors(built.module), built.module.scale])
    assert built.args == ()
    assert built.kwargs == {}
    assert built.build_seconds > 0
    assert built.notes == ()


@pytest.mark.parametrize("as_list", [tuple, list])
def test_a_factory_may_give_inputs(as_list):
    built = build(lambda: (Mlp(), as_list([torch.ones(3, 4)]), {"k": torch.ones(1)}))

    (x,) = built.args
    assert is_fake(x)
    assert list(built.kwargs) == ["k"]


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        (lambda: None, "returned NoneType"),
        (lambda: 3, "returned int"),
        (lambda: (Mlp(), 3), "returned a tuple of Mlp, int"),
        (lambda: (Mlp(), (), {}, 1), "returned a tuple of Mlp, tuple, dict, int"),
    ],
)
def test_a_factory_that_gives_something_else_is_refused(factory, what):
    with pytest.raises(TypeError, match=what) as caught:
        build(factory)

    assert "\n" not in str(caught.value)


def test_what_the_factory_raises_comes_out_and_leaves_nothing_behind():
    def factory():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        build(factory, dtype=torch.bfloat16)

    assert torch.get_default_dtype() == torch.float32
    assert not is_fake(torch.ones(1))


def test_the_dtype_is_the_default_dtype_of_the_construction():
    built = build(Mlp, dtype=torch.bfloat16)

    assert built.module.fc1.weight.dtype == torch.bfloat16
    assert built.module.table.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32


def test_a_dtype_that_the_model_chose_itself_stays_and_is_noted():
    built = build(Mlp, dtype=torch.bfloat16)

    assert built.module.norm.weight.dtype == torch.float32
    assert built.notes == (
        "2 parameters are torch.float32 and not torch.bfloat16, as the model chose: norm.weight, ...",
    )


def test_an_integer_dtype_is_refused():
    with pytest.raises(ValueError, match="must be floating-point"):
        build(Mlp, dtype=torch.int8)


def test_a_module_is_converted_to_the_dtype_as_to_does():
    built = build(Mlp(), dtype=torch.bfloat16)

    assert {t.dtype for t in tensors(built.module)} == {torch.bfloat16}


@pytest.mark.usefixtures("h100")
class TestDevices:
    def test_the_default_device_is_the_first_accelerator(self):
        built = build(Mlp)

        assert {str(t.device) for t in [*tensors(built.module), built.module.scale]} == {"cuda:0"}
        assert built.placement.input_device == "cuda:0"

    def test_a_device_map_of_one_device_is_the_default_device(self):
        built = build(Mlp, device_map="cuda:1")

        assert {str(t.device) for t in [*tensors(built.module), built.module.scale]} == {"cuda:1"}

    def test_a_default_device_can_be_asked_for(self):
        built = build(Mlp, default_device="cpu")

        assert {str(t.device) for t in tensors(built.module)} == {"cpu"}

    def test_what_the_factory_places_itself_stays(self):
        built = build(lambda: nn.Sequential(nn.Linear(2, 2, device="cpu"), nn.Linear(2, 2, device="cuda:1")))

        assert built.placement.tensor_devices["0.weight"] == "cpu"
        assert built.placement.tensor_devices["1.weight"] == "cuda:1"

    @pytest.mark.parametrize("legacy", [torch.Tensor, torch.FloatTensor])
    @pytest.mark.parametrize("options", [{}, {"device_map": "cuda:0"}])
    def test_a_legacy_parameter_lands_on_the_asked_device(self, legacy, options):
        class Legacy(nn.Module):
            def __init__(self):
                super().__init__()
                self.mask = nn.Parameter(legacy(5).uniform_())
                self.here = nn.Parameter(torch.empty(5, device="cpu"))

        built = build(Legacy, **options)

        assert str(built.module.mask.device) == "cuda:0"
        assert str(built.module.here.device) == ("cuda:0" if options else "cpu")

    @pytest.mark.parametrize("options", [{}, {"device_map": "cuda:0"}])
    def test_what_is_computed_of_arrays_lands_on_the_asked_device(self, options):
        class OfArrays(nn.Module):
            def __init__(self):
                super().__init__()
                angles = torch.from_numpy(np.linspace(0, 1, 5))
                self.register_buffer("angles", angles)
                self.register_buffer("cosines", (angles * 2).cos().float())
                self.register_buffer("here", angles.to(device="cpu", dtype=torch.float16))
                self.register_buffer("number", torch.tensor([1.0], device="cpu"))

        built = build(OfArrays, **options)
        devices = {name: str(tensor.device) for name, tensor in built.module.named_buffers()}

        asked = "cuda:0" if options else "cpu"
        assert devices == {"angles": "cuda:0", "cosines": "cuda:0", "here": asked, "number": asked}
        real = (torch.from_numpy(np.linspace(0, 1, 5)) * 2).cos().float()
        assert torch.equal(built.recording.value_of(built.module.cosines).cpu(), real)

    def test_a_device_that_the_topology_lacks_is_named(self):
        with pytest.raises(ValueError, match=r"no device 'cuda:2'.*cuda:0..cuda:1"):
            build(Mlp, device_map="cuda:2")

    def test_a_default_device_that_the_topology_lacks_is_named(self):
        with pytest.raises(ValueError, match="no device 'xpu'"):
            build(Mlp, default_device="xpu")

    def test_example_inputs_go_to_the_first_module(self):
        built = build(lambda: (Mlp(), (torch.ones(3, 4),)), device_map={"fc1": "cuda:1", "": "cuda:0"})

        assert str(built.args[0].device) == "cuda:1"

    def test_values_are_known_after_placement(self):
        built = build(Mlp, device_map={"": "cuda:1"})

        assert str(built.module.table.device) == "cuda:1"
        assert torch.equal(built.recording.value_of(built.module.table), torch.linspace(0, 1, 4))


class TestModules:
    def test_a_real_module_is_copied_without_its_data(self):
        real = Mlp()
        weight = real.fc1.weight

        built = build(real)

        assert real.fc1.weight is weight
        assert not is_fake(real.fc1.weight)
        assert all(is_fake(t) for t in [*tensors(built.module), built.module.scale])
        assert isinstance(built.module.fc1.weight, nn.Parameter)
        assert built.module.fc1.weight.requires_grad

    def test_the_values_of_a_real_module_are_known(self):
        real = Mlp()

        built = build(real)

        for name, value in [*real.named_parameters(), *real.named_buffers()]:
            assert torch.equal(built.recording.value_of(built.module.get_parameter(name) if name != "table"
                                                        else built.module.table), value)  # fmt: skip

    def test_ties_are_kept(self):
        real = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        real[1].weight = real[0].weight

        built = build(real)

        assert built.module[1].weight is built.module[0].weight

    def test_a_real_module_of_a_factory_is_left_alone(self):
        real = Mlp()

        build(lambda: real)
        built = build(lambda: real)

        assert not is_fake(real.fc1.weight)
        assert is_fake(built.module.fc1.weight)

    def test_large_real_parameters_are_reported(self):
        real = nn.Linear(1024, 1024)

        built = build(lambda: nn.Sequential(real, nn.Linear(1024, 2)))

        assert built.notes == ("0.weight was created with 4,194,304 bytes of real data",)
        assert all(is_fake(t) for t in tensors(built.module))

    def test_large_real_parameters_are_not_kept_alive(self):
        kept = []

        def factory():
            with real_execution():
                real = nn.Linear(1024, 1024)
            kept.append(weakref.ref(real.weight))
            return real

        built = build(factory)

        assert is_fake(built.module.weight)
        assert kept[0]() is None

    def test_a_module_of_another_fake_mode_is_taken_over(self):
        with FakeTensorMode():
            other = Mlp()

        built = build(other)

        assert all(t.fake_mode is built.mode for t in tensors(built.module))

    def test_a_module_that_was_built_before_keeps_its_values(self):
        first = build(Mlp)

        second = build(first.module)

        assert second.mode is not first.mode
        assert torch.equal(second.recording.value_of(second.module.table), torch.linspace(0, 1, 4))

    def test_a_meta_module_becomes_fake(self):
        with torch.device("meta"):
            meta = Mlp()

        with emulate("H100"):
            built = build(meta)

        assert {str(t.device) for t in tensors(built.module)} == {"cuda:0"}

    def test_a_factory_on_the_meta_device_becomes_fake(self):
        def factory():
            with torch.device("meta"):
                return Mlp()

        with emulate("H100"):
            built = build(factory)

        assert {str(t.device) for t in tensors(built.module)} == {"cuda:0"}

    def test_a_module_that_cannot_be_copied_is_refused(self):
        class Stuck(nn.Linear):
            def __deepcopy__(self, memo):
                raise RuntimeError("no copies\nof me")

        with pytest.raises(TypeError, match="Stuck cannot be: no copies; pass a function that builds it"):
            build(Stuck(2, 2))


def test_inside_of_a_fake_mode_its_mode_is_used():
    with fake_mode() as mode:
        built = build(Mlp)

    assert built.mode is mode


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_built_module_exports(is_dynamic):
    dynamic_shapes = ({0: torch.export.Dim.AUTO},) if is_dynamic else None
    with emulate("H100"):
        built = build(lambda: (Mlp(), (torch.ones(3, 4),)))

        program = torch.export.export(built.module, built.args, dynamic_shapes=dynamic_shapes, strict=False)

    (out,) = program.graph.output_node().args[0]
    assert str(out.meta["val"].device) == "cuda:0"
    assert isinstance(out.meta["val"].shape[0], torch.SymInt) is is_dynamic


def test_no_storage_is_allocated():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2**16, 2**16) for _ in range(8))

    built = build(functools.partial(Large), dtype=torch.bfloat16)

    assert sum(p.nbytes for p in built.module.parameters()) > 60 * 2**30
    assert all(is_fake(p) for p in built.module.parameters())


REAL = torch.ones(1, 4)


@pytest.mark.parametrize(
    ("made", "device"),
    [
        (lambda: REAL.clone(), "cuda"),
        (lambda: torch.from_numpy(np.ones((1, 4))).float() * 2, "cuda"),
        (lambda: torch.ones(1, 4, device="cpu"), "cpu"),
        (lambda: REAL * torch.ones(1, 4, device="cpu"), "cpu"),
        (lambda: REAL.double().to("cpu", torch.float32), "cpu"),
    ],
)
def test_inputs_that_are_computed_from_real_data_are_where_the_model_is(made, device):
    with emulate("H100"):
        built = build(lambda: (nn.Linear(4, 2), (made(),)))

        assert built.args[0].device.type == device


def test_a_factory_that_returns_no_inputs_is_known_from_one_that_returns_a_module_alone():
    assert build(lambda: (nn.Linear(4, 2), ())).has_inputs
    assert not build(lambda: nn.Linear(4, 2)).has_inputs
