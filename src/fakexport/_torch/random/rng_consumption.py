"""Compute how many numbers a random operator draws from the CPU generator, without running it.

To create tensors without drawing their values, fakexport must know the generator state that eager
execution would leave. For most kernels, the size, memory layout and dtype of the result determine how many
32-bit words are drawn. Seen on torch 2.11 to 2.13. If the number depends on the version, build or processor,
it is measured once, on a separate generator.

Source: `aten/src/ATen/native/cpu/DistributionTemplates.h`, `aten/src/ATen/native/DistributionTemplates.h`,
`aten/src/ATen/core/DistributionsHelper.h`, `native/TensorFactories.cpp:randperm_cpu`, `native/Dropout.cpp`.

`nn.init.trunc_normal_` draws, checks whether any value is out of bounds, and if so draws again. On fake
tensors, each check would have to draw the whole weight, so the function is recorded as a single step. Seen on
torch 2.13; torch 2.11 makes no such check. Source: `torch/nn/init.py:_no_grad_trunc_normal_`, which all
initializers of torch and transformers call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import init

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.patching import Patches, in_force

from .mersenne_twister import drawn_since_seeded


class Drawn(NamedTuple):
    """The count of numbers that an operator draws. At most one of the two fields is nonzero.

    Args:
        serial_normals: Count of normal numbers drawn one at a time. Two of them consume four words, and the
            second number is cached for the next draw. Therefore, the number of words depends on whether the
            generator has a cached number (`mersenne_twister.cached_normal`).
    """

    words: int = 0  # 32-bit outputs.
    serial_normals: int = 0


_NOTHING = Drawn()

# Called with the tensor to fill, its number of elements, and the positional arguments.
Rule = Callable[[torch.Tensor, int, Sequence[Any]], Drawn | None]


def drawn_by(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Drawn | None:
    """Return how many numbers the operator's CPU kernel draws, or None if that is unknown or data-dependent.

    No data is read and devices are ignored: the tensors may be fake and on any device. The arguments are
    those that `__torch_dispatch__` gets, below autograd.
    """
    rule = _rules.get(operator)
    if rule is None:
        return None
    filled = result if isinstance(result, torch.Tensor) else args[0]
    count = filled.numel()
    # With a symbolic size, the result would be symbolic, and comparing it would add a guard.
    return rule(filled, count, args) if type(count) is int else None


# Real numbers per element, and words per uniform number of that precision.
_REALS = {
    torch.float32: (1, 1),
    torch.float64: (1, 2),
    torch.bfloat16: (1, 1),
    torch.float16: (1, 1),
    torch.complex32: (2, 1),
    torch.complex64: (2, 1),
    torch.complex128: (2, 2),
}


def _uniform(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    reals, words = _REALS.get(filled.dtype, (0, 0))
    return Drawn(count * reals * words) if reals else None


_LANES = 16  # The kernel for long contiguous tensors converts this many uniform numbers at a time.


def _normal(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    return _normals(filled.dtype, count, filled.is_contiguous())


def _normal_around_tensors(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    # The kernel fills a new contiguous tensor, although in fake mode the result has the argument's strides.
    return _normals(filled.dtype, count, is_contiguous=True)


def _normals(dtype: torch.dtype, count: int, is_contiguous: bool) -> Drawn | None:
    reals, words = _REALS.get(dtype, (0, 0))
    if not reals:
        return None
    count *= reals
    if count < _LANES or not is_contiguous:
        return Drawn(serial_normals=count)
    rest = count % _LANES
    if rest:
        count += _LANES if _draws_rest_twice(dtype) else _LANES - rest
    return Drawn(count * words)


def _log_normal(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    return Drawn(serial_normals=count)


def _doubles(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    """Count one double per element, regardless of the dtype."""
    return Drawn(2 * count)


# If the range is at least this large, an integer takes two words, regardless of its dtype.
_WIDE = 1 << 28
_LOWEST = -(1 << 63)
_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_LARGEST = {
    torch.bool: 1,
    **{dtype: torch.iinfo(dtype).max for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)},
    **{dtype: torch.iinfo(dtype).max for dtype in (torch.uint8, torch.uint16, torch.uint32)},
    **{dtype: 1 << digits for dtype, digits in _DIGITS.items()},
}
_WHOLE_RANGE_WORDS = {
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32), 1),
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), 1),
    **dict.fromkeys((torch.int64, torch.float64), 2),
}


def _random(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    words = _WHOLE_RANGE_WORDS.get(filled.dtype)
    return None if words is None else Drawn(count * words)


def _below(position: int) -> Rule:
    """Return the rule for an operator that draws integers from 0 up to the argument at this position."""
    return lambda filled, count, args: _integers(filled.dtype, count, 0, args[position])


def _between(position: int) -> Rule:
    """Return the rule for an operator that draws integers between two arguments.

    The lower bound is the argument at this position, and the upper bound is the next argument.
    """
    return lambda filled, count, args: _integers(filled.dtype, count, args[position], args[position + 1])


def _integers(dtype: torch.dtype, count: int, low: Any, high: Any) -> Drawn | None:
    if high is None:
        if low == _LOWEST:
            return Drawn(2 * count)
        high = _LARGEST.get(dtype, math.nan) + 1
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    span = high - low
    digits = _DIGITS.get(dtype)
    if digits is not None and abs(span - _WIDE) < max(abs(low), abs(high)) >> digits - 3:
        return None  # The kernel first rounds both bounds to the dtype.
    return Drawn(2 * count if span >= _WIDE else count)


def _permutation(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    # Not measured for permutations that take gigabytes.
    return Drawn(max(count - 1, 0)) if count < _WIDE else None


def _bernoulli_of(position: int) -> Rule:
    """Return the rule for an operator whose argument at this position contains a probability per element."""
    return lambda filled, count, args: Drawn(2 * count if args[position].dtype is torch.float64 else count)


def _bernoulli(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    return _stream("bernoulli_", filled.dtype, count)


def _exponential(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    rate = args[1] if len(args) > 1 else 1.0
    return _stream("exponential_", filled.dtype, count) if math.isfinite(rate) else None


def _native_dropout(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    return _stream("bernoulli_", torch.bool, count) if args[2] is not False else _NOTHING


def _dropout(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    _, probability, is_training = args
    if not is_training or probability in (0, 1):
        return _NOTHING
    return _stream("bernoulli_", filled.dtype, count)


def _no_dropout(position: int) -> Rule:
    """Return the rule for attention, which draws nothing if the argument at this position is 0 or omitted."""
    return lambda filled, count, args: _NOTHING if len(args) <= position or args[position] == 0 else None


def _nothing(filled: torch.Tensor, count: int, args: Sequence[Any]) -> Drawn | None:
    return _NOTHING


def _stream(fill: str, dtype: torch.dtype, count: int) -> Drawn | None:
    """Return how many numbers a kernel draws, as measured. A kernel that uses MKL only draws a seed."""
    if not count:
        return _NOTHING
    words = _words_per_call_and_element(fill, dtype)
    return None if words is None else Drawn(words[0] + words[1] * count)


@cache
def _words_per_call_and_element(fill: str, dtype: torch.dtype) -> tuple[int, int] | None:
    try:
        one, two, many = (_measured(fill, count, dtype) for count in (1, 2, 40))
    except RuntimeError:
        return None  # There is no such kernel.
    each = two - one
    return (one - each, each) if many == one + 39 * each else None


@cache
def _draws_rest_twice(dtype: torch.dtype) -> bool:
    """Return whether `normal_` draws the elements after the last full block of 16 twice.

    torch 2.11 does this for every dtype, and torch 2.13 for all dtypes except 16-bit ones.
    """
    reals, words = _REALS[dtype]
    return _measured("normal_", _LANES + 1, dtype.to_real() if reals == 2 else dtype) > 2 * _LANES * words


def _measured(fill: str, count: int, dtype: torch.dtype) -> int:
    """Return how many words a tensor method draws. The result is only correct for up to 624 words."""
    with real_execution():
        generator = torch.Generator("cpu")
        getattr(torch.empty(count, dtype=dtype), fill)(generator=generator)
        return drawn_since_seeded(generator.get_state())


_RULES: dict[Rule, str] = {
    _uniform: "uniform_.default uniform.default rand.default rand.generator rand.out rand.generator_out "
    "rand_like.default rand_like.generator",
    _normal: "normal_.default normal_functional.default normal.float_float normal.float_float_out "
    "normal.Tensor_float_out normal.float_Tensor_out normal.Tensor_Tensor_out "
    "randn.default randn.generator randn.out randn.generator_out randn_like.default randn_like.generator",
    _normal_around_tensors: "normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor",
    _log_normal: "log_normal_.default log_normal.default",
    _doubles: "cauchy_.default cauchy.default geometric_.default geometric.default",
    _random: "random_.default random.default",
    _below(0): "randint.default randint.generator randint.out randint.generator_out",
    _below(1): "random_.to random.to randint_like.default randint_like.generator",
    _between(0): "randint.low randint.low_generator randint.low_out randint.low_generator_out",
    _between(1): "random_.from random.from randint_like.low_dtype randint_like.low_generator_dtype",
    _permutation: "randperm.default randperm.generator randperm.out randperm.generator_out",
    _bernoulli_of(0): "bernoulli.default bernoulli.out",
    _bernoulli_of(1): "bernoulli_.Tensor bernoulli.Tensor",
    _bernoulli: "bernoulli_.float bernoulli.p",
    _exponential: "exponential_.default exponential.default",
    _native_dropout: "native_dropout.default",
    _dropout: "dropout.default dropout_.default alpha_dropout.default alpha_dropout_.default",
    _no_dropout(3): "_scaled_dot_product_flash_attention_for_cpu.default "
    "_scaled_dot_product_flash_attention.default",
    _no_dropout(4): "scaled_dot_product_attention.default _scaled_dot_product_attention_math.default "
    "_scaled_dot_product_fused_attention_overrideable.default",
    _no_dropout(5): "_scaled_dot_product_efficient_attention.default "
    "_scaled_dot_product_cudnn_attention.default",
    _nothing: "_fused_sdp_choice.default",
}  # fmt: skip


def _rules_by_operator() -> dict[OpOverload, Rule]:
    rules = {}
    for rule, names in _RULES.items():
        for packet, overload in (name.split(".") for name in names.split()):
            # Some operators are missing in some versions of torch.
            operator = getattr(getattr(torch.ops.aten, packet, None), overload, None)
            if operator is not None:
                rules[operator] = rule
    return rules


_rules = _rules_by_operator()


def truncated_normal_as_one_step(
    mode: FakeTensorMode,
    note: Callable[[Callable[..., Any], torch.Tensor, tuple[Any, ...], Drawn | None], bool],
) -> Patches:
    """Return a context in which `nn.init.trunc_normal_` of a fake tensor is recorded instead of run.

    Args:
        mode: The fake mode whose tensors are recorded.
        note: Called with the function that fills a real tensor, the fake tensor, the other arguments, and the
            amount of numbers drawn, if known. Returns whether it recorded the call. If not, torch's function
            runs.
    """
    stock: Callable[..., torch.Tensor] = in_force(init, "_no_grad_trunc_normal_")

    def fill(
        tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
    ) -> torch.Tensor:
        is_ours = isinstance(tensor, FakeTensor) and tensor.fake_mode is mode
        if is_ours:
            drawn = _drawn_within(stock, tensor, mean, std, a, b)
            if note(stock, tensor, (mean, std, a, b, generator), drawn):
                return tensor
        return stock(tensor, mean, std, a, b, generator)

    return Patches({(init, "_no_grad_trunc_normal_"): fill})


_FARTHEST = 9.0  # Box-Muller with 53-bit numbers reaches at most sqrt(2 * 53 * ln 2) = 8.57 sigma.


def _drawn_within(
    function: Callable[..., Any], tensor: torch.Tensor, mean: float, std: float, a: float, b: float
) -> Drawn | None:
    """Return how many numbers the function draws, or None if it may draw again because of the bounds."""
    is_within = a < mean - _FARTHEST * std and mean + _FARTHEST * std < b
    if not is_within or not _draws_normals(function):
        return None
    return drawn_by(torch.ops.aten.normal_.default, (tensor, mean, std), {}, tensor)


@cache
def _draws_normals(function: Callable[..., Any]) -> bool:
    """Return whether the function draws the same numbers as `normal_`, as in torch 2.13 and later."""
    ours, normal = torch.Generator(), torch.Generator()
    normal.set_state(ours.get_state())
    with real_execution():
        # Not a multiple of 16, so that `normal_` draws more numbers than there are elements.
        function(torch.empty(17), 0.0, 1.0, -100.0, 100.0, generator=ours)
        torch.empty(17).normal_(generator=normal)
        return torch.equal(ours.get_state(), normal.get_state())
