"""Where equal blocks are: on several devices, inside of blocks of several kinds, with hooks of their own."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch import nn

import fakexport as fe
from tests.unit.capture.reused_blocks import DEPTH, INPUTS, Block, Model, check

ON_EACH = 8


class WithTable(Model):
    """As language models: every block takes a tensor that was made once, on the first device."""

    def forward(self, x):
        table = torch.arange(x.shape[-1], device=x.device) / 8
        for block in self.blocks:
            x = block(x, table)
        return x


class Turns(Block):
    def forward(self, x, table):
        return super().forward(x) * table


class AsksForDevice(Block):
    """The trace of one device would be wrong on another one."""

    def forward(self, x, table):
        return super().forward(x) * (1 + x.device.index) + table


@pytest.mark.parametrize("kind", [Turns, AsksForDevice])
def test_blocks_are_reused_on_each_of_several_devices(kind, reports, traced_again):
    fe.export(
        lambda: WithTable([kind(at) for at in range(2 * ON_EACH)]).eval(),
        INPUTS,
        target="2xH100",
        device_map={f"blocks.{at}": f"cuda:{at // ON_EACH}" for at in range(2 * ON_EACH)},
        verify_reuse=True,
    )

    assert not traced_again()
    assert reports[0].replayed >= ON_EACH, reports[0].report()


class WithTwoTables(Model):
    """As models with windows in some of their layers: those take another table than the others."""

    def __init__(self, blocks):
        super().__init__(blocks)
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x)
        tables = torch.arange(x.shape[-1], device=x.device) / 8, torch.ones(x.shape[-1], device=x.device)
        for at, block in enumerate(self.blocks):
            x = block(x, tables[at == 5])
        return x


def test_a_tensor_that_another_block_moves_does_not_make_blocks_differ(reports, traced_again):
    fe.export(
        lambda: WithTwoTables([Turns(at) for at in range(12)]).eval(),
        INPUTS,
        target="2xH100",
        device_map={"first": "cuda:0", "blocks": "cuda:1"},
        verify_reuse=True,
    )

    assert not traced_again()
    assert reports[0].replayed >= 6, reports[0].report()


PARTS = ("one", "two")


class MovesItself(nn.Module):
    """Parts on two devices in one block: what the second one takes is moved while the block runs."""

    def __init__(self, at):
        super().__init__()
        self.one = Block(at)
        self.two = Block(at)

    def forward(self, x):
        y = self.one(x)
        return self.two(y).to(x.device) + y


def test_blocks_that_are_on_two_devices_are_what_they_are_when_traced():
    fe.export(
        lambda: Model([MovesItself(at) for at in range(9)]).eval(),
        INPUTS,
        target="2xH100",
        device_map={
            f"blocks.{at}.{part}": f"cuda:{part == 'two':d}" for at in range(9) for part in ("one", "two")
        },
        verify_reuse=True,
    )


class Dense(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.attention = Block(at)

    def forward(self, x):
        return self.attention(x)


class Routed(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.attention = Block(at)
        self.gate = nn.Linear(8, 8)

    def forward(self, x):
        return self.attention(x) * self.gate(x)


def test_a_part_that_blocks_of_two_kinds_have_is_no_reason_to_trace_twice(reports, traced_again):
    check(Model([Dense(at) if at < 3 else Routed(at) for at in range(11)]).eval())

    assert not traced_again()
    assert reports[0].report()["Routed"][1] >= 4, reports[0].report()


@functools.lru_cache
def is_at_least(version, *, exactly=False):
    return version >= "2"


class AsksForVersion(Block):
    def forward(self, x):
        return super().forward(x) if is_at_least("2", exactly=False) else x


def test_what_a_cached_function_keeps_of_texts_is_known(reports):
    check(Model([AsksForVersion(at) for at in range(DEPTH)]).eval())

    assert reports[0].replayed >= DEPTH - 5, reports[0].report()


def doubled(module, args, result):
    return result * 2


def test_equal_hooks_are_equal_whenever_they_were_registered(reports):
    model = Model([Block(at) for at in range(DEPTH)]).eval()
    for block in model.blocks:
        block.register_forward_hook(doubled)

    check(model)

    assert reports[0].replayed >= DEPTH - 5, reports[0].report()


class CountsHooks(Block):
    def forward(self, x):
        return super().forward(x) * (1 + next(iter(self._forward_hooks)) % 3)


def test_code_that_reads_the_numbers_of_hooks_sees_its_own():
    model = Model([CountsHooks(at) for at in range(DEPTH)]).eval()
    for block in model.blocks:
        block.register_forward_hook(doubled)

    check(model)


class AsksForSignature(Block):
    """As the attention of Flux: `inspect.signature` in one line, `torch.stack` in another."""

    def forward(self, x):
        named = inspect.signature(self.up.forward).parameters
        return super().forward(x) + torch.stack([x, x]).sum(0) * len(named)


class AsksForCallers(Block):
    """`stack` is asked of torch too."""

    def forward(self, x):
        return torch.stack([super().forward(x)])[0] * (len(inspect.stack(0)) > 0)


class AsksForCallersByName(Block):
    def forward(self, x):
        return torch.stack([super().forward(x)])[0] * (len(getattr(inspect, "stack")(0)) > 0)  # noqa: B009


def test_an_attribute_of_torch_is_not_taken_for_one_of_inspect(reports):
    check(Model([AsksForSignature(at) for at in range(DEPTH)]).eval())

    assert reports[0].replayed >= DEPTH - 5, reports[0].report()


@pytest.mark.parametrize("block", [AsksForCallers, AsksForCallersByName])
def test_a_block_that_asks_for_its_callers_is_traced_every_time(block, reports):
    check(Model([block(at) for at in range(DEPTH)]).eval())

    (told,) = (found for name, found in reports[0].report().items() if name == block.__name__)
    assert told[1] == 0, told


NOTHING = object()


class ReadsByText(Block):
    held = NOTHING

    def forward(self, x):
        found = getattr(type(self), "".join(("he", "ld")))
        return super().forward(x) * (found[0] if isinstance(found, tuple) else 1)


class ReplacesWhatIsHeld(Model):
    """What the class holds is nothing that a walk looks at, but for one block."""

    def forward(self, x):
        for at, block in enumerate(self.blocks):
            ReadsByText.held = (7,) if at == DEPTH - 3 else NOTHING
            x = block(x)
        return x


def test_what_a_class_holds_is_looked_at_again_once_it_is_replaced():
    check(ReplacesWhatIsHeld([ReadsByText(at) for at in range(DEPTH)]).eval())


class NamesTheFunctionBefore(Block):
    """Its first node has the name of a function of torch that ran before it."""

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            x = x + 1
        return super().forward(x)


class EndsDifferently(Model):
    def forward(self, x):
        for at, block in enumerate(self.blocks):
            x = block(x.sin() if at % 2 else x.cos())
        return x


def test_a_node_may_have_the_name_of_what_ran_before_the_block():
    check(EndsDifferently([NamesTheFunctionBefore(at) for at in range(DEPTH)]).eval())


class Resolutions(Model):
    """The second half of the blocks gets more rows, so that no late call is like the early ones."""

    def forward(self, x):
        for at, block in enumerate(self.blocks):
            x = block(torch.cat([x, x]) if at == DEPTH else x)
        return x


def test_a_trace_ends_early_where_nothing_will_prove_what_was_reused(reports):
    check(Resolutions([Block(at) for at in range(2 * DEPTH)]).eval())

    ((calls, replayed, _),) = reports[0].report().values()
    assert replayed > 0
    assert calls == DEPTH + 1, reports[0].report()


def test_blocks_of_other_sizes_are_reused_too_where_a_late_call_proves_them(reports):
    class LargerOnce(Model):
        def forward(self, x):
            for at, block in enumerate(self.blocks):
                x = block(torch.cat([x, x])).narrow(0, 0, 3) if at == 1 else block(x)
            return x

    check(LargerOnce([Block(at) for at in range(2 * DEPTH)]).eval())

    assert reports[0].replayed >= 3, reports[0].report()
