import functools
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.operators.real_execution import real_execution
from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import FakeModel, build, fake_mode, is_fake


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
    with fake_mode() as mode:
        assert build(Mlp).mode is mode

    assert isinstance(built, FakeModel)
    assert all(t.fake_mode is built.mode for t in [*tensors(built.module), built.module.scale])
    assert (built.args, built.kwargs, built.has_inputs, built.notes) == ((), {}, False, ())
    assert built.build_seconds > 0
    assert build(lambda: (Mlp(), ())).has_inputs


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


def test_the_dtype_is_the_default_dtype_and_what_the_model_chose_itself_is_noted():
    built = build(Mlp, dtype=torch.bfloat16)

    assert built.module.fc1.weight.dtype == torch.bfloat16
    assert built.module.table.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32
    assert built.module.norm.weight.dtype == torch.float32
    assert built.notes == (
        "2 parameters are torch.float32 instead of torch.bfloat16, because the model sets their dtype: "
        "norm.weight, ...",
    )
    with pytest.raises(ValueError, match="must be floating-point"):
        build(Mlp, dtype=torch.int8)


def test_one_parameter_with_a_dtype_of_its_own_is_noted_by_name():
    def factory():
        return torch.nn.PReLU(dtype=torch.float64)

    assert build(factory, dtype=torch.bfloat16).notes == (
        "the parameter weight is torch.float64 instead of torch.bfloat16, because the model sets its dtype",
    )


def test_a_module_is_converted_to_the_dtype_as_to_does():
    built = build(Mlp(), dtype=torch.bfloat16)

    assert {t.dtype for t in tensors(built.module)} == {torch.bfloat16}


@pytest.mark.usefixtures("h100")
class TestDevices:
    @pytest.mark.parametrize(
        ("options", "device"),
        [({}, "cuda:0"), ({"device_map": "cuda:1"}, "cuda:1"), ({"default_device": "cpu"}, "cpu")],
    )
    def test_the_default_device_is_the_first_accelerator(self, options, device):
        built = build(Mlp, **options)

        assert {str(t.device) for t in [*tensors(built.module), built.module.scale]} == {device}
        assert built.placement.input_device == device

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
        assert torch.equal(built.recording.constant_value(built.module.cosines).cpu(), real)

    @pytest.mark.parametrize("options", [{"device_map": "cuda:2"}, {"default_device": "cuda:2"}])
    def test_a_device_that_the_topology_lacks_is_named(self, options):
        with pytest.raises(ValueError, match=r"no device 'cuda:2'.*cuda:0..cuda:1"):
            build(Mlp, **options)

    def test_example_inputs_go_to_the_first_module(self):
        built = build(lambda: (Mlp(), (torch.ones(3, 4),)), device_map={"fc1": "cuda:1", "": "cuda:0"})

        assert str(built.args[0].device) == "cuda:1"


class TestModules:
    @pytest.mark.parametrize("as_factory", [False, True])
    def test_a_real_module_is_copied_with_its_ties_and_its_values_are_known(self, as_factory):
        real = nn.Sequential(Mlp(), Mlp())
        real[1].fc1.weight = weight = real[0].fc1.weight

        built = build((lambda: real) if as_factory else real)

        assert real[0].fc1.weight is weight
        assert not is_fake(weight)
        assert all(is_fake(t) for t in [*tensors(built.module), built.module[0].scale])
        assert isinstance(built.module[0].fc1.weight, nn.Parameter)
        assert built.module[0].fc1.weight.requires_grad
        assert built.module[1].fc1.weight is built.module[0].fc1.weight
        for fake, value in zip(tensors(built.module), tensors(real), strict=True):
            assert torch.equal(built.recording.constant_value(fake), value)

    def test_large_real_parameters_are_reported_and_not_kept_alive(self):
        kept = []

        def factory():
            with real_execution():
                real = nn.Linear(1024, 1024)
            kept.append(weakref.ref(real.weight))
            return nn.Sequential(real, nn.Linear(1024, 2))

        built = build(factory)

        assert built.notes == ("0.weight was created with 4,194,304 bytes of real data",)
        assert all(is_fake(t) for t in tensors(built.module))
        assert kept[0]() is None

    def test_a_module_that_was_built_before_keeps_its_values(self):
        first = build(Mlp)

        second = build(first.module)

        assert second.mode is not first.mode
        assert torch.equal(second.recording.constant_value(second.module.table), torch.linspace(0, 1, 4))

    @pytest.mark.parametrize("context", [lambda: torch.device("meta"), FakeTensorMode])
    def test_a_module_of_the_meta_device_or_of_another_fake_mode_becomes_one_of_this(self, context):
        def factory():
            with context():
                return Mlp()

        with emulate("H100"):
            for built in (build(factory), build(factory())):
                assert {str(t.device) for t in tensors(built.module)} == {"cuda:0"}
                assert all(t.fake_mode is built.mode for t in tensors(built.module))

    def test_a_module_that_cannot_be_copied_is_refused(self):
        class Stuck(nn.Linear):
            def __deepcopy__(self, memo):
                raise RuntimeError("no copies\nof me")

        with pytest.raises(
            TypeError, match="copying Stuck failed: no copies; pass a function that builds the module"
        ):
            build(Stuck(2, 2))


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


@pytest.mark.parametrize("device_map", [None, "cuda:1", {"": "cuda:0", "fc2": "cuda:1"}])
def test_a_build_walks_the_module_once(device_map, monkeypatch):
    walked = []
    stock = nn.Module.named_modules

    def named_modules(module, *args, **kwargs):
        walked.extend([module] * (not args))  # Recursive calls pass a memo.
        return stock(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "named_modules", named_modules)

    with emulate("2xH100"):
        built = build(Mlp, device_map=device_map)

    assert [module for module in walked if module is built.module] == [built.module]
