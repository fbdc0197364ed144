"""FE209 in half precision is what the CPU refuses, of every operator that torch's own tests know."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch
from torch.utils import _pytree

from fakexport.exporting.program import walk
from fakexport.report.diagnose.program import diagnose_dtypes

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore"),  # What torch thinks of its samples.
]

HALVES = (torch.bfloat16, torch.float16)
# Operator of the database -> why its refusal is none of half precision that the table could know.
OTHERS = {
    "as_strided": "the samples have offsets that fit no shorter elements",
    "matmul": "a sample mixes dtypes",
    "_efficient": "needs a GPU",
    "_flash": "needs a GPU",
    "pdist": "one point has no distance, which is not refused",
    "one_hot": "takes no floating-point number",
    "bincount": "takes no floating-point number",
    "rrelu": "float16 alone, and in training alone",
}


class Call(torch.nn.Module):
    def __init__(self, operator, sample):
        super().__init__()
        self.operator, self.sample = operator, sample

    def forward(self, *tensors):
        given = iter(tensors)
        arguments = (self.sample.input, *self.sample.args), self.sample.kwargs
        args, kwargs = _pytree.tree_map(
            lambda x: next(given) if isinstance(x, torch.Tensor) else x, arguments
        )
        return self.operator(*args, **kwargs)

    @property
    def tensors(self):
        leaves = _pytree.tree_leaves(((self.sample.input, *self.sample.args), self.sample.kwargs))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def halved(dtype):
    def convert(value):
        is_float = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.detach().to(dtype) if is_float else value

    return convert


def calls():
    """Each operator with its first samples, in half precision, where a sample is refused."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        samples = list(itertools.islice(info.sample_inputs("cpu", torch.float32), 2))
        for dtype in HALVES:
            found = [Call(info.op, sample.transform(halved(dtype))) for sample in samples]
            # Of no elements, nothing is computed, and nothing refused.
            full = [call for call in found if all(tensor.numel() for tensor in call.tensors)]
            refused = [is_refused(call) for call in full]
            if any(refused) and not any(name in info.name for name in OTHERS):
                yield from ((info.name, *each) for each in zip(full, refused, strict=True))


def is_refused(call):
    try:
        call(*call.tensors)
    except Exception:  # Of several kinds.
        return True
    return False


@pytest.fixture(autouse=True)
def no_logs():
    """torch logs each fake kernel that refuses."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@torch.no_grad()
def test_half_precision_errors_match_the_cpu_kernels():
    wrong, count = [], 0
    for name, call, is_no in calls():
        try:
            program = torch.export.export(call, call.tensors)
        except Exception:  # An export that fails cannot pass.
            continue
        count += 1
        if is_no != bool(list(diagnose_dtypes(program, walk(program)))):
            wrong.append((name, call.tensors[0].dtype, is_no))

    assert wrong == []
    assert count > 100
