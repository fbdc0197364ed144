"""What `_torch/cached_fakes.py` relies on: what it makes of fake mode's cache is what stock torch makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import snapshot_fake
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from fakexport._torch.cached_fakes import replacements
from fakexport._torch.patching import Patches

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda x, w: x @ w,
    "sum in two steps": lambda x, w: (x + x) + x,
    "transposed": lambda x, w: x.transpose(0, 1) + 1,
    "view": lambda x, w: x.view(-1, 2, 2)[1:].select(1, 0),
    "view of a view": lambda x, w: x[:, 1:].unsqueeze(0).expand(3, -1, -1),
    "channels last": lambda x, w: x[None, None].to(memory_format=torch.channels_last) * 2,
    "dtype": lambda x, w: x.to(torch.bfloat16).sum(-1),
    "several": lambda x, w: torch.topk(x, 2),
    "norm": lambda x, w: torch.nn.functional.layer_norm(x, (4,)),
    "in place": lambda x, w: (x + 1).mul_(2),
    "complex": lambda x, w: torch.view_as_complex(x.view(-1, 2, 2)).conj() * 2,
    "of a number": lambda x, w: x.new_zeros(x.shape[0] + 1, 3),
    "concatenated": lambda x, w: torch.cat([x, x[:1]]),
    "picture": lambda x, w: torch.conv1d(x.t()[None], w[:, :, None]),
    "mask": lambda x, w: torch.where(x > 0, x, 0.0),
    "empty": lambda x, w: x[:0] + 1,
    "alone": lambda x, w: w.t().contiguous() @ w,
}


def facts(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [facts(item) for item in value]
    held = {n: v for n, v in vars(value).items() if not isinstance(v, FakeTensorMode)}
    return (
        *(str(value.shape), str(value.stride()), str(value.storage_offset()), value.dtype, value.device),
        *(str(value.untyped_storage().nbytes()), value.requires_grad, value.is_leaf, value._version),
        *(value.is_conj(), value._is_view(), value.is_inference(), held),
        str(torch._C._dispatch_keys(value)),
    )


def memory(values: list[Any]) -> list[int]:
    seen: dict[int, int] = {}
    flat = [v for value in values for v in (value if isinstance(value, (tuple, list)) else [value])]
    return [seen.setdefault(value.untyped_storage()._cdata, len(seen)) for value in flat]


def ran(operator: Callable[[Any, Any], Any], sizes: str, patches: Any, *, keeps_grad: bool = False) -> Any:
    FakeTensorMode.cache_clear()
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    kind = DimDynamic.DYNAMIC if sizes == "symbolic" else DimDynamic.STATIC
    context = StatelessSymbolicContext(dynamic_sizes=[kind, DimDynamic.STATIC])
    x = mode.from_tensor(torch.randn(6, 4), symbolic_context=context, source=ConstantSource("x"))
    w = mode.from_tensor(torch.randn(4, 4).requires_grad_(keeps_grad), static_shapes=True)
    with Patches(patches), mode:
        results = [operator(x, w) for _ in range(4)]
        copies = [snapshot_fake(r) for r in results if isinstance(r, FakeTensor)]
    info = FakeTensorMode.cache_info()
    return (
        [facts(result) for result in results],
        [facts(copy) for copy in copies],
        memory([*results, *copies, x, w]),
        [str(guard.expr) for guard in environment.guards],
        (environment._version_counter, str(environment.replacements), str(environment.var_to_range)),
        (info.hits, info.misses, dict(info.bypasses)),
    )


@pytest.mark.parametrize("sizes", ["symbolic", "static"])
@pytest.mark.parametrize("name", OPERATORS)
def test_results_and_guards_are_those_of_stock_torch(name, sizes):
    quick = ran(OPERATORS[name], sizes, replacements())
    assert quick == ran(OPERATORS[name], sizes, {})
    assert quick[-1][0] > 0 or name in ("view", "view of a view"), "the cache answered nothing"


@pytest.mark.parametrize("name", ["product", "view", "norm"])
def test_results_that_need_a_gradient_are_those_of_stock_torch(name):
    stock = ran(OPERATORS[name], "symbolic", {}, keeps_grad=True)
    assert ran(OPERATORS[name], "symbolic", replacements(), keeps_grad=True) == stock


def test_sizes_that_only_data_tell_are_those_of_stock_torch():
    def run(patches: Any) -> Any:
        FakeTensorMode.cache_clear()
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        x = mode.from_tensor(torch.ones(6), static_shapes=True)
        with Patches(patches), mode:
            found = x.nonzero()
            results = [found + 1, found + 1, found[:, 0].unsqueeze(1) * 2, found[:, 0].unsqueeze(1) * 2]
        info = FakeTensorMode.cache_info()
        return [facts(result) for result in results], info.hits, dict(info.bypasses)

    assert run(replacements()) == run({})


def test_memory_of_an_entry_is_found_out_again_when_a_symbol_becomes_known():
    def run(patches: Any) -> Any:
        FakeTensorMode.cache_clear()
        environment = ShapeEnv()
        mode = FakeTensorMode(shape_env=environment)
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
        x = mode.from_tensor(torch.randn(6, 4), symbolic_context=context, source=ConstantSource("x"))
        with Patches(patches), mode:
            results = [x + 1, x + 1, x + 1]
            assert x.shape[1] == 4
            results += [x + 1, x + 1, x + 1]
        return [facts(result) for result in results]

    assert run(replacements()) == run({})


def test_results_of_one_entry_share_a_number_of_bytes_from_the_first_on() -> None:
    """A later operator is remembered by which sizes of its arguments are the same object."""
    FakeTensorMode.cache_clear()
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.randn(6, 4), symbolic_context=context, source=ConstantSource("x"))

    with Patches(replacements()), mode:
        made = [torch.cat([x, x[:1]]) for _ in range(4)]

    nodes = [tensor.untyped_storage().nbytes().node for tensor in made[1:]]
    assert len({id(node) for node in nodes}) == 1
