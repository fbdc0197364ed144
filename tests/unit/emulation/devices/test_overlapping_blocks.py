"""Blocks that overlap in threads and tasks: each has its topology, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
import torch
from torch import nn
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

import fakexport as fe
from fakexport.emulation.devices.emulation import emulate, emulated_topology

from .test_emulation import attributes, changes

SPECS = ("cpu", "8xH100", "T4", "xpu", "mps", "MI300X", "2xA100-40GB", "cpu+H100")
ROUNDS = 10


def answers():
    """What torch says about its devices here."""
    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    accelerator = torch.accelerator.current_accelerator()
    return (
        name,
        torch.cuda.device_count(),
        torch.xpu.device_count(),
        torch.backends.mps.is_available(),
        torch.version.hip is not None,
        str(accelerator),
        str(emulated_topology() and emulated_topology().spec),
    )


def made(device):
    with FakeTensorMode():
        return torch.ones(2, device=device).to(device).device.type


@pytest.fixture(scope="module")
def alone():
    """The answers of each topology where no other block is open."""
    found = {}
    for spec in SPECS:
        with emulate(spec):
            found[spec] = answers()
    return found


def test_two_blocks_may_end_in_the_order_in_which_they_began_and_in_another_thread(alone):
    before, outside = attributes(), answers()
    first, second = emulate("8xH100"), emulate("T4")

    first.__enter__()
    second.__enter__()
    thread = threading.Thread(target=first.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    in_second = answers()
    cell, state = torch.ops.aten._thnn_fused_gru_cell, (3, 4)
    with FakeTensorMode(), torch.device("cuda"):
        assert cell(torch.empty(3, 12), torch.empty(3, 12), torch.empty(state))[0].shape == state
        torch.optim.SGD([torch.nn.Parameter(torch.empty(state))], fused=True).step()
    second.__exit__(None, None, None)

    assert in_second == alone["T4"]
    assert answers() == outside
    assert changes(before) == []
    assert cell.default not in fake_impls.op_implementations_dict


def test_threads_whose_blocks_overlap_have_a_topology_each(alone):
    before, outside = attributes(), answers()
    meet = threading.Barrier(len(SPECS))
    wrong = []

    def work(number):
        try:
            for turn in range(ROUNDS):
                spec = SPECS[(number + turn) % len(SPECS)]
                meet.wait(60)
                with emulate(spec) as topology:
                    inside = answers()
                    device = topology.default_device.partition(":")[0]
                    if inside != alone[spec] or made(device) != device:
                        wrong.append((spec, inside))
                if answers() != outside:
                    wrong.append(("outside", answers()))
        except BaseException as error:
            wrong.append(error)
            meet.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(SPECS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert answers() == outside
    assert changes(before) == []


def test_tasks_whose_blocks_overlap_have_a_topology_each(alone):
    before, outside = attributes(), answers()

    async def work(number):
        for turn in range(ROUNDS):
            spec = SPECS[(number + turn) % len(SPECS)]
            with emulate(spec):
                for _ in range(1 + (number * turn) % 3):  # So that the blocks end in another order.
                    await asyncio.sleep(0)
                    assert answers() == alone[spec]
            assert answers() == outside

    async def together():
        await asyncio.gather(*(work(number) for number in range(len(SPECS))))

    asyncio.run(together())

    assert answers() == outside
    assert changes(before) == []


def test_one_object_in_several_threads():
    block, meet, seen = emulate("8xH100"), threading.Barrier(2), []

    def work():
        with block:
            meet.wait(60)
            seen.append(torch.cuda.device_count())
            meet.wait(60)
        seen.append(emulated_topology())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == [8, 8, None, None]


def test_another_thread_sees_the_real_devices_and_a_copied_context_sees_the_virtual_ones():
    outside, seen = answers(), {}

    with emulate("8xH100"):
        inside = answers()
        for name, run in (("plain", lambda f: f()), ("copied", contextvars.copy_context().run)):
            thread = threading.Thread(target=run, args=(lambda name=name: seen.update({name: answers()}),))
            thread.start()
            thread.join()

    assert seen == {"plain": outside, "copied": inside}


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) * torch.cuda.device_count()


@pytest.mark.slow
def test_exports_in_threads_are_those_of_one_thread():
    specs = ("cpu", "8xH100", "T4") * 2
    expected = {spec: str(fe.export(Branching, (torch.ones(2, 4),), target=spec).graph) for spec in specs}
    fe.export(Branching, (torch.ones(2, 4),), strict=True)  # torch imports modules on first use
    before = attributes()
    found, errors = [], []

    def work(spec, strict):
        try:
            program = fe.export(Branching, (torch.ones(2, 4),), target=spec, strict=strict)
            found.append((spec, str(program.graph)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(spec, i == 1)) for i, spec in enumerate(specs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(found) == len(specs)
    assert all(graph == expected[spec] for spec, graph in found)
    assert changes(before) == []
