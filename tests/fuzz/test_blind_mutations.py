"""Mutations without a guide, for where atheris is not installed; `make fuzz` is the real thing."""

from __future__ import annotations

import io
import random
import zipfile

import pytest
import torch

from fakexport._torch.tracing.script_objects import pickled_object
from tests.fuzz.corpus import corpus
from tests.fuzz.targets import TARGETS
from tests.torchbind import LIBRARY, foo, queue

MUTATIONS = {
    "archive": 400,
    "manifest": 1500,
    "program": 60,
    "safetensors": 1500,
    "index": 1500,
    "object": 6000,
    "toml": 3000,
    "yaml": 1000,
    "adapter": 3000,
}
"""Per input, for about the same time."""
MARKS = [b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"[[[["]

pytestmark = pytest.mark.filterwarnings("ignore")


def mutated(seed: bytes, dice: random.Random) -> bytes:
    content = bytearray(seed)
    for _ in range(dice.randint(1, 6)):
        place = dice.randrange(len(content) + 1)
        match dice.randrange(5):
            case 0 if place < len(content):
                content[place] ^= 1 << dice.randrange(8)
            case 1:
                content[place : place + dice.randint(1, 40)] = b""
            case 2:
                start = dice.randrange(len(content) + 1)
                content[place:place] = content[start : start + dice.randint(1, 60)]
            case 3:
                content[place : place + 4] = dice.choice([b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f"])
            case _:
                content[place : place + 4] = dice.choice(MARKS)
    return bytes(content)


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["a quarter", "all"])
@pytest.mark.parametrize("target", TARGETS)
def test_blind_mutations(target, share):
    dice = random.Random(4)
    for seed in corpus(target):
        TARGETS[target](seed)
        for _ in range(MUTATIONS[target] // share):
            TARGETS[target](mutated(seed, dice))


@pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")
def test_the_stored_objects_are_what_torch_pickles():
    torch.ops.load_library(LIBRARY)
    tensor = torch.arange(6.0).reshape(2, 3)
    pickled = []
    for held in (foo(3, -4), queue(tensor, tensor.t())):
        with zipfile.ZipFile(io.BytesIO(pickled_object(held))) as record:
            pickled.append(record.read("archive/data.pkl"))

    assert corpus("object") == pickled
