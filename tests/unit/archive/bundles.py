"""A language model in two methods that share its weights, for the tests of bundles."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe


class Speller(nn.Module):
    """Tied embeddings, a buffer that counts, a constant, and no forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.look = nn.Linear(3, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.arange(1.0, 5.0), persistent=False)


class Encode(nn.Module):
    """Takes an image of three numbers."""

    def __init__(self, model: Speller) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.model.norm(self.model.look(image)) * self.model.scale


class Decode(nn.Module):
    """Takes token ids and what `Encode` gave."""

    def __init__(self, model: Speller) -> None:
        super().__init__()
        self.net = model

    def forward(self, ids: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return self.net.head((self.net.norm(self.net.embed(ids)) + state) * self.net.scale)


PREFIXES = {"encode": ("", "model."), "decode": ("", "net.")}
IMAGE, IDS, STATE = torch.linspace(0, 1, 6).reshape(2, 3), torch.tensor([1, 7]), torch.ones(2, 4)


def speller(seed: int = 0) -> Speller:
    torch.manual_seed(seed)
    return Speller().eval()


def fakes(topology: str = "cpu") -> dict[str, ExportedProgram]:
    """Each method exported by itself, without weights."""
    return {
        "encode": fe.export(lambda: Encode(speller()), (IMAGE,), target=topology),
        "decode": fe.export(lambda: Decode(speller()), (IDS, STATE), target=topology),
    }


def live(model: Speller) -> dict[str, ExportedProgram]:
    """Both methods of one model, with its own weights."""
    return {
        "encode": torch.export.export(Encode(model), (IMAGE,)),
        "decode": torch.export.export(Decode(model), (IDS, STATE)),
    }


def assert_gives(bundle: fe.Bundle, model: Speller) -> None:
    with torch.no_grad():
        assert torch.equal(bundle["encode"].module()(IMAGE), Encode(model)(IMAGE))
        assert torch.equal(bundle["decode"].module()(IDS, STATE), Decode(model)(IDS, STATE))
