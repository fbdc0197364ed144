"""What `load_state_dict` runs, and that nothing else of a module takes tensors from a state dict."""

from __future__ import annotations

import torch
from torch import nn

from fakexport._torch.tracing.state_dict_hooks import load_steps, nothing_taken, other_loading


class Loads(nn.Module):
    """Has one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.ran: list[str] = []
        self._register_load_state_dict_pre_hook(self.first)
        self.register_load_state_dict_pre_hook(lambda module, *args: module.ran.append("second"))
        self.register_load_state_dict_post_hook(self.last)

    def first(self, state_dict: object, prefix: str, *args: object) -> None:
        self.ran.append("first")

    @staticmethod
    def last(module: nn.Module, keys: object) -> None:
        module.ran.append("last")  # type: ignore[union-attr, operator]

    def _load_from_state_dict(self, *args: object) -> None:
        self.ran.append("method")
        super()._load_from_state_dict(*args)  # type: ignore[arg-type]


def test_the_steps_are_what_load_state_dict_runs() -> None:
    module = Loads()

    module.load_state_dict({"weight": torch.ones(2)})

    assert sorted(module.ran) == ["first", "last", "method", "second"]
    module.ran.clear()
    before = vars(nn.Module)["_load_from_state_dict"]
    with nothing_taken():
        for _, step in load_steps(module):
            step({"weight": torch.zeros(2)}, "")
    assert sorted(module.ran) == ["first", "method", "second"]
    assert module.weight.tolist() == [1, 1]
    assert list(other_loading(module)) == ["last"]
    assert vars(nn.Module)["_load_from_state_dict"] is before


def test_modules_of_torch_have_no_steps() -> None:
    for module in (nn.BatchNorm1d(2), nn.MultiheadAttention(2, 1), nn.LSTM(2, 2)):
        assert load_steps(module) == []
        assert list(other_loading(module)) == []
