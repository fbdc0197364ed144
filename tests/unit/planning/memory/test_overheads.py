"""What a process takes besides tensors: by device, with the figures of torch's source."""

import pytest

from fakexport.emulation.devices import profile_named
from fakexport.planning.memory import overheads
from fakexport.planning.memory.allocator import AllocatorPeak
from fakexport.planning.memory.liveness import DevicePeak
from fakexport.planning.memory.overheads import allocator_overhead

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H100", ("cuBLAS workspace", 32 * MIB, 32 * MIB)),
        ("A100", ("cuBLAS workspace", 8_519_680, 8_519_680)),
        ("T4", ("cuBLAS workspace", 8_519_680, 8_519_680)),
        ("MI300X", ("hipBLAS workspace", 128 * MIB, 204 * MIB)),
        ("MI250X", ("hipBLAS workspace", 32 * MIB, 108 * MIB)),
    ],
)
def test_the_workspace_is_that_of_the_device_and_torch_counts_it(name, expected):
    workspace, context = overheads(profile_named(name), multiplies=True)

    assert (workspace.name, workspace.bytes.lower, workspace.bytes.upper) == expected
    assert (workspace.is_allocated, context.is_allocated) == (True, False)


def test_a_program_without_products_needs_no_workspace():
    (context,) = overheads(profile_named("H100"), multiplies=False)

    assert context.name == "CUDA context"
    assert 0 < context.bytes.lower < context.bytes.upper


@pytest.mark.parametrize("name", ["cpu", "M3-Max"])
def test_a_device_that_shares_the_memory_of_the_host_has_none(name):
    assert overheads(profile_named(name), multiplies=True) == ()


def test_the_allocator_is_told_as_what_it_takes_beyond_what_it_was_asked_for():
    peak = DevicePeak("cuda:0", 100 * MIB, 90 * MIB, {}, None, ())
    default, growing = (AllocatorPeak(101 * MIB, reserved * MIB) for reserved in (150, 140))

    found = allocator_overhead(peak, default, growing, workspace_bytes=32 * MIB)

    assert (found.bytes.lower, found.bytes.upper) == (8 * MIB, 18 * MIB)
