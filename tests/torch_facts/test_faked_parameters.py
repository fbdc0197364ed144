"""What `export_passes` relies on for parameters: their fakes are what stock torch creates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import _trace
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fakexport._torch.patching import Patches
from fakexport._torch.speed.export_passes import quick_passes


def new_mode() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True, export=True)


def module_with_everything() -> nn.Module:
    module: Any = nn.Sequential(*[nn.Linear(4, 4, bias=at % 2 == 0) for at in range(8)])
    module[0].register_buffer("own", torch.ones(4))
    module[1].register_buffer("view", module[1].weight.detach()[0])
    module[2].weight = module[3].weight
    module[4].weight.requires_grad_(False)
    module[5].weight = nn.Parameter(torch.empty(4, 4).t())
    module[6].weight.grad = torch.ones(4, 4)
    module[7].register_buffer("kept", nn.Buffer(torch.ones(4)))
    module[7].register_buffer("empty", torch.ones(0, 4))
    module[7].register_buffer("longer", torch.ones(8)[:4])
    module[7].register_buffer("sparse", torch.eye(4).to_sparse())
    return module


def facts(value: torch.Tensor) -> tuple[Any, ...]:
    plain = {name: held for name, held in vars(value).items() if not isinstance(held, FakeTensorMode)}
    return (
        (type(value), value.layout, value.shape, value.dtype, value.device),
        (value.stride(), value.storage_offset()) if value.layout is torch.strided else None,
        (value.requires_grad, value.is_leaf, value.grad is None, value._is_view(), value.is_inference()),
        (isinstance(value, nn.Parameter), value._version, plain),
        value.untyped_storage().nbytes() if value.layout is torch.strided else None,
        str(torch._C._dispatch_keys(value)),
    )


@pytest.mark.parametrize("made_in", ["another mode", "the same mode", "no mode"])
def test_copies_are_what_stock_torch_makes(made_in):
    def faked(patches: Patches) -> tuple[list[Any], Any]:
        mode = new_mode()
        if made_in == "no mode":
            module = module_with_everything()
        else:
            with mode if made_in == "the same mode" else new_mode():
                module = module_with_everything()
        with patches:
            fakes = _trace._fakify_params_buffers(mode, module)
        remembered = mode.fake_tensor_converter.meta_converter
        describer = remembered.describer
        shared: dict[int, int] = {}
        storages = [
            shared.setdefault(fake.untyped_storage()._cdata, len(shared))
            for fake in fakes.values()
            if fake.layout is torch.strided
        ]
        named = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
        state = (
            *(remembered.hit, remembered.miss, describer.next_tensor_id, describer.next_storage_id),
            *(sorted(remembered.tensor_memo), sorted(remembered.storage_memo)),
            [describer.lookup_tensor[value] for value in named.values()],
            [
                describer.lookup_storage[value.untyped_storage()]
                for value in named.values()
                if value.layout is torch.strided
            ],
            [mode.from_tensor(value, static_shapes=True) is fakes[name] for name, value in named.items()],
        )
        return [(name, facts(value)) for name, value in fakes.items()], (storages, state)

    assert faked(quick_passes()) == faked(Patches({}))


def test_a_view_that_comes_later_is_in_the_memory_of_the_copy():
    mode = new_mode()
    with new_mode():
        module: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with quick_passes():
        fakes = _trace._fakify_params_buffers(mode, module)

    view = mode.from_tensor(module[1].weight.detach()[1], static_shapes=True)

    assert view.untyped_storage()._cdata == fakes["1.weight"].untyped_storage()._cdata
