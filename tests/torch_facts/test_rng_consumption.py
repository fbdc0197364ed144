"""What `rng_consumption` relies on: how much torch's CPU kernels and `trunc_normal_` draw."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.random import rng_consumption
from fakexport._torch.random.mersenne_twister import cached_normal
from fakexport._torch.random.rng_consumption import Drawn, drawn_by, truncated_normal_as_one_step

aten = torch.ops.aten

SIZES = (0, 1, 3, 15, 16, 17, 31, 32, 100, 1000)
FEW_SIZES = (0, 5, 16, 17)
FULL, HALF = (torch.float32, torch.float64), (torch.float16, torch.bfloat16)
FLOATS = FULL + HALF
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Dtypes = tuple[torch.dtype, ...]
Act = Callable[[torch.Tensor], Any]  # Draws, into a tensor or like it.

LAYOUTS: dict[str, Callable[[int, torch.dtype], torch.Tensor]] = {
    "contiguous": lambda size, dtype: torch.ones(size, dtype=dtype),
    "transposed": lambda size, dtype: torch.ones(3, size, dtype=dtype).t(),
    "strided": lambda size, dtype: torch.ones(size, 2, dtype=dtype)[:, 0],
    "channels last": lambda size, dtype: torch.ones(1, size, 2, 2, dtype=dtype).transpose(1, 3),
    "expanded like": lambda size, dtype: torch.ones(1, dtype=dtype).expand(size),
}


class Draws(TorchDispatchMode):
    """Asks `drawn_by` about each random operator, as a recording does: with fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Drawn | None] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if effects_of(func).is_random:
            self.found.append(drawn_by(func, args, kwargs or {}, result))
        return result


def default_state_after(act: Callable[[], Any], state: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng([]):
        torch.set_rng_state(state)
        act()
        return torch.get_rng_state()


@cache
def starts() -> list[torch.Tensor]:
    """Within a block, without and with a normal number that is kept."""
    generator = torch.Generator().manual_seed(11)
    torch.empty(600).uniform_(generator=generator)
    without = generator.get_state()
    torch.empty(1).normal_(generator=generator)
    return [without, generator.get_state()]


def state_after(state: torch.Tensor, drawn: list[Drawn]) -> torch.Tensor:
    """Draws as much, by torch itself: a float takes one word, and one normal number is a serial one."""
    generator = torch.Generator()
    generator.set_state(state)
    for words, serial_normals in drawn:
        torch.empty(words, dtype=torch.float32).uniform_(generator=generator)
        torch.empty(serial_normals, 2)[:, 0].normal_(generator=generator)
    return generator.get_state()


fake_mode = cache(new_fake_mode)


def told(act: Callable[[], Any]) -> list[Drawn | None]:
    with fake_mode(), Draws() as draws:
        act()
    return draws.found


def mismatches(act: Callable[[], Any]) -> list[str]:
    """How the state after `act` differs from what `drawn_by` tells, from each start."""
    found = told(act)
    return differences(act, found) if found else ["nothing random was seen"]


def differences(act: Callable[[], Any], told: Sequence[Drawn | None]) -> list[str]:
    drawn = [one for one in told if one is not None]
    if len(drawn) < len(told):
        return ["not told"]
    result = []
    for start in starts():
        state = default_state_after(act, start)
        if not torch.equal(state, state_after(start, drawn)):
            result.append(f"{drawn} from {'one' if cached_normal(start) is not None else 'no'} kept normal")
    return result


def mismatches_over_sizes(act: Act, dtype: torch.dtype, layouts: Iterable[str]) -> list[str]:
    return [
        f"{size} {layout}: {mismatch}"
        for layout in layouts
        for size in (SIZES if layout == "contiguous" else FEW_SIZES)
        for mismatch in mismatches(lambda make=LAYOUTS[layout], size=size: act(make(size, dtype)))
    ]


def cases(table: Mapping[str, tuple[Dtypes, Act]]) -> Any:
    return pytest.mark.parametrize(
        ("act", "dtype"),
        [
            pytest.param(act, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}")
            for name, (dtypes, act) in table.items()
            for dtype in dtypes
        ],
    )


def half(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(t.shape, 0.5, dtype=dtype)


IN_PLACE: dict[str, tuple[Dtypes, Act]] = {
    "uniform_": ((*FLOATS, *COMPLEX), lambda t: t.uniform_(-1, 1)),
    "normal_": ((*FLOATS, *COMPLEX), lambda t: t.normal_(1.0, 2.0)),
    "log_normal_": (FLOATS, lambda t: t.log_normal_()),
    "cauchy_": (FLOATS, lambda t: t.cauchy_()),
    "geometric_": ((*FLOATS, *INTEGERS), lambda t: t.geometric_(0.3)),
    "exponential_": (FLOATS, lambda t: t.exponential_()),
    "random_": ((*FLOATS, *INTEGERS, torch.bool), lambda t: t.random_()),
    "bernoulli_.float": ((*FLOATS, *INTEGERS, torch.bool), lambda t: t.bernoulli_(0.3)),
    "bernoulli_.Tensor": ((*FLOATS, *INTEGERS, torch.bool), lambda t: t.bernoulli_(half(t, torch.float32))),
    "bernoulli_.Tensor64": ((*FLOATS, torch.bool), lambda t: t.bernoulli_(half(t, torch.float64))),
}

LIKE: dict[str, tuple[Dtypes, Act]] = {
    "rand_like": ((*FLOATS, *COMPLEX), torch.rand_like),
    "randn_like": ((*FLOATS, *COMPLEX), torch.randn_like),
    "randn_like dense": (FLOATS, lambda t: torch.randn_like(t, memory_format=torch.contiguous_format)),
    "randn_like double": (FLOATS, lambda t: torch.randn_like(t, dtype=torch.float64)),
    "randint_like": ((*FLOATS, *INTEGERS, torch.bool), lambda t: torch.randint_like(t, 2)),
    "randint_like.low": ((torch.float64, torch.int64), lambda t: torch.randint_like(t, 1, 1 << 40)),
    "randint_like.int": (FULL, lambda t: torch.randint_like(t, 1, 1 << 30, dtype=torch.int32)),
    "normal.Tensor_float": (FLOATS, lambda t: torch.normal(t, 2.0)),
    "normal.float_Tensor": (FLOATS, lambda t: torch.normal(1.0, t)),
    "normal.Tensor_Tensor": (FLOATS, lambda t: torch.normal(t, torch.ones_like(t))),
    "normal broadcast": (FLOATS, lambda t: torch.normal(t.reshape(-1, 1), torch.ones(1, 5, dtype=t.dtype))),
    "bernoulli": (FLOATS, lambda t: torch.bernoulli(t)),
    "bernoulli.p": ((*FLOATS, torch.int64), lambda t: torch.bernoulli(t, 0.3)),
    "uniform": (FLOATS, lambda t: aten.uniform(t)),
    "normal_functional": (FLOATS, lambda t: aten.normal_functional(t)),
    "random": ((*FLOATS, torch.int64), lambda t: aten.random(t)),
    "native_dropout": (FLOATS, lambda t: torch.native_dropout(t, 0.3, True)),
    "native_dropout in eval": (FLOATS, lambda t: torch.native_dropout(t, 0.3, False)),
    "native_dropout by default": (FLOATS, lambda t: torch.native_dropout(t, 0.3, None)),
}

FACTORIES: dict[str, tuple[Dtypes, Act]] = {
    "rand": ((*FLOATS, *COMPLEX), lambda t: torch.rand(t.shape, dtype=t.dtype)),
    "randn": ((*FLOATS, *COMPLEX), lambda t: torch.randn(t.shape, dtype=t.dtype)),
    "randint": ((*FLOATS, *INTEGERS, torch.bool), lambda t: torch.randint(2, t.shape, dtype=t.dtype)),
    "randint.low": (INTEGERS, lambda t: torch.randint(1, 5, t.shape, dtype=t.dtype)),
    "normal.float_float": (FLOATS, lambda t: torch.normal(1.0, 2.0, t.shape, dtype=t.dtype)),
    "randperm": ((torch.int64, torch.float32), lambda t: torch.randperm(t.numel(), dtype=t.dtype)),
    "rand.out": (FLOATS, lambda t: torch.rand(t.shape, out=torch.empty_like(t))),
    "randn.out": (FLOATS, lambda t: torch.randn(t.shape, out=torch.empty_like(t))),
    "randn.out resized": (FLOATS, lambda t: torch.randn(t.shape, out=torch.empty(0, dtype=t.dtype))),
    "randint.out": ((torch.int64,), lambda t: torch.randint(9, t.shape, out=torch.empty_like(t))),
    "normal.out": (FLOATS, lambda t: torch.normal(t, 2.0, out=torch.empty_like(t))),
    "bernoulli.out": (FLOATS, lambda t: torch.bernoulli(t, out=torch.empty_like(t))),
}


@cases(IN_PLACE)
def test_what_fills_a_tensor_in_place_draws_this_much(act: Act, dtype: torch.dtype) -> None:
    assert mismatches_over_sizes(act, dtype, LAYOUTS.keys() - {"expanded like"}) == []


@cases(LIKE)
def test_what_makes_a_tensor_like_another_draws_this_much(act: Act, dtype: torch.dtype) -> None:
    assert mismatches_over_sizes(act, dtype, LAYOUTS) == []


@cases(FACTORIES)
def test_what_makes_a_tensor_draws_this_much(act: Act, dtype: torch.dtype) -> None:
    assert mismatches_over_sizes(act, dtype, ["contiguous", "transposed"]) == []


RANGES: dict[str, tuple[int | None, ...]] = {
    "below 2": (2,),
    "below 200": (200,),
    "around 0": (-5, 5),
    "below 2^28": ((1 << 28) - 1,),
    "2^28": (1 << 28,),
    "2^28 around 0": (-(1 << 27), 1 << 27),
    "2^31": ((1 << 31) - 1,),
    "2^32": (1 << 32,),
    "2^64": (-(1 << 63), (1 << 63) - 1),
    "from 0": (0, None),
    "from 100": (100, None),
    "from far below": (-(1 << 30), None),
    "all": (-(1 << 63), None),
}
# Both ends are rounded to numbers of a short dtype first: whether that many are left is not told.
ROUNDED = ("2^28", "below 2^28", "2^28 around 0")
SHORT = (torch.float32, torch.bfloat16)


@pytest.mark.filterwarnings("ignore:.*out of bounds")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.uint16, torch.uint32])
def test_wide_ranges_of_integers_take_two_words(dtype: torch.dtype) -> None:
    legal = []
    for name, ends in RANGES.items():
        with contextlib.suppress(RuntimeError):  # The range has numbers that the dtype has not.
            torch.empty(1, dtype=dtype).random_(*ends)
            legal.append(name)

    def act(name: str) -> Callable[[], Any]:
        return lambda: torch.empty(7, dtype=dtype).random_(*RANGES[name])

    found = {name: mismatches(act(name)) for name in legal}

    assert "below 2" in found
    assert found == {name: ["not told"] if name in ROUNDED and dtype in SHORT else [] for name in found}


GENERATOR_ACTS: dict[str, Callable[[torch.Generator], Any]] = {
    "randn": lambda generator: torch.randn(33, generator=generator),
    "randint.low": lambda generator: torch.randint(-5, 5, (33,), generator=generator),
    "rand.out": lambda generator: torch.rand(33, generator=generator, out=torch.empty(33)),
    "randint.out": lambda generator: torch.randint(1, 9, (33,), generator=generator, out=torch.empty(33)),
    "randperm.out": lambda generator: torch.randperm(33, generator=generator, out=torch.empty(33)),
    "normal_": lambda generator: torch.empty(33).normal_(generator=generator),
}  # fmt: skip


@pytest.mark.parametrize("act", GENERATOR_ACTS.values(), ids=GENERATOR_ACTS.keys())
def test_a_generator_of_ones_own_is_drawn_from_as_much(act: Callable[[torch.Generator], Any]) -> None:
    (drawn,) = told(lambda: act(torch.Generator()))
    generator = torch.Generator().manual_seed(3)
    start = generator.get_state()

    act(generator)

    assert drawn is not None
    assert torch.equal(generator.get_state(), state_after(start, [drawn]))


@pytest.mark.parametrize("operator", [aten.dropout, aten.dropout_, aten.alpha_dropout, aten.alpha_dropout_])
@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("is_training", [True, False])
def test_dropout_as_one_operator_draws_its_mask(operator: Any, probability: float, is_training: bool) -> None:
    args = (torch.ones(5, 7), probability, is_training)

    drawn = drawn_by(operator.default, args, {}, args[0])

    assert differences(lambda: operator.default(args[0].clone(), *args[1:]), [drawn]) == []


FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize(
    "operator",
    [aten.scaled_dot_product_attention.default, aten._scaled_dot_product_attention_math.default,
     aten._fused_sdp_choice.default, FLASH],
)  # fmt: skip
def test_attention_is_told_without_dropout_only(operator: Any) -> None:
    args = (torch.ones(1, 2, 3, 4),) * 3

    drawn = drawn_by(operator, args, {}, operator(*args))

    assert drawn == Drawn()
    assert differences(lambda: operator(*args), [drawn]) == []
    assert drawn_by(FLASH, (*args, 0.5), {}, args) is None


def test_what_depends_on_values_is_not_told() -> None:
    ones = torch.ones(4, 4)
    acts: list[Callable[[], Any]] = [
        lambda: torch.multinomial(ones, 2),
        lambda: torch.poisson(ones),
        lambda: torch.binomial(ones, ones),
        lambda: torch._standard_gamma(ones),
        lambda: torch._sample_dirichlet(ones),
        lambda: torch.rrelu(ones, training=True),
        lambda: torch.randint_like(ones, torch.tensor(5)),
        lambda: torch.empty(3).exponential_(float("inf")),  # MKL has no such numbers, and torch then does.
    ]

    with Draws() as seen:
        for act in acts:
            act()

    assert seen.found == [None] * len(acts)


def test_a_symbolic_size_is_not_told_and_not_fixed() -> None:
    mode = new_fake_mode()
    symbolic = mode.from_tensor(torch.ones(40, 3))
    assert mode.shape_env is not None

    assert not isinstance(symbolic.shape[0], int)
    assert drawn_by(aten.normal_.default, (symbolic,), {}, symbolic) is None
    assert mode.shape_env.guards == []


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        ({1: 1, 2: 1, 40: 1}, (1, 0)),  # MKL makes the numbers of a seed.
        ({1: 2, 2: 4, 40: 80}, (0, 2)),
        ({1: 3, 2: 5, 40: 81}, (1, 2)),
        ({1: 1, 2: 2, 40: 1}, None),  # Another way for large tensors.
    ],
)
def test_kernels_of_other_processors_are_understood(
    measured: dict[int, int], told: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rng_consumption, "_measured", lambda fill, count, dtype: measured[count])

    assert rng_consumption._words_per_call_and_element.__wrapped__("bernoulli_", torch.float32) == told


def test_what_is_measured_is_measured_out_of_sight() -> None:
    operators = (aten.normal_.default, aten.bernoulli_.float, aten.exponential_.default)
    before = torch.get_rng_state()
    tensor = torch.empty(17, dtype=torch.bfloat16)
    expected = [drawn_by(operator, (tensor,), {}, tensor) for operator in operators]
    rng_consumption._words_per_call_and_element.cache_clear()
    rng_consumption._draws_rest_twice.cache_clear()

    with torch.device("meta"), fake_mode(), Draws() as seen:
        fake = torch.empty(17, dtype=torch.bfloat16)
        results = [drawn_by(operator, (fake,), {}, fake) for operator in operators]

    assert results == expected
    assert None not in results
    assert seen.found == []
    assert torch.equal(torch.get_rng_state(), before)


def test_every_name_of_a_rule_is_a_random_operator() -> None:
    names = {name for names in rng_consumption._RULES.values() for name in names.split()}
    operators = list(rng_consumption._rules)
    found = {str(operator).removeprefix("aten.") for operator in operators}

    assert [str(operator) for operator in operators if not effects_of(operator).is_random] == []
    # Newer than torch 2.11.
    assert names - found <= {"rand_like.generator", "randn_like.generator", "randint_like.generator",
                             "randint_like.low_generator_dtype"}  # fmt: skip


def noted(fill: Callable[[], Any]) -> list[Any]:
    """What is noted of a truncated normal, which is then not drawn."""
    mode, found = new_fake_mode(), []
    with mode, truncated_normal_as_one_step(mode, lambda *given: not found.append(given)):
        fill()
    return found


def test_every_way_to_a_truncated_normal_leads_through_one_function_that_fills_a_real_tensor() -> None:
    ((function, tensor, args, _),) = noted(
        lambda: nn.init.trunc_normal_(torch.empty(3), std=0.02, a=-1.0, b=1.0)
    )
    assert (tensor.shape, args) == ((3,), (0.0, 0.02, -1.0, 1.0, None))

    filled = function(torch.empty(3), 0.0, 1.0, -2.0, 2.0, torch.Generator().manual_seed(1))

    expected = nn.init.trunc_normal_(torch.empty(3), generator=torch.Generator().manual_seed(1))
    assert torch.equal(filled, expected)


@pytest.mark.parametrize(
    ("std", "a", "b", "is_known"),
    [(0.02, -2.0, 2.0, True), (1.0, -2.0, 2.0, False), (0.02, -0.04, 0.04, False), (1.0, 3.0, 4.0, False)],
)
def test_a_truncated_normal_is_told_where_no_number_is_drawn_again(
    std: float, a: float, b: float, is_known: bool
) -> None:
    ((*_, drawn),) = noted(lambda: nn.init.trunc_normal_(torch.empty(100), std=std, a=a, b=b))

    # 16 more for the last 4 elements. Before torch 2.13, each number was drawn once, in another way.
    draws_again = ".any()" in inspect.getsource(nn.init._no_grad_trunc_normal_)
    assert drawn == (Drawn(116) if is_known and draws_again else None)
