"""Modules that call an operator of their own on a device have the shapes that the CPU gives."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

import fakexport as fe
from fakexport.emulation.devices import emulate
from tests.architectures.sample import sampled

MOST_SAMPLES = 6
# What a sample fails with for the CPU's sake: it reads a value that fake mode knows of the CPU alone, or its
# arguments hold a tensor that stays there.
OTHER_FAULTS = ("DataDependentOutputException", "FakeTensorDeviceMismatchError")
DEVICES = {"H100": "cuda", "PVC-1550": "xpu", "M2-Ultra": "mps"}
on_each_device = pytest.mark.parametrize("target", DEVICES)


def gru(bias):
    return nn.GRUCell(5, 4, bias=bias), (torch.ones(3, 5), torch.ones(3, 4))


def lstm(bias):
    return nn.LSTMCell(5, 4, bias=bias), (torch.ones(3, 5), (torch.ones(3, 4), torch.ones(3, 4)))


def values(program):
    """Operator, shape and dtype of each node that computes."""
    leaves = (
        (node.target, tree_leaves(node.meta["val"])) for node in program.graph.nodes if "val" in node.meta
    )
    return [(str(target), [(str(leaf.shape), leaf.dtype) for leaf in found]) for target, found in leaves]


@on_each_device
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("factory", [gru, lstm])
def test_a_recurrent_cell_exports_as_it_does_for_the_cpu(factory, bias, target):
    module, args = factory(bias)

    on_cpu = torch.export.export(module, args)
    on_device = fe.export(lambda: factory(bias), target=target)

    assert values(on_device) == values(on_cpu)


@pytest.mark.slow
@pytest.mark.parametrize("factory", [gru, lstm])
def test_a_recurrent_cell_exports_with_a_dynamic_batch_and_decomposes(factory):
    program = fe.export(lambda: factory(True), target="H100", dynamic_shapes="auto")

    with emulate("H100"):
        lowered = program.run_decompositions()

    (size,) = program.range_constraints
    outputs = lowered.graph.output_node().args[0]
    assert {tuple(map(str, output.meta["val"].shape)) for output in outputs} == {(str(size), "4")}


@pytest.mark.parametrize("factory", [gru, lstm])
def test_the_program_of_a_device_computes_what_eager_does(factory):
    torch.manual_seed(0)
    module, args = factory(True)

    program = fe.retarget(fe.export(lambda: factory(True), target="H100"), "cpu")
    bound = fe.bind(program, dict(module.state_dict()))

    torch.testing.assert_close(bound.module()(*args), module(*args))


def outcomes(info, device, training):
    """Of each sample of a module: shapes and dtypes of its outputs and gradients; a text where it failed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        samples = [sample for sample in samples if sample.forward_input is not None][:MOST_SAMPLES]
    mode = FakeTensorMode()

    def fake(value):
        if not isinstance(value, torch.Tensor):
            return value
        made = mode.from_tensor(value.detach())
        with mode:
            made = made.to(device)
        return made.requires_grad_(value.requires_grad)

    def described(sample):
        made, given = (
            (tree_map(fake, call.args), tree_map(fake, call.kwargs))
            for call in (sample.constructor_input, sample.forward_input)
        )
        with mode, torch.device(device):
            module = info.module_cls(*made[0], **made[1]).train(training)
            results = tree_leaves(module(*given[0], **given[1]))
            tensors = [leaf for leaf in results if isinstance(leaf, torch.Tensor)]
            wanting = [leaf for leaf in tensors if leaf.requires_grad]
            if wanting:
                sum(leaf.sum().abs() for leaf in wanting).backward()
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
        return [(tuple(leaf.shape), leaf.dtype) for leaf in (*tensors, *gradients)]

    found = []
    for sample in samples:
        try:
            found.append(described(sample))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize("target", sampled(DEVICES))
def test_every_module_of_torchs_own_database_has_the_cpus_shapes(target, third, monkeypatch):
    from torch.testing._internal.common_modules import module_db  # A second, in each process that collects.

    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    different = []
    compared = 0
    for info in module_db[third::3]:
        for training in (True, False):
            on_cpu = outcomes(info, "cpu", training)
            with emulate(target):
                on_device = outcomes(info, DEVICES[target], training)
            pairs = [
                (cpu, device)
                for cpu, device in zip(on_cpu, on_device, strict=True)
                if not isinstance(cpu, str) and not str(device).startswith(OTHER_FAULTS)
            ]
            compared += len(pairs)
            different += [(info.name, training, *pair) for pair in pairs if pair[0] != pair[1]]

    assert compared > 130
    assert different == []
