import json

import pytest
import torch

from fakexport.deploy.signature import InputMismatchError, Signature
from fakexport.exporting.capture import export
from fakexport.files.documents.parsing import parse_json


class Twice(torch.nn.Module):
    """Its second input is twice as long as the first."""

    def forward(self, x, y, scale=2.0):
        return {"sum": torch.cat([x, x]) * scale + y, "count": 3}


def program_of(length, *, longer=None):
    shapes = None if length is None else ({0: length}, {0: length * 2 if longer is None else longer})
    return export(Twice(), (torch.zeros(4, 3), torch.zeros(8, 3)), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def signature():
    return Signature.of(program_of(torch.export.Dim("length", min=3, max=8)))


def test_names_dtypes_sizes_and_devices(signature):
    assert [tensor.name for tensor in signature.inputs] == ["x", "y"]
    x, y = signature.inputs
    assert (x.dtype, x.device) == ("float32", "cpu")
    symbol = x.shape[0].symbol
    assert [str(size) for size in y.shape] == [f"2*{symbol}", "3"]
    assert [(leaf.name, leaf.is_tensor) for leaf in signature.outputs] == [("sum", True), ("count", False)]


@pytest.mark.parametrize("lowest", [0, 1, 2, 3])
def test_bounds_are_checked_as_the_program_checks_them(lowest):
    """torch takes a lower bound up to 2 for none."""
    dim = torch.export.Dim("length", min=lowest, max=8)
    program = program_of(dim)
    accepted, runs = [], []
    for size in range(10):
        inputs = {"x": torch.zeros(size, 3), "y": torch.zeros(2 * size, 3)}
        try:
            program.module()(inputs["x"], inputs["y"])
            runs.append(size)
        except AssertionError:
            pass
        try:
            Signature.of(program).check(inputs)
            accepted.append(size)
        except InputMismatchError:
            pass

    assert accepted == runs
    assert 8 in accepted
    assert 9 not in accepted


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": (4, 3)}, "the input 'y' is missing; got x"),
        ({"x": (4, 3), "y": (8, 3), "z": (1,)}, "the program has no input 'z'; it has x, y"),
        ({"x": (4,), "y": (8, 3)}, "the input 'x' is float32[4], but the program expects float32[S, 3]"),
        ({"x": (4, 2), "y": (8, 3)}, "`x` has size 2 in dimension 1, but the program expects 3"),
        ({"x": (9, 3), "y": (18, 3)}, "`x` has size 9 in dimension 0, but the program expects at most 8"),
        ({"x": (2, 3), "y": (4, 3)}, "`x` has size 2 in dimension 0, but the program expects at least 3"),
        ({"x": (4, 3), "y": (9, 3)}, "`y` has size 9 in dimension 0, but the program expects 2*S"),
        (
            {"x": (4, 3), "y": (10, 3)},
            "`y` has size 10 in dimension 0, but the program expects 8, since `x` has size 4 in dimension 0",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(signature, inputs, message):
    symbol = signature.inputs[0].shape[0].symbol
    with pytest.raises(InputMismatchError) as refusal:
        signature.check({name: torch.zeros(shape) for name, shape in inputs.items()})

    assert str(refusal.value).replace(symbol, "S") == message


def test_another_dtype_is_refused(signature):
    with pytest.raises(InputMismatchError, match=r"'x' is int64\[4, 3\], but the program expects float32"):
        signature.check({"x": torch.zeros(4, 3, dtype=torch.int64), "y": torch.zeros(8, 3)})


def test_json_gives_the_signature_back(signature):
    assert Signature.from_dict(parse_json(json.dumps(signature.to_dict()).encode())) == signature


def test_memory_of_written_inputs_is_checked_for_forms_that_write_into_copies():
    class Writing(torch.nn.Module):
        def forward(self, x, y):
            x.add_(1)
            return x + y

    signature = Signature.from_dict(Signature.of(export(Writing, (torch.zeros(3), torch.zeros(3)))).to_dict())
    both = torch.zeros(6)

    signature.check({"x": torch.zeros(3), "y": torch.zeros(1).expand(3)})
    with pytest.raises(InputMismatchError, match="`x`, which shares memory with `y`"):
        signature.check({"x": both[:3], "y": both[3:]})
    with pytest.raises(InputMismatchError, match="`x`, which is expanded"):
        signature.check({"x": torch.zeros(1).expand(3), "y": torch.zeros(3)})
