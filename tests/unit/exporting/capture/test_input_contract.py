"""A call returns what eager mode returns, or raises: whatever differs from the example inputs."""

from __future__ import annotations

import operator
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.utils.checkpoint import checkpoint

import fakexport as fe

Pair = namedtuple("Pair", ["a", "b"])


@dataclass(frozen=True)
class Boxes:
    a: torch.Tensor
    b: torch.Tensor
    count: int = 2


def ramp(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


def model(forward):
    """A module of this `forward`, without weights."""
    return type("Model", (nn.Module,), {"forward": forward})


def ways(program, folder):
    """Every way to call the program in Python, by name; each takes the arguments of `forward`."""
    path = folder / "model.pt2"
    fe.save(program, path)
    loaded = fe.load(path)
    return {
        "module": program.module(),
        "loaded": loaded.module(),
        "run": lambda *args, **kwargs: [*fe.run(loaded, *args, **kwargs).values()],
        "opened": lambda *args, **kwargs: [*fe.open_program(path)(*args, **kwargs).values()],
        "stock": torch.export.load(path).module(),
    }


def outcome(function, call):
    args, kwargs = call()
    try:
        with torch.no_grad():
            return pytree.tree_leaves(function(*args, **kwargs)), None
    except Exception as error:
        return None, error


def asked(question, example, *others, dynamic=None):
    """A model that returns one value if the question holds and a different one if not."""

    def forward(self, x):
        return x * 2.0 if question(x) else x * 3.0

    return forward, example, others, dynamic


CHANNELS_LAST = torch.channels_last
QUESTIONS = {
    "a getter through operator": asked(
        operator.attrgetter("requires_grad"), ramp(3, 4), ramp(3, 4).requires_grad_(), dynamic="auto"
    ),
    "an unbound method": asked(torch.Tensor.is_contiguous, ramp(4, 4), ramp(4, 4).t()),
    "getattr by a computed name": asked(
        lambda x: getattr(x, "is_" + "contiguous")(), ramp(4, 4), ramp(4, 4).t()
    ),
    "a descriptor": asked(lambda x: torch.Tensor.is_leaf.__get__(x), ramp(3), ramp(3).requires_grad_() * 1),
    "strides of varying sizes": asked(
        lambda x: x.stride(0) == x.shape[1], ramp(3, 4), ramp(5, 4), ramp(4, 5).t(), dynamic="auto"
    ),
    "strides of a transposed example": asked(
        lambda x: x.stride(0) == 1, ramp(4, 3).t(), ramp(3, 4), ramp(4, 3).t()
    ),
    "a slice with gaps": asked(lambda x: x.stride(0) == 4, ramp(3, 4), ramp(3, 8)[:, :4]),
    "dim_order": asked(lambda x: x.dim_order() == (0, 1), ramp(4, 4), ramp(4, 4).t()),
    "memory format by position": asked(
        lambda x: torch.Tensor.is_contiguous(x, memory_format=CHANNELS_LAST),
        ramp(2, 3, 4, 4),
        ramp(2, 3, 4, 4).contiguous(memory_format=CHANNELS_LAST),
    ),
    "a permuted value": asked(lambda x: x.t().is_contiguous(), ramp(4, 4), ramp(4, 4).t()),
    "a computed value": asked(
        lambda x: (x + 1).is_contiguous(memory_format=CHANNELS_LAST),
        ramp(2, 3, 4, 4),
        ramp(2, 3, 4, 4).contiguous(memory_format=CHANNELS_LAST),
    ),
    "strides changed before the question": asked(
        lambda x: x.t_().is_contiguous(), ramp(4, 4), ramp(4, 4).t()
    ),
    "offset of a part": asked(lambda x: x[1].storage_offset() == 4, ramp(4, 4), ramp(8, 4)[4:]),
    "the base of a view": asked(lambda x: x.view(-1)._base is x, ramp(4, 4), ramp(8, 4)[4:]),
    "gradient of a computed value": asked(lambda x: (x * 1).requires_grad, ramp(3), ramp(3).requires_grad_()),
    "gradient asked after it was set": asked(
        lambda x: x.requires_grad_().is_leaf, ramp(3), ramp(3), ramp(3).requires_grad_()
    ),
    "an inference tensor": asked(
        lambda x: x.is_inference(), ramp(3), torch.inference_mode()(lambda: ramp(3))()
    ),
    "conjugation by a function": asked(
        torch.is_conj, ramp(3).to(torch.complex64), ramp(3).to(torch.complex64).conj()
    ),
    "negation of an imaginary part": asked(
        lambda x: x.imag.is_neg(), ramp(3).to(torch.complex64), ramp(3).to(torch.complex64).conj()
    ),
    "bytes of the storage": asked(lambda x: x.untyped_storage().nbytes() < 100, ramp(4, 4), ramp(8, 4)[:4]),
    "a question in a checkpoint": asked(
        lambda x: checkpoint(lambda y: y * y.stride(0), x, use_reentrant=False).shape[0] == 4,
        ramp(4, 4),
        ramp(4, 4).t(),
    ),
    "a question under vmap": asked(
        lambda x: torch.vmap(lambda row: row * (2 if row.stride(0) == 1 else 3))(x).shape[0] == 4, ramp(4, 4)
    ),
    "a question of torch's own library": asked(torch._prims_common.is_contiguous, ramp(4, 4), ramp(4, 4).t()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", QUESTIONS)
def test_what_forward_asked_of_an_input_is_checked(name, tmp_path):
    forward, example, others, dynamic = QUESTIONS[name]
    program = fe.export(model(forward), (example.clone(),), dynamic_shapes=dynamic)

    found = ways(program, tmp_path)

    def copies(value):
        return lambda: ((value if value.is_inference() else value.view_as(value),), {})

    plain = ramp(*example.shape).to(example.dtype)
    for function in found.values():
        assert outcome(function, lambda: ((plain.clone(),), {}))[1] is None or not example.is_contiguous()
    for other in others:
        for way, function in found.items():
            want, _ = outcome(model(forward)(), copies(other))
            got, error = outcome(function, copies(other))
            assert error is not None or equal(got, want), way


def equal(got, want):
    return want is not None and len(got) == len(want) and all(map(torch.equal, got, want))


def test_a_failing_guard_names_the_input_and_the_line(tmp_path):
    def forward(self, first, second):
        return first * (2 if second.is_contiguous() else 3)  # the line that asks

    line = forward.__code__.co_firstlineno + 1
    found = ways(fe.export(model(forward), (ramp(4, 4), ramp(4, 4))), tmp_path)

    for function in found.values():
        _, error = outcome(function, lambda: ((ramp(4, 4), ramp(4, 4).t()), {}))
        assert "second" in str(error)
        assert f"test_input_contract.py:{line}" in str(error)


def test_questions_in_a_body_that_dynamo_traces_are_guarded():
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y * (2 if y.is_contiguous() else 3), lambda y: y * 5, (x,))

    module = fe.export(model(forward), (ramp(4, 4),)).module()

    with pytest.raises(AssertionError, match="stride"):
        module(ramp(4, 4).t())


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_body_that_dynamo_compares_with_an_earlier_export_asks_no_more_of_its_inputs():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            for _ in range(2):
                y = self.linear(x).transpose(0, 1)
                y = torch.cond(y.sum() > 0, lambda a: a.contiguous() + 1, lambda a: a.contiguous() - 1, (y,))
                x = y.transpose(0, 1)
            return x

    first, second = (fe.export(Branching, (ramp(4, 6, 8),), dynamic_shapes="auto") for _ in range(2))

    assert second._guards_code == first._guards_code


def test_questions_of_hooks_of_the_root_module_are_guarded():
    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_forward_pre_hook(lambda _, args: (args[0] * (2 if args[0].requires_grad else 3),))
            self.register_forward_hook(lambda _, args, result: result * (2 if args[0].is_leaf else 3))

        def forward(self, x):
            return x

    module = fe.export(Hooked, (ramp(3),)).module()

    assert torch.equal(module(ramp(3)), Hooked()(ramp(3)))
    with pytest.raises(AssertionError, match="requires_grad"):
        module(ramp(3).requires_grad_())


def test_a_strict_trace_guards_what_it_cannot_watch():
    def forward(self, x):
        return x * (2 if x.is_contiguous() else 3)

    module = fe.export(model(forward), (ramp(4, 4),), strict=True).module()

    with pytest.raises(AssertionError, match="stride"):
        module(ramp(4, 4).t())


def test_inference_mode_is_guarded_where_forward_asked_for_it():
    def forward(self, x):
        return x * (2 if torch.is_inference_mode_enabled() else 3)

    module = fe.export(model(forward), (ramp(3),)).module()

    module(ramp(3))
    with torch.inference_mode(), pytest.raises(AssertionError, match="inference_mode"):
        module(ramp(3))


def test_a_model_that_asks_nothing_takes_every_layout(tmp_path):
    program = fe.export(model(lambda self, x: x * 2), (ramp(4, 4),))

    for function in ways(program, tmp_path).values():
        for value in (ramp(4, 4).t(), ramp(8, 4)[4:], ramp(4, 4).requires_grad_(), ramp(4).expand(4, 4)):
            got, _ = outcome(function, lambda value=value: ((value,), {}))
            assert equal(got, [value * 2])


def values_of(self, x, n=1, z=0.0, names=("a", None), mask=None):
    kind = {bool: 2, int: 3, float: 5}[type(n)]
    return x * kind * (7 if str(z) == "0.0" else 11) * len(names) + (0 if mask is None else 1)


EXAMPLE = {"n": 1, "z": 0.0, "names": ("a", None), "mask": None}


def written(function):
    """A model that computes with a tensor after a write to what `function` returns for it."""

    def forward(self, x):
        y = x * 1
        function(y).mul_(2)
        return y + 1

    return forward


IMAGES = ramp(2, 3, 4, 4), ramp(2, 3, 4, 4).contiguous(memory_format=CHANNELS_LAST)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "example", "other"),
    [
        (lambda y: y.contiguous(), ramp(4, 4), ramp(4, 4).t()),
        (lambda y: y.view(-1).view(4, 4).contiguous(), ramp(4, 4), ramp(8, 4)[:4]),
        (lambda y: y.contiguous(), ramp(4, 4).t(), ramp(4, 4)),
        (lambda y: y.to(memory_format=CHANNELS_LAST), *reversed(IMAGES)),
        (lambda y: y.to(memory_format=CHANNELS_LAST), *IMAGES),
        (lambda y: y.reshape(-1), ramp(4, 4), ramp(4, 4).t()),
    ],
)
def test_a_write_to_a_copy_for_some_strides(function, example, other, tmp_path):
    forward = written(function)
    program = fe.export(model(forward), (example.clone(),))

    for way in ways(program, tmp_path).values():
        for x in (example, other):
            values, error = outcome(way, lambda: ((x.clone(),), {}))  # noqa: B023
            assert error is None or x is other
            assert error is not None or torch.equal(values[0], forward(None, x.clone()))


def test_a_copy_that_nothing_is_written_to_needs_no_strides(tmp_path):
    program = fe.export(model(lambda self, x: x.contiguous() + 1), (ramp(4, 4),))

    for way in ways(program, tmp_path).values():
        ((found,), _) = outcome(way, lambda: ((ramp(4, 4).t(),), {}))
        assert torch.equal(found, ramp(4, 4).t() + 1)


@pytest.mark.parametrize(
    ("x", "changed"),
    [
        pytest.param(ramp(3, 4), {"n": True}, id="True for 1"),
        pytest.param(ramp(3, 4), {"n": 1.0}, id="1.0 for 1"),
        pytest.param(ramp(3, 4), {"n": torch.tensor(1)}, id="a tensor for 1"),
        pytest.param(ramp(3, 4), {"z": -0.0}, id="-0.0 for 0.0"),
        pytest.param(ramp(3, 4), {"z": 0}, id="0 for 0.0"),
        pytest.param(ramp(3, 4), {"z": float("nan")}, id="nan for 0.0"),
        pytest.param(ramp(3, 4), {"mask": ramp(3, 4)}, id="a tensor for None"),
        pytest.param(ramp(3, 4), {"mask": False}, id="False for None"),
        pytest.param(ramp(3, 4), {"names": ("a", 0)}, id="0 for a nested None"),
        pytest.param(ramp(3, 4), {"names": ["a", None]}, id="a list for a tuple"),
        pytest.param(ramp(3, 4), {"names": ("b", None)}, id="another text"),
        pytest.param(None, {}, id="None for a tensor"),
        pytest.param(2.0, {}, id="a number for a tensor"),
        pytest.param(ramp(3, 4).double(), {}, id="another dtype"),
        pytest.param(ramp(3, 4).int(), {}, id="integers"),
        pytest.param(ramp(3, 4, 1), {}, id="one dimension more"),
        pytest.param(ramp(12), {}, id="one dimension less"),
        pytest.param(ramp(3, 4).to("meta"), {}, id="another device"),
        pytest.param(ramp(3, 4).to_sparse(), {}, id="a sparse tensor"),
    ],
)
def test_another_value_is_rejected(values_program, x, changed):
    for function in values_program.values():
        _, error = outcome(function, lambda: ((x,), EXAMPLE | changed))
        assert error is not None


@pytest.fixture(scope="module")
def values_program(tmp_path_factory):
    program = fe.export(model(values_of), (ramp(3, 4),), EXAMPLE)
    found = ways(program, tmp_path_factory.mktemp("values"))
    for function in found.values():
        got, error = outcome(function, lambda: ((ramp(3, 4),), EXAMPLE))
        assert error is None
        assert equal(got, [values_of(None, ramp(3, 4), **EXAMPLE)])
    return found


def test_nan_is_equal_to_nan(tmp_path):
    program = fe.export(model(lambda self, x, n: x if n != n else x * 2), (ramp(3), float("nan")))

    found = program.module()
    assert torch.equal(found(ramp(3), float("nan")), ramp(3))
    with pytest.raises(AssertionError):
        found(ramp(3), 1.0)


def test_one_tensor_for_two_inputs_is_rejected_by_name(tmp_path):
    program = fe.export(model(lambda self, x, y: x if x is y else x * y), (ramp(3), ramp(3)))
    same = ramp(3)

    for function in ways(program, tmp_path).values():
        _, error = outcome(function, lambda: ((same, same), {}))
        assert "x" in str(error)
        assert "y" in str(error)
        got, _ = outcome(function, lambda: ((ramp(3), ramp(3)), {}))
        assert equal(got, [ramp(3) * ramp(3)])


def test_memory_that_two_inputs_share_is_rejected_where_forward_asked(tmp_path):
    def forward(self, x, y):
        return x + y if x.untyped_storage()._cdata == y.untyped_storage()._cdata else x * y

    found = ways(fe.export(model(forward), (ramp(3), ramp(3))), tmp_path)
    shared = ramp(6)

    for function in found.values():
        assert equal(outcome(function, lambda: ((ramp(3), ramp(3)), {}))[0], [ramp(3) * ramp(3)])
        assert outcome(function, lambda: ((shared[:3], shared[3:]), {}))[1] is not None


def test_an_expanded_input_that_is_written_raises_as_in_eager_mode(tmp_path):
    def forward(self, x):
        x.add_(1)
        return x * 2

    found = ways(fe.export(model(forward), (ramp(3, 4),)), tmp_path)

    for function in found.values():
        _, error = outcome(function, lambda: ((ramp(4).expand(3, 4),), {}))
        assert "written-to tensor" in str(error)


def in_order(self, d, **rest):
    total = 0.0
    for weight, value in enumerate([*d["inner"].values(), *rest.values()], 1):
        total = total + value * weight
    return total


def test_the_order_of_keys_is_checked(tmp_path):
    def call(inner="ba", rest="qp"):
        return ({"inner": {key: ramp(3) + ord(key) for key in inner}},), {
            key: ramp(3) - ord(key) for key in rest
        }

    args, kwargs = call()
    program = fe.export(model(in_order), args, kwargs)
    found = ways(program, tmp_path)
    del found["stock"]  # torch passes dicts and `**kwargs` by key.

    for function in found.values():
        got, error = outcome(function, call)
        assert error is None
        assert equal(got, [in_order(None, *args, **kwargs)])
        assert "a, b" in str(outcome(function, lambda: call(inner="ab"))[1])
        assert "p, q" in str(outcome(function, lambda: call(rest="pq"))[1])


def test_named_arguments_have_no_order(tmp_path):
    program = fe.export(model(lambda self, *, a, b: a - b), (), {"b": ramp(3), "a": ramp(3) * 2})

    for function in ways(program, tmp_path).values():
        assert equal(outcome(function, lambda: ((), {"a": ramp(3) * 2, "b": ramp(3)}))[0], [ramp(3)])


def test_an_ordered_dict_keeps_its_order():
    program = fe.export(model(lambda self, d: d["a"] - d["b"]), (OrderedDict(a=ramp(3), b=ramp(3)),))

    with pytest.raises(ValueError, match="OrderedDict"):
        program.module()(OrderedDict(b=ramp(3), a=ramp(3)))


@pytest.mark.parametrize("kind", [Pair, Boxes])
def test_named_tuples_and_dataclasses_are_inputs_of_files(kind, tmp_path):
    def forward(self, box, pairs):
        assert type(box) is kind
        return Pair(box.a + box.b + pairs[0].b, type(pairs[0]).__name__ == "Pair")

    program = fe.export(
        model(forward), (kind(ramp(3), ramp(3)), [Pair(ramp(3), ramp(3))]), dynamic_shapes="auto"
    )
    found = ways(program, tmp_path)
    del found["stock"]  # torch takes the dict of the fields.

    for function in found.values():
        got, error = outcome(function, lambda: ((kind(ramp(4), ramp(4)), [Pair(ramp(4), ramp(4) + 1)]), {}))
        assert error is None
        assert torch.equal(got[0], ramp(4) * 3 + 1)
    _, error = outcome(found["run"], lambda: ((kind(ramp(4), ramp(5)), [Pair(ramp(4), ramp(4))]), {}))
    assert "box_b" in str(error)


def test_a_named_tuple_with_other_fields_is_rejected():
    program = fe.export(model(lambda self, p: p.a - p.b), (Pair(ramp(3), ramp(3)),))
    other = namedtuple("Pair", ["b", "a"])

    with pytest.raises(ValueError, match="tree spec"):
        program.module()(other(ramp(3), ramp(3)))


def scaled(self, x, scale=2.0, flag=False, *, shift=None):
    return x * scale + flag + (0 if shift is None else shift)


@pytest.mark.parametrize(
    ("example", "call"),
    [
        pytest.param(((), {"x": ramp(3)}), ((ramp(3),), {}), id="positional for named"),
        pytest.param(((ramp(3),), {}), ((), {"x": ramp(3)}), id="named for positional"),
        pytest.param(((ramp(3), 2.0), {}), ((ramp(3),), {}), id="default left out"),
        pytest.param(((ramp(3),), {}), ((ramp(3), 2.0, False), {}), id="defaults written out"),
        pytest.param(((ramp(3), 3.0), {}), ((ramp(3),), {}), id="default that differs from the example"),
        pytest.param(((ramp(3),), {}), ((ramp(3),), {"shift": ramp(3)}), id="tensor for a default"),
        pytest.param(((ramp(3),), {"shift": ramp(3)}), ((ramp(3),), {}), id="default for a tensor"),
        pytest.param(((ramp(3),), {}), ((ramp(3), 2), {}), id="2 for the default 2.0"),
        pytest.param(((ramp(3),), {}), ((ramp(3), 2.0, True), {}), id="True for the default False"),
        pytest.param(((), {"flag": False, "x": ramp(3)}), ((ramp(3),), {}), id="names in another order"),
    ],
)
def test_run_takes_arguments_as_forward_does(example, call, tmp_path):
    program = fe.export(model(scaled), *example)
    path = tmp_path / "model.pt2"
    fe.save(program, path)
    want, _ = outcome(model(scaled)(), lambda: call)

    for function in (lambda *a, **k: fe.run(program, *a, **k), fe.open_program(path)):
        got, error = outcome(function, lambda: call)
        assert (error is not None) if error else equal(got, want)
        is_same = equal(want, [scaled(None, *example[0], **example[1])]) and len(call[0]) != 2
        assert error is None or not is_same


def test_a_declared_lower_bound_holds(tmp_path):
    found = ways(
        fe.export(model(lambda self, x: x.sum(0)), (ramp(3, 4),), dynamic_shapes=["x.0=2..8"]), tmp_path
    )

    for function in found.values():
        assert outcome(function, lambda: ((ramp(1, 4),), {}))[1] is not None
        assert equal(outcome(function, lambda: ((ramp(2, 4),), {}))[0], [ramp(2, 4).sum(0)])


def test_a_tensor_that_is_given_twice_is_two_inputs():
    def factory():
        x = ramp(2, 5, 8)
        return nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x)

    program = fe.export(factory)

    read = {node.name for node in program.graph.find_nodes(op="placeholder") if node.users}
    assert {"query", "key", "value"} <= read


@pytest.mark.parametrize("name", ["table", "weight", "plain"])
def test_an_input_that_the_model_holds_is_an_input_of_its_own(name):
    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", ramp(3))
            self.weight = nn.Parameter(ramp(3))
            self.plain = ramp(3)

        def forward(self, x):
            return x * 2 + getattr(self, name) * 3

    def factory():
        held = Holding()
        return held, (getattr(held, name),)

    program = fe.export(factory)
    result = fe.bind(program, Holding().state_dict()).module()(ramp(3) + 1)

    assert torch.equal(result, (ramp(3) + 1) * 2 + ramp(3) * 3)


def test_passes_of_torch_take_a_program_with_every_kind_of_guard():
    def forward(self, x, y, n, flag, d, z=0.0, mask=None):
        if x._is_view():
            return x
        kind = (y.is_contiguous(), y.is_leaf, (y * 1).requires_grad, y.is_inference(), x.stride(), y.is_neg())
        return x * n + d["a"] + y * len(kind)

    example = (ramp(3, 4).clone(), ramp(3, 4).requires_grad_(), 2, True, {"b": ramp(3, 4), "a": ramp(3, 4)})
    program = fe.export(model(forward), example, {"z": 0.0, "mask": None}, dynamic_shapes="auto")

    decomposed = program.run_decompositions()

    want = program.module()(*example, z=0.0, mask=None)
    assert torch.equal(decomposed.module()(*example, z=0.0, mask=None), want)
