"""A short run of the fuzzer, and blind mutations where it is not installed."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys

import pytest

from tests.fuzz.archive_target import TARGETS, seeds

MUTATIONS = 1500
SECONDS = 20
MARKS = [b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"[[[["]


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
                content[place : place + 4] = dice.choice(
                    [b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"[[[["]
                )
    return bytes(content)


@pytest.mark.parametrize("target", TARGETS)
def test_blind_mutations(target):
    dice = random.Random(4)
    for seed in seeds(target):
        TARGETS[target](seed)
        for _ in range(MUTATIONS):
            TARGETS[target](mutated(seed, dice))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_guided_mutations(target, tmp_path):
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: the extra `fuzz` brings it")
    command = [sys.executable, "-m", "tests.fuzz.fuzz_archive", target, f"-max_total_time={SECONDS}"]
    paths = os.pathsep.join(path for path in sys.path if path)

    process = subprocess.run(
        [*command, f"-artifact_prefix={tmp_path}/"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=20 * SECONDS,
    )

    assert process.returncode == 0, process.stderr[-3000:]
    assert "Done" in process.stderr
