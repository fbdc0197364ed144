"""A dispatch mode sees the kernels that a function of torch runs, and what it returns is taken."""

import torch

from fakexport._torch.kernel_observer import kernels_observed, unobserved


def test_every_kernel_of_a_linear_layer_is_seen():
    seen = []

    def observe(kernel, args, kwargs, run):
        seen.append(str(kernel))
        return run(*args, **kwargs)

    with torch.no_grad(), kernels_observed(observe):
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
        with unobserved():
            torch.ones(2)

    assert seen == ["aten.ones.default"] * 3 + ["aten.t.default", "aten.addmm.default"]


def test_what_the_observer_returns_is_the_result():
    one = torch.ones(())

    with kernels_observed(lambda kernel, args, kwargs, run: run(args[0], 3)):
        product = one * 2

    assert product.item() == 3
