"""What `fakexport._torch.seen_operators` relies on."""

from __future__ import annotations

from typing import Any

import torch

from fakexport._torch.seen_operators import SeenOperators


def test_each_operator_is_seen_with_the_very_tensors_that_it_takes_and_gives() -> None:
    seen: list[tuple[str, Any, Any]] = []
    one, other = (torch.empty(2, 3, device="meta") for _ in range(2))

    with SeenOperators(lambda operator, args, result: seen.append((operator.name(), args, result))):
        stacked = torch.stack([one, other])
        left, right = stacked.transpose(1, 2).contiguous().chunk(2)
    torch.stack([one, other])

    names = [name for name, _, _ in seen]
    assert names == ["aten::stack", "aten::transpose.int", "aten::clone", "aten::split.Tensor"]
    assert seen[0][1][0][0] is one
    assert seen[0][2] is stacked is seen[1][1][0]
    assert seen[3][2][0] is left
    assert seen[3][2][1] is right
