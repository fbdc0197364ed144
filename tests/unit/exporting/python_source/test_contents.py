"""What else a program can hold: control flow, modes, mutations, constants, devices, sizes, containers."""

from __future__ import annotations

import runpy
from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from torch.export import Dim, export

import fakexport as fe
from fakexport.archive import load, save
from fakexport.exporting.python_source import PythonSourceError, to_python
from tests.written_source import assert_gives_the_same, differences, written_module

ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Conditions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        def inner(v):
            return torch.cond(
                v.mean() > 0.1, lambda u: (u * 2, u.sum()), lambda u: (self.fc(u), u.sum() + 1), (v,)
            )

        return torch.cond(x.sum() > 0, inner, lambda v: (v - 1, v.max()), (x,))


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, count):
        def goes_on(i, value):
            return i < count

        def step(i, value):
            return i + 1, torch.tanh(self.fc(value))

        return while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x))


class Scan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        def step(carry, row):
            carry = torch.tanh(self.fc(carry)) + row
            return carry, carry * 2

        return scan(step, x[0], x, dim=0)


class Map(nn.Module):
    def forward(self, x, y):
        return map(lambda row, other: torch.sin(row) + other.sum(), x, y)


class Associative(nn.Module):
    def forward(self, x):
        return associative_scan(lambda a, b: a * b + 1, x, 0, combine_mode="generic")


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.inner(x)
            with torch.autocast("cpu", enabled=False):
                z = self.fc(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.fc(y.float()) + self.inner(x), z


class Counting(nn.Module):
    """Changes a buffer in place, and one by batch norm; reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return self.norm(x) * self.count


class Cache(nn.Module):
    def forward(self, x, *, cache):
        cache["keys"][0].copy_(x)
        cache["count"].add_(1)
        return {"sum": x + cache["keys"][1], "count": cache["count"] * 2}


class Item(nn.Module):
    def forward(self, x, n):
        count = n.item()
        torch._check(count >= 2)
        torch._check(count <= x.shape[0])
        return x[:count] * count, torch.full((count,), float("-inf"))


class Literals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = torch.tensor([1.5, -0.0, float("inf")])
        self.table = torch.arange(40.0).reshape(5, 8).t()
        self.register_buffer("wide", torch.randn(1, 8).expand(4, 8), persistent=False)
        self.register_buffer("nan", torch.tensor([float("nan")] * 2), persistent=False)
        self.register_buffer("halves", torch.randn(40).to(torch.bfloat16), persistent=False)
        self.register_buffer("waves", torch.randn(20, dtype=torch.complex64), persistent=False)
        self.register_buffer("flags", torch.rand(3, 8) > 0.5)

    def forward(self, x):
        y = x[:, :3] * self.small + torch.tensor([1, 2, 3]) + self.nan.isnan().sum()
        z = x @ self.table + self.wide.sum() + self.halves.float().mean()
        return y, z, self.waves * 2, self.flags & True


class Masked(nn.Module):
    def forward(self, x):
        rows = torch.arange(x.size(0), device=x.device)
        table = torch.vmap(torch.vmap(lambda i, j: (i >= j) & (rows % 2 == 0)[j], (None, 0)), (0, None))
        with TransformGetItemToIndex():
            return table(rows, rows).to(x.dtype) @ x


EAGER = {
    "cond": (Conditions, (ROWS,), {}),
    "while": (Loop, (ROWS, torch.tensor(3)), {}),
    "while without a turn": (Loop, (ROWS, torch.tensor(0)), {}),
    "scan": (Scan, (ROWS,), {}),
    "map": (Map, (ROWS, ROWS + 1), {}),
    "associative scan": (Associative, (ROWS,), {}),
    "modes": (Modes, (ROWS,), {}),
    "buffers": (Counting, (ROWS,), {}),
    "cache": (Cache, (ROWS,), {"cache": {"keys": [ROWS * 1, ROWS * 3], "count": torch.tensor(2)}}),
    "item": (Item, (ROWS, torch.tensor(3)), {}),
    "literals": (Literals, (ROWS,), {}),
    "masked under vmap": (Masked, (ROWS,), {}),
}


BOTH_WAYS = ("modes", "associative scan")  # These are written otherwise. The others take turns by default.
AS_EXPORTED_OR_NOT = [
    pytest.param(
        *EAGER[name], is_functional, id=f"{name}-{way}", marks=() if is_default else pytest.mark.slow
    )
    for index, name in enumerate(EAGER)
    for is_functional, way in ((False, "as exported"), (True, "functional"))
    for is_default in (name in BOTH_WAYS or is_functional == bool(index % 2),)
]


@pytest.mark.parametrize(("model", "args", "kwargs", "is_functional"), AS_EXPORTED_OR_NOT)
def test_what_a_program_holds_is_written(model, args, kwargs, is_functional, tmp_path):
    program = export(model(), args, kwargs)
    if is_functional:
        program = program.run_decompositions({})

    assert_gives_the_same(program, tmp_path, args, kwargs)


def test_a_condition_is_pythons_own():
    text = to_python(export(Conditions(), (ROWS,))).text

    assert "        if gt:\n            cond = self.true_graph(" in text


def test_modes_are_with_blocks_around_the_modules_that_they_are_around():
    text = to_python(export(Modes(), (ROWS,))).text

    assert "with torch.set_grad_enabled(False):\n" in text
    assert "linear = self.inner(x)" in text or "relu = self.inner(x)" in text
    assert "wrap_with" not in text


def test_sizes_stay_sizes(tmp_path):
    rows = Dim("rows", min=3, max=64)
    program = export(Sizes(), (ROWS, ROWS.repeat(2, 1)), dynamic_shapes=({0: rows}, {0: 2 * rows}))

    written = assert_gives_the_same(program, tmp_path, (torch.randn(7, 8), torch.randn(14, 8)))

    assert "x.shape[0] * 8" in (tmp_path / "program.py").read_text()
    for sizes in [(7, 13), (2, 4), (65, 130)]:
        with pytest.raises(AssertionError):
            written(torch.randn(sizes[0], 8), torch.randn(sizes[1], 8))
    with pytest.raises(AssertionError):
        written(torch.randn(7, 9), torch.randn(14, 8))


class Sizes(nn.Module):
    def forward(self, x, y):
        return x.reshape(x.shape[0] * 8) + y.reshape(2, -1)[0], y.shape[0] // 3


def test_conditions_that_torch_found_are_kept(tmp_path):
    program = export(Even(), (ROWS,), dynamic_shapes=({0: Dim.AUTO},))

    written = assert_gives_the_same(program, tmp_path, (torch.randn(6, 8),))

    with pytest.raises(AssertionError):
        written(torch.randn(7, 8))


class Even(nn.Module):
    def forward(self, x):
        return x.reshape(2, x.shape[0] // 2, 8).sum(0)


def test_a_promise_of_the_model_is_an_assertion(tmp_path):
    program = export(Item(), (ROWS, torch.tensor(3)))
    written = written_module(program, tmp_path)

    with pytest.raises(AssertionError, match=r"u\d+ <= 4"):
        written(ROWS, torch.tensor(5))


def test_containers_are_taken_apart_and_put_together(tmp_path):
    program = export(Containers(), (ROWS, [ROWS, (ROWS, None)], 3), {"named": OrderedDict(b=ROWS, a=2.5)})
    given = ((ROWS, [ROWS, (ROWS, None)], 3), {"named": OrderedDict(b=ROWS, a=2.5)})

    written = assert_gives_the_same(program, tmp_path, *given)

    with pytest.raises(AssertionError):
        written(ROWS, [ROWS, (ROWS, None)], 4, named=OrderedDict(b=ROWS, a=2.5))


class Containers(nn.Module):
    def forward(self, x, parts, count, *, named):
        total = x + parts[0] * count - parts[1][0] + named["b"] * named["a"]
        return {
            "list": [total],
            "tuple": (total * 2,),
            "none": None,
            "ordered": OrderedDict(z=total),
            "number": 7,
        }


def test_large_constants_stand_beside_the_text_and_small_ones_in_it(tmp_path):
    program = export(Literals(), (ROWS,))

    written = written_module(program, tmp_path)

    text = (tmp_path / "program.py").read_text()
    assert (tmp_path / "program.safetensors").exists()
    assert "torch.tensor([1.5, -0.0, inf], dtype=torch.float32, device=device)" in text
    assert torch.equal(written.table, torch.arange(40.0).reshape(5, 8).t())
    assert written.table.stride() == (1, 8)
    assert list(written.state_dict()) == ["flags"]
    safetensors = pytest.importorskip("safetensors.torch")
    assert safetensors.load_file(tmp_path / "program.safetensors")["table"].tolist() == list(range(40))


def test_a_constant_without_elements_needs_no_file(tmp_path):
    assert_gives_the_same(export(Empty(), (ROWS,)), tmp_path, (ROWS,))

    assert not (tmp_path / "program.safetensors").exists()


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(0, 8), persistent=False)

    def forward(self, x):
        return torch.cat([x, self.rows])


def test_a_constant_without_a_value_is_asked_for(tmp_path):
    torch.seed()  # Nobody chose one, so nobody knows what is drawn.
    with pytest.warns(UserWarning, match="FE60"):
        program = fe.export(Drawn, (ROWS,))
    constants = {"noise": torch.randn(8)}
    bound = fe.bind(program, {}, constants=constants)

    fe.write_source(program, tmp_path / "program.py")
    written = written_module(program, tmp_path, constants=constants)

    assert differences(bound, written, (ROWS,)) == []


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(8), persistent=False)

    def forward(self, x):
        return x + self.noise


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        places = torch.arange(8, device=x.device)
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=False):
            return self.fc(x) + places.to(x.device)


def test_the_devices_of_the_program_are_parameters(tmp_path):
    program = fe.export(Placed, (ROWS,), target="H100")
    eager = Placed()

    fe.write_source(program, tmp_path / "program.py")
    text = (tmp_path / "program.py").read_text()
    written = written_module(fe.bind(program, eager.state_dict(), devices="cpu"), tmp_path)

    assert 'def __init__(self, device="cuda:0"):' in text
    assert text.count("cuda") == 1
    assert torch.equal(written(ROWS), eager(ROWS))


def test_several_devices_are_several_parameters(tmp_path):
    program = fe.export(
        lambda: nn.Sequential(Placed(), Placed()), (ROWS,), target="2xH100", device_map="0=cuda:0,1=cuda:1"
    )
    eager = nn.Sequential(Placed(), Placed())

    text = to_python(program).text
    fe.write_source(program, tmp_path / "program.py")
    written = _written_on(tmp_path, device_cuda_0="cpu", device_cuda_1="cpu")
    written.load_state_dict(eager.state_dict())

    assert 'def __init__(self, device_cuda_0="cuda:0", device_cuda_1="cuda:1"):' in text
    assert "super().__init__([Placed(device_cuda_0), Placed" in text
    assert torch.equal(written(ROWS), eager(ROWS))


def _written_on(folder, **devices):
    import runpy

    return runpy.run_path(str(folder / "program.py"))["Program"](**devices)


@pytest.mark.slow
def test_an_archive_without_weights_has_the_same_text(tmp_path):
    program = fe.export(Conditions, (ROWS,))
    save(program, tmp_path / "model.pt2")

    loaded = load(tmp_path / "model.pt2")

    assert to_python(loaded) == to_python(program)


def test_the_libraries_of_operators_are_named(tmp_path):
    with torch.library._scoped_library("written_source_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        program = export(Custom(), (ROWS,))

        text = to_python(program).text
        assert_gives_the_same(program, tmp_path, (ROWS,))

    assert "Import these operator libraries first: written_source_test." in text
    assert "torch.ops.written_source_test.twice.default(x)" in text


class Custom(nn.Module):
    def forward(self, x):
        return torch.ops.written_source_test.twice(x)


def test_what_has_no_text_is_one_line():
    program = export(nn.Linear(8, 8), (ROWS,))
    program.state_dict["weight"] = torch.eye(8).to_sparse()

    with pytest.raises(PythonSourceError, match=r"torch.sparse_coo, but only strided tensors") as raised:
        to_python(program)

    assert "\n" not in str(raised.value)


def test_the_constants_do_not_take_the_place_of_the_text(tmp_path):
    with pytest.raises(ValueError, match="choose another suffix"):
        fe.write_source(export(nn.Linear(8, 8), (ROWS,)), tmp_path / "program.safetensors")


def test_the_constants_of_another_program_are_not_loaded(tmp_path):
    fe.write_source(export(Literals(), (ROWS,)), tmp_path / "program.py")
    other = fe.to_python(export(Literals(), (ROWS,)))
    (tmp_path / "program.safetensors").write_bytes(other.constants[:-4] + b"\0\0\0\1")

    with pytest.raises(ValueError, match="was written for another program"):
        runpy.run_path(str(tmp_path / "program.py"))["Program"]()


def test_a_checkpoint_next_to_the_text_is_not_replaced(tmp_path):
    fe.write_source(export(Literals(), (ROWS,)), tmp_path / "program.py")
    fe.write_source(export(Literals(), (ROWS,)), tmp_path / "program.py")
    (tmp_path / "model.safetensors").write_bytes(b"a checkpoint")

    with pytest.raises(ValueError, match="exists and was not written by fakexport"):
        fe.write_source(export(Literals(), (ROWS,)), tmp_path / "model.py")

    assert (tmp_path / "model.safetensors").read_bytes() == b"a checkpoint"
    assert not (tmp_path / "model.py").exists()
