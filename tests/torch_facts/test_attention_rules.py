"""The rules for attention backends that CUDA builds of torch have, which `attention_backend` repeats."""

from __future__ import annotations

import mmap

import pytest

from fakexport._torch.emulation.attention_backend import _RELEASE
from fakexport._torch.emulation.device_guard import library_path

LIBRARY = library_path("torch_cuda")

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="a CPU build of torch has no rules for CUDA")


@pytest.fixture(scope="module")
def library():
    with LIBRARY.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped


@pytest.mark.parametrize(
    ("name", "since"),
    [
        (b"check_cudnn_dropout", (2, 12)),
        (b"cuDNN SDPA does not support batch size or num_heads greater than", (2, 13)),
        (b"attention on sm80 or newer requires q, k, and v storage offsets", (2, 13)),
        (b"check_cudnn_d256_bprop_head_dim", (2, 14)),
        # Template arguments: whether the backend supports groups, needs equal heads, supports one head.
        (b"check_batch_size_and_num_heads_denseILb1ELb1ELb1EEE", (2, 14)),
        (b"Flash attention does not support batch size or num_heads greater than", (2, 15)),
    ],
)
def test_a_rule_exists_since_a_release(name, since, library):
    assert (library.find(name) >= 0) is (since <= _RELEASE)


def test_before_torch_2_14_the_efficient_kernel_supports_no_groups(library):
    assert (library.find(b"check_batch_size_and_num_heads_denseILb0ELb1EEE") >= 0) is (_RELEASE < (2, 14))
