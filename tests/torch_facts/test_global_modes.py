"""What `_torch/global_modes.py` relies on: each of these shows in it, and is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import random

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from fakexport._torch.global_modes import global_modes, random_states


@contextlib.contextmanager
def set_to(put, get, value):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


@contextlib.contextmanager
def variable():
    os.environ["FAKEXPORT_TEST"] = "1"
    try:
        yield
    finally:
        del os.environ["FAKEXPORT_TEST"]


MODES = {
    "gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast in float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "default dtype": lambda: set_to(torch.set_default_dtype, torch.get_default_dtype, torch.float64),
    "default device": lambda: torch.device("meta"),
    "determinism": lambda: set_to(
        torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True
    ),
    "precision": lambda: set_to(
        torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "medium"
    ),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "a dispatch mode": TorchDispatchMode,
    "an environment variable": variable,
    "digits that are printed": lambda: set_to(
        lambda digits: torch.set_printoptions(precision=digits),
        lambda: torch._tensor_str.PRINT_OPTS.precision,
        7,
    ),
    "a parametrization's cache": torch.nn.utils.parametrize.cached,
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_mode_shows(mode):
    before = global_modes()

    with mode():
        assert global_modes() != before

    assert global_modes() == before


def test_a_transform_shows():
    before = global_modes()

    def inside(x):
        assert global_modes() != before
        return x

    torch.vmap(inside)(torch.ones(2))
    torch.func.jvp(inside, (torch.ones(2),), (torch.ones(2),))


def test_a_draw_from_any_generator_shows():
    import numpy as np

    for draw in (random.random, np.random.rand, lambda: torch.rand(1)):
        before = random_states()
        assert random_states() == before
        draw()
        assert random_states() != before
