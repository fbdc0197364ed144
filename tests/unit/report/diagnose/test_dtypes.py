"""FE209 is what eager torch refuses: each operator is run on real tensors with every pair of dtypes."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode

import fakexport as fe
from fakexport.exporting.program import walk
from fakexport.report.diagnose.program import diagnose_dtypes

COMMON = (torch.float32, torch.bfloat16, torch.int64)
ALL = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.complex64)
KINDS = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64)
ROWS = torch.tensor([0, 1])
MISSED_IF_COMPLEX = ("binary_cross_entropy, weight",)
"""FE209 judges the first operand of these; a complex second one is not noticed."""
PAIRS = {
    "linear": (F.linear, (2, 3), (4, 3)),
    "linear of a vector": (F.linear, (3,), (4, 3)),
    "linear of a batch": (F.linear, (2, 2, 3), (4, 3)),
    "mm": (torch.mm, (2, 3), (3, 4)),
    "mv": (torch.mv, (2, 3), (3,)),
    "matmul of matrices": (torch.matmul, (2, 3), (3, 4)),
    "matmul of a batch": (torch.matmul, (2, 2, 3), (3, 4)),
    "matmul with a vector": (torch.matmul, (2, 3), (3,)),
    "matmul of batches": (torch.matmul, (2, 2, 3), (2, 3, 4)),
    "bmm": (torch.bmm, (2, 2, 3), (2, 3, 4)),
    "addmm, added": (lambda x, y: torch.addmm(x, y, y), (2, 2), (2, 2)),
    "addmm, multiplied": (lambda x, y: torch.addmm(x, x, y), (2, 2), (2, 2)),
    "addmm_": (lambda x, y: x.clone().addmm_(x, y), (2, 2), (2, 2)),
    "addbmm": (lambda x, y: torch.addbmm(x[0], x, y), (2, 2, 2), (2, 2, 2)),
    "conv1d": (F.conv1d, (1, 3, 4), (4, 3, 2)),
    "conv1d, padded": (lambda x, w: F.conv1d(x, w, padding="same"), (1, 3, 4), (4, 3, 2)),
    "conv2d": (F.conv2d, (1, 3, 4, 4), (4, 3, 2, 2)),
    "conv2d, padded": (lambda x, w: F.conv2d(x, w, padding="same"), (1, 3, 4, 4), (4, 3, 2, 2)),
    "conv3d": (F.conv3d, (1, 3, 2, 2, 2), (4, 3, 2, 2, 2)),
    "conv_transpose1d": (F.conv_transpose1d, (1, 3, 4), (3, 4, 2)),
    "conv_transpose2d": (F.conv_transpose2d, (1, 3, 4, 4), (3, 4, 2, 2)),
    "conv_transpose3d": (F.conv_transpose3d, (1, 3, 2, 2, 2), (3, 4, 2, 2, 2)),
    "convolution": (
        lambda x, w: torch.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        (1, 3, 4, 4),
        (4, 3, 2, 2),
    ),
    "attention, keys": (lambda q, k: F.scaled_dot_product_attention(q, k, k), (1, 2, 8), (1, 2, 8)),
    "embedding": (lambda x, w: F.embedding(x, w), (2,), (3, 4)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w, w), (2, 4), (4,)),
    "layer_norm, weight": (lambda x, w: F.layer_norm(x, (4,), w), (2, 4), (4,)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w, w), (2, 4, 3), (4,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), (2, 4), (4,)),
    "grid_sample": (lambda x, y: F.grid_sample(x, y, align_corners=False), (1, 2, 4, 4), (1, 4, 4, 2)),
    "binary_cross_entropy": (F.binary_cross_entropy, (3,), (3,)),
    "index_add": (lambda x, y: x.index_add(0, ROWS, y), (3, 4), (2, 4)),
    "index_copy": (lambda x, y: x.index_copy(0, ROWS, y), (3, 4), (2, 4)),
    "index_put": (lambda x, y: x.index_put((ROWS,), y), (3, 4), (4,)),
    "index_put of one": (lambda x, y: x.index_put((x[:, 0] == x[:, 0],), y), (3, 4), (1,)),
    "linear bias": (lambda x, b: F.linear(x, x, b), (2, 2), (2,)),
    "linear bias of a batch": (lambda x, b: F.linear(x, x[0], b), (2, 2, 2), (2,)),
    "linear bias that is added": (lambda x, b: F.linear(x.transpose(0, 1), x[0], b), (3, 2, 2), (2,)),
    "mul": (torch.mul, (3,), (3,)),
    "binary_cross_entropy, weight": (lambda x, w: F.binary_cross_entropy(x, x, w), (3,), (3,)),
    "batch_norm": (lambda x, w: F.batch_norm(x, w, w + 1, w, w), (2, 4), (4,)),
    "batch_norm, statistics": (lambda x, w: F.batch_norm(x, w, w + 1), (2, 4), (4,)),
    "gru_cell": (lambda x, w: torch.gru_cell(x, x, w, w), (4, 4), (12, 4)),
    "heaviside": (torch.heaviside, (3,), (3,)),
    "put": (lambda x, y: torch.put(x, ROWS, y), (3,), (2,)),
    "nll_loss, weight": (lambda x, w: F.nll_loss(x, ROWS, w), (2, 4), (4,)),
    "cross_entropy, weight": (lambda x, w: F.cross_entropy(x, ROWS, w), (2, 4), (4,)),
    "cross_entropy of probabilities": (F.cross_entropy, (2, 4), (2, 4)),
    "nll_loss, target": (lambda x, y: F.nll_loss(x, y - y), (2, 4), (2,)),
    "index_select, index": (lambda x, i: x.index_select(0, i - i), (3,), (3,)),
    "index_add, index": (lambda x, i: x.index_add(0, i - i, x), (3,), (3,)),
    "index_copy, index": (lambda x, i: x.index_copy(0, i - i, x), (3,), (3,)),
    "masked_fill_": (lambda x, m: x.clone().masked_fill_(m, 0), (3,), (3,)),
    "mul_": (lambda x, y: x.clone().mul_(y), (3,), (3,)),
    "add_": (lambda x, y: x.clone().add_(y), (3,), (3,)),
    "mul_ of a scalar tensor": (lambda x, y: x.clone().mul_(y), (3,), ()),
    "bitwise_and": (torch.bitwise_and, (3,), (3,)),
    "hypot": (torch.hypot, (3,), (3,)),
    "maximum": (torch.maximum, (3,), (3,)),
    "where": (lambda x, y: torch.where(x == x, x, y), (3,), (3,)),
    "outer": (torch.outer, (3,), (3,)),
    "cat": (lambda x, y: torch.cat([x, y]), (3,), (3,)),
}
SINGLE = {
    "amax": torch.amax,
    "argmax": torch.argmax,
    "avg_pool2d": lambda x: F.avg_pool2d(x[None, None], 2),
    "clamp": lambda x: x.clamp(0, 1),
    "erf": torch.erf,
    "floor": torch.floor,
    "hardtanh": F.hardtanh,
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "mul_ by a number": lambda x: x.clone().mul_(0.5),
    "one minus": lambda x: 1 - x,
    "rand_like": torch.rand_like,
    "sort": lambda x: x.sort().values,
    "topk": lambda x: x.topk(1).values,
    "gelu": F.gelu,
    "glu": F.glu,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "log_softmax": lambda x: x.log_softmax(-1),
    "mish": F.mish,
    "multinomial": lambda x: torch.multinomial(x, 1),
    "silu": F.silu,
    "softmax": lambda x: x.softmax(-1),
    "softmax of float32": lambda x: x.softmax(-1, dtype=torch.float32),
    "softplus": F.softplus,
    "std": torch.std,
    "var": torch.var,
    "relu": lambda x: F.relu(x * 1),
    "sigmoid": torch.sigmoid,
    "avg_pool3d": lambda x: F.avg_pool3d(x[None, None, None], (1, 2, 2)),
    "cdist of few": lambda x: torch.cdist(x, x),
    "cdist of few, multiplied": lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"),
    "cdist of many": lambda x: torch.cdist(x.repeat(20, 1), x),
    "cdist of many, not Euclidean": lambda x: torch.cdist(x.repeat(20, 1), x, p=1),
    "qr": lambda x: torch.linalg.qr(x)[0],
}


class Calls(nn.Module):
    """Calls a function with each of several lists of operands."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *operands):
        return [self.function(*each) for each in operands]


def ones(dtypes, shapes):
    return [torch.ones(shape, dtype=dtype) for dtype, shape in zip(dtypes, shapes, strict=True)]


def is_refused(function, dtypes, shapes):
    try:
        function(*ones(dtypes, shapes))
    except (RuntimeError, NotImplementedError, TypeError):
        return True
    return False


def is_captured(function, dtypes, shapes):
    """Whether torch's fake kernels take the operands; what they refuse is reported as another error."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return not is_refused(function, dtypes, shapes)


def ancestors(node):
    return {node}.union(*map(ancestors, node.all_input_nodes))


def reported(function, cases, shapes):
    """The lists of dtypes for which FE209 is reported; one capture calls the function with all of them."""
    program = torch.export.export(Calls(function), tuple(ones(dtypes, shapes) for dtypes in cases))
    found = {diagnostic.node for diagnostic in diagnose_dtypes(program, walk(program))}
    (results,) = program.graph.output_node().args
    return {
        dtypes
        for dtypes, result in zip(cases, results, strict=True)
        if found & {node.name for node in ancestors(result)}
    }


@pytest.mark.filterwarnings("ignore::UserWarning")  # Of eager torch: a slow kernel, a padded copy.
@pytest.mark.parametrize(
    ("case", "dtypes"),
    [
        *(pytest.param(case, COMMON, id=f"common-{case}") for case in list(PAIRS)[::3]),
        *(pytest.param(case, ALL, id=f"all-{case}", marks=pytest.mark.slow) for case in PAIRS),
    ],
)
def test_binary_dtype_errors_match_eager_mode(case, dtypes):
    function, *shapes = PAIRS[case]
    captured = [each for each in product(dtypes, repeat=2) if is_captured(function, each, shapes)]

    expected = {each for each in captured if is_refused(function, each, shapes)}

    missed = {each for each in expected if each[1] is torch.complex64} if case in MISSED_IF_COMPLEX else set()
    assert expected - missed <= reported(function, captured, shapes) <= expected


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize(
    "case",
    [
        case if number % 2 == 0 else pytest.param(case, marks=pytest.mark.slow)
        for number, case in enumerate(SINGLE)
    ],
)
def test_unary_dtype_errors_match_eager_mode(case):
    shapes = [(2, 4)]
    captured = [(dtype,) for dtype in KINDS if is_captured(SINGLE[case], (dtype,), shapes)]

    expected = {each for each in captured if is_refused(SINGLE[case], each, shapes)}

    assert reported(SINGLE[case], captured, shapes) == expected


@pytest.mark.parametrize(
    ("dtype", "on"), [(torch.int64, ("H100",)), (torch.bool, ("cpu", "H100")), (torch.float32, ())]
)
def test_integer_matmul_is_an_error_only_on_cuda(dtype, on):
    """cuBLAS multiplies no integers, and the CPU does."""
    ones = torch.ones(2, 2, dtype=dtype)
    report = checked(Calls(torch.mm), (ones, ones), target=["cpu", "H100"])

    assert tuple(target for found in report.diagnostics for target in found.targets) == on


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing_in_half_precision_is_an_error_only_on_the_cpu(mode):
    """A model that casts there because it asks for its device is retargeted without the cast."""

    def shrink(x):
        return F.interpolate(x, 2, mode=mode, antialias=True)

    x = torch.ones(1, 1, 4, 4, dtype=torch.bfloat16)
    (found,) = checked(Calls(shrink), (x,), target=["cpu", "H100"]).diagnostics

    assert (found.code, found.targets) == ("FE209", ("cpu",))
    with pytest.raises(RuntimeError, match="not implemented for 'BFloat16'"):
        shrink(x)


class Head(nn.Module):
    def __init__(self, *regions, dtype=torch.float32):
        super().__init__()
        self.linear = nn.Linear(8, 4, dtype=dtype)
        self.regions = regions

    def forward(self, x):
        with ExitStack() as stack:
            for region in self.regions:
                stack.enter_context(torch.autocast(**region))
            return self.linear(x)


ON = {"device_type": "cpu", "dtype": torch.bfloat16}
OFF = {"device_type": "cpu", "enabled": False}
ON_CUDA = {"device_type": "cuda", "dtype": torch.bfloat16}


def checked(model, x, **options):
    return fe.check(lambda: (model, (x,)), **options)


@pytest.mark.parametrize(
    ("dtype", "x"), [(torch.float32, torch.ones(2, 8).long()), (torch.float16, torch.ones(2, 8))]
)
def test_linear_with_mixed_dtypes_is_an_error_on_every_target(dtype, x):
    report = checked(Head(dtype=dtype), x, target=["cpu", "H100"])

    (diagnostic,) = report.diagnostics
    assert (diagnostic.code, diagnostic.targets) == ("FE209", ("cpu", "H100"))
    assert (diagnostic.module_path, diagnostic.primary.span.path) == ("linear", __file__)
    assert diagnostic.fix.message == f"convert before the call: `input.to({dtype})`"
    assert not report.is_clean


@pytest.mark.parametrize(
    ("regions", "codes"),
    [((), ["FE209"]), ((ON,), []), ((ON, OFF), ["FE209"]), ((OFF, ON), []), ((OFF,), ["FE209"])],
)
def test_operands_that_autocast_converts_are_not_reported(regions, codes):
    model, x = Head(*regions), torch.ones(2, 8, dtype=torch.bfloat16)

    assert [each.code for each in checked(model, x).diagnostics] == codes
    if codes:
        with pytest.raises(RuntimeError, match="dtype"):
            model(x)
    else:
        assert model(x).dtype == torch.bfloat16


def test_autocast_of_a_gpu_casts_on_a_gpu():
    x = torch.ones(2, 8, dtype=torch.bfloat16)

    assert checked(Head(ON_CUDA), x, target=["H100"]).is_clean


def test_dtype_errors_in_cond_branches_are_reported():
    class Branch(nn.Module):
        def forward(self, x, weight):
            return torch.cond(
                x.sum() > 0, lambda x, w: (x.half() @ w.t()).float(), lambda x, w: x @ w.t(), (x, weight)
            )

    report = fe.check(lambda: (Branch(), (torch.ones(2, 8), torch.ones(4, 8))))

    assert [each.code for each in report.diagnostics] == ["FE209"]
