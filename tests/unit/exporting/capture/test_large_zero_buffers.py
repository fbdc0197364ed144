"""A large buffer of zeros takes no memory, unless something was written into it while it was built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import nn

import fakexport as fe
from fakexport.exporting.capture.constants import LARGEST_STATE_BYTES

SIZE = 520
ROWS = torch.tensor([1, 3])


def _through_a_view(state: torch.Tensor) -> None:
    state.view(-1)[::7] = 3.0


def _filled_row(state: torch.Tensor) -> None:
    state[2].fill_(4.0)


def _mask(state: torch.Tensor) -> None:
    state[torch.arange(SIZE) % 3 == 0] = 2.0


def _set(index: object, value: float) -> Callable[[torch.Tensor], None]:
    return lambda state: state.__setitem__(index, value)


WAYS: Mapping[str, Callable[[torch.Tensor], object]] = {
    "a slice of everything": _set(slice(None), 1.5),
    "an index": _set(3, 2.5),
    "a slice": _set((slice(2, 9), slice(4, None, 3)), 0.5),
    "a mask": _mask,
    "index_copy_": lambda state: state.index_copy_(0, ROWS, torch.ones(2, SIZE)),
    "index_put_": lambda state: state.index_put_((ROWS, ROWS), torch.ones(2)),
    "copy_": lambda state: state.copy_(torch.arange(float(SIZE))),
    "copy_ of the data": lambda state: state.data.copy_(torch.arange(float(SIZE))),
    "other data": lambda state: setattr(state, "data", torch.ones(SIZE, SIZE)),
    "fill_": lambda state: state.fill_(7.0),
    "fill_ of a row": _filled_row,
    "scatter_": lambda state: state.scatter_(1, torch.full((SIZE, 1), 5), 6.0),
    "a view": _through_a_view,
    "add_": lambda state: state.add_(0.25),
    "out=": lambda state: torch.add(torch.ones(SIZE, SIZE), 1, out=state),
    "nn.init": lambda state: nn.init.eye_(state),
}


class Holder(nn.Module):
    """Writes a row of each buffer in each call, and returns all of them."""

    def __init__(self, ways: Iterable[Callable[[torch.Tensor], object]]) -> None:
        super().__init__()
        self.count = 0
        for self.count, write in enumerate(ways, 1):
            self.register_buffer(f"state_{self.count}", torch.zeros(SIZE, SIZE), persistent=False)
            write(self.get_buffer(f"state_{self.count}"))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        states = [self.get_buffer(f"state_{number}") for number in range(1, self.count + 1)]
        for state in states:
            state[0].add_(x)
        return [state * 2 for state in states]


def differing(ways: Mapping[str, Callable[[torch.Tensor], object]], path: Path) -> list[str]:
    """Return what differs from eager mode in two calls, of the program or of one that was saved."""
    x = torch.ones(SIZE)
    program = fe.export(lambda: Holder(ways.values()), (x,))
    fe.save(program, path)
    eager = Holder(ways.values())
    bound = [fe.bind(one, {}).module() for one in (program, fe.load(path))]
    found = []
    for _ in range(2):
        expected = eager(x)
        for one in bound:
            results = zip(ways, one(x), expected, strict=True)
            found += [way for way, result, own in results if not torch.equal(result, own)]
    return found


def test_what_is_written_while_they_are_built_is_bound(tmp_path: Path) -> None:
    assert not differing(WAYS, tmp_path / "program.pt2")

    assert (tmp_path / "program.pt2").stat().st_size > len(WAYS) * LARGEST_STATE_BYTES


def test_zeros_that_nothing_wrote_take_no_place_in_an_archive(tmp_path: Path) -> None:
    """The form that would lose what the test above writes."""
    assert not differing({"nothing": lambda state: None}, tmp_path / "program.pt2")

    assert (tmp_path / "program.pt2").stat().st_size < LARGEST_STATE_BYTES < SIZE * SIZE * 4
