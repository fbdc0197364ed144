"""A dispatch mode sees the kernels that a function of torch runs, and what it returns is taken."""

import torch
from torch._higher_order_ops.scan import scan

from fakexport._torch.kernel_observer import kernels_observed


def test_every_kernel_of_a_linear_layer_is_seen():
    seen = []

    def observe(kernel, args, kwargs, run):
        seen.append(str(kernel))
        return run(*args, **kwargs)

    with torch.no_grad(), kernels_observed(observe):
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))

    assert seen == ["aten.ones.default"] * 3 + ["aten.t.default", "aten.addmm.default"]


def test_the_branch_that_a_condition_takes_is_seen_and_other_higher_order_operators_run_unseen():
    seen = []

    def observe(kernel, args, kwargs, run):
        seen.append(str(kernel))
        return run(*args, **kwargs)

    def step(total, value):
        return total + value, total * value

    value = torch.ones(3)
    with torch.no_grad(), kernels_observed(observe):
        cosine = torch.cond(value.sum() < 0, torch.sin, torch.cos, (value,))
        total, _ = scan(step, torch.zeros(3), torch.ones(2, 3), dim=0)

    assert "aten.cos.default" in seen
    assert "aten.sin.default" not in seen
    assert torch.equal(cosine, value.cos())
    assert torch.equal(total, torch.full((3,), 2.0))


def test_what_the_observer_returns_is_the_result():
    one = torch.ones(())

    with kernels_observed(lambda kernel, args, kwargs, run: run(args[0], 3)):
        product = one * 2

    assert product.item() == 3


def test_each_operator_is_seen_with_the_very_tensors_that_it_takes_and_gives():
    seen = []
    one, other = (torch.empty(2, 3, device="meta") for _ in range(2))

    def note(kernel, args, kwargs, run):
        result = run(*args, **kwargs)
        seen.append((kernel.name(), args, result))
        return result

    with kernels_observed(note):
        stacked = torch.stack([one, other])
        left, right = stacked.transpose(1, 2).contiguous().chunk(2)
    torch.stack([one, other])

    names = [name for name, _, _ in seen]
    assert names == ["aten::stack", "aten::transpose.int", "aten::clone", "aten::split.Tensor"]
    assert seen[0][1][0][0] is one
    assert seen[0][2] is stacked is seen[1][1][0]
    assert seen[3][2][0] is left
    assert seen[3][2][1] is right
