"""A model that torchao quantizes gives the program that stock torch gives of the really quantized one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive.weights import BindError
from tests.subclasses import calls

quantization = pytest.importorskip("torchao.quantization")
torchao_utils = pytest.importorskip("torchao.utils")
safetensors = pytest.importorskip("safetensors.torch")

SIZE = 64
CONFIGS: dict[str, Callable[[], Any]] = {
    "int8 weights": quantization.Int8WeightOnlyConfig,
    "int8 weights and activations": quantization.Int8DynamicActivationInt8WeightConfig,
    "float8 weights": quantization.Float8WeightOnlyConfig,
    "int4 weights in int8": lambda: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4),
    "int4 weights in int8, int8 activations": lambda: quantization.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4
    ),
}
IN_EVERY_RUN = "int4 weights in int8, int8 activations"
each_config = pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name == IN_EVERY_RUN else pytest.mark.slow)
        for name, config in CONFIGS.items()
    ],
)
INPUT = (torch.linspace(-1, 1, 4 * SIZE).reshape(4, SIZE).bfloat16(),)


def model(config: Callable[[], Any]) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)).bfloat16().eval()
    quantization.quantize_(made, config())
    return made


def weights_of_torch(real: nn.Module) -> dict[str, torch.Tensor]:
    """The flattened weights by the names that stock torch gives them."""
    state = torch.export.export(real, INPUT).run_decompositions({}).state_dict
    return {name: tensor.detach() for name, tensor in state.items()}


@pytest.mark.slow
@each_config
def test_the_program_is_that_of_the_real_model_node_for_node(config: Callable[[], Any]) -> None:
    real = model(config)
    stock = torch.export.export(real, INPUT)

    of_factory = fe.export(lambda: model(config), INPUT)
    of_module = fe.export(real, INPUT)

    assert calls(of_factory) == calls(of_module) == calls(stock)
    expected = weights_of_torch(real)
    for program in (of_factory, of_module):
        found = program.state_dict
        assert found.keys() == expected.keys()
        assert all(fe.is_fake(tensor) for tensor in found.values())
        assert {n: (t.dtype, t.shape, t.stride()) for n, t in found.items()} == {
            n: (t.dtype, t.shape, t.stride()) for n, t in expected.items()
        }


@pytest.mark.slow
@each_config
def test_bound_to_the_flattened_weights_it_computes_what_eager_does(
    config: Callable[[], Any], tmp_path: Path
) -> None:
    real = model(config)
    safetensors.save_file(weights_of_torch(real), tmp_path / "model.safetensors")
    fe.save(fe.export(lambda: model(config), INPUT), tmp_path / "model.pt2")

    loaded = fe.load(tmp_path / "model.pt2")

    for weights in (tmp_path / "model.safetensors", real.state_dict()):
        assert torch.equal(fe.bind(loaded, weights).module()(*INPUT), real(*INPUT))


def test_a_state_dict_in_a_file_binds(tmp_path: Path) -> None:
    real = model(quantization.Int8WeightOnlyConfig)
    torch.save(real.state_dict(), tmp_path / "model.pt")  # torchao declares its classes safe to load.

    bound = fe.bind(fe.export(real, INPUT), tmp_path / "model.pt")

    assert torch.equal(bound.module()(*INPUT), real(*INPUT))


def test_the_weights_of_the_original_do_not_bind() -> None:
    program = fe.export(lambda: model(quantization.Int8WeightOnlyConfig), INPUT)

    with pytest.raises(BindError) as refused:
        fe.bind(program, nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)).state_dict())

    assert {finding.code for finding in refused.value.report.findings} >= {"FE701", "FE704"}


def test_the_bytes_are_those_of_the_integers_and_scales() -> None:
    def held(*tensors: torch.Tensor) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    real = model(quantization.Int8WeightOnlyConfig)
    expected = sum(
        held(part.bias, part.weight.qdata, part.weight.scale, part.weight.zero_point)
        for part in (real[0], real[2])
    )

    for source in (lambda: (model(quantization.Int8WeightOnlyConfig), INPUT), lambda: (real, INPUT)):
        (verdict,) = fe.check(source, target=["H100"]).verdicts

        assert verdict.summary is not None
        assert verdict.summary.parameters.bytes_per_device == {"cuda:0": expected}


def test_float8_activations_need_a_device_that_has_them() -> None:
    def factory() -> tuple[nn.Module, tuple[torch.Tensor]]:
        return model(quantization.Float8DynamicActivationFloat8WeightConfig), INPUT

    report = fe.check(factory, target=["H100", "A100"])

    assert [verdict.is_exportable for verdict in report.verdicts] == [True, False]
    assert [diagnostic.code for diagnostic in report.diagnostics] == ["FE102"]
    program = report.verdicts[0].program
    assert program is not None
    assert program.state_dict["0.parametrizations.weight.original0"].dtype is torch.float8_e4m3fn


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torchao", "torch"])
def test_unwrapped_by_the_factory_it_gives_the_same_program(package: str) -> None:
    from torch._functorch._aot_autograd.subclass_parametrization import unwrap_tensor_subclass_parameters

    unwrap = (
        torchao_utils.unwrap_tensor_subclass if package == "torchao" else unwrap_tensor_subclass_parameters
    )
    real = unwrap(model(quantization.Int8WeightOnlyConfig))
    stock = torch.export.export(real, INPUT)

    program = fe.export(lambda: unwrap(model(quantization.Int8WeightOnlyConfig)), INPUT)

    assert calls(program) == calls(stock)
    assert list(program.state_dict) == list(stock.state_dict)
    assert torch.equal(fe.bind(program, real.state_dict()).module()(*INPUT), real(*INPUT))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_live_model_is_converted_as_module_to_converts_it(dtype: torch.dtype) -> None:
    given = (INPUT[0].to(dtype),)
    real = model(quantization.Int8WeightOnlyConfig).to(dtype)

    program = fe.export(model(quantization.Int8WeightOnlyConfig), given, dtype=dtype)

    assert calls(program) == calls(torch.export.export(real, given))
    assert torch.equal(fe.bind(program, real.state_dict()).module()(*given), real(*given))


def test_deferred_weights_are_quantized_as_eager_quantizes_them() -> None:
    eager = model(quantization.Int8WeightOnlyConfig)

    deferred = fe.deferred_init(model, quantization.Int8WeightOnlyConfig)
    assert fe.is_deferred(deferred)
    fe.materialize_module(deferred)

    assert not any(map(fe.is_fake, deferred.parameters()))
    assert all(isinstance(p, nn.Parameter) for p in deferred.parameters())
    assert torch.equal(deferred[0].weight.qdata, eager[0].weight.qdata)
    assert torch.equal(deferred(*INPUT), eager(*INPUT))


def test_a_program_of_stock_torch_is_flattened_where_it_is_taken(tmp_path: Path) -> None:
    real = model(quantization.Int8WeightOnlyConfig)
    stock, own = torch.export.export(real, INPUT), fe.export(real, INPUT)

    fe.save(stock, tmp_path / "saved.pt2")

    assert fe.summary(stock).parameters.bytes_per_device == fe.summary(own).parameters.bytes_per_device
    opened = [
        fe.load(tmp_path / "saved.pt2"),
        fe.bind(stock, real.state_dict()),
    ]
    for program in opened:
        assert calls(program) == calls(own)
        assert list(program.state_dict) == list(own.state_dict)
        assert torch.equal(program.module()(*INPUT), real(*INPUT))
    assert stock.state_dict["0.weight"] is real[0].weight
