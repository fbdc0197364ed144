"""What fakexport does where torch lacks one of the private names that it uses."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from fakexport._torch import patching
from fakexport._torch.speed import node_stack_traces, remembered_metadata, switch
from fakexport._torch.speed.fast_paths import fast_paths
from fakexport.error import (
    MissingInTorch,
    is_missing_for_speed,
    missing_in_torch,
    raise_missing,
)
from tests.torch_facts.missing_names import SUFFIX, Outcomes, private_names

EXAMPLE = ["check", "examples/mlp.py:hybrid", "--target", "cpu+H100", "--no-progress"]
NAMES = private_names()
# Names that saved time and whose loss stopped every export once; and one of each kind that is needed.
SPEED = {"_STACK_TRACE_ANCHORS", "_replacements_version_counter", "_expr", "_ProxyTensor", "_strip_root"}
NEEDED = {"_assert_scalar", "_AttrProxy", "torch._dynamo.exc"}


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    with Outcomes() as running:
        yield running


@pytest.fixture(scope="module")
def answer(outcomes: Outcomes) -> list[str]:
    done = outcomes.of("_no_such_name", frozenset(), EXAMPLE)
    assert done.returncode == 0
    return plain(done.stdout)


def plain(text: str) -> list[str]:
    """The lines without times and sizes, which differ in each run, and without the spaces of tables."""
    return [" ".join(line.split()) for line in re.sub(r"[\d.]+ (s|[KMG]iB)\b", "#", text).splitlines()]


def cases() -> Iterator[object]:
    for name in NAMES:
        level = pytest.mark.slow if name in SPEED | NEEDED else pytest.mark.exhaustive
        yield pytest.param(name, marks=level)


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process with torch")
@pytest.mark.parametrize("name", [*cases()])
def test_without_a_name_check_answers_the_same_or_names_it_in_one_line(outcomes, answer, name):
    done = outcomes.of(name, NAMES[name], EXAMPLE)

    if done.returncode == 0:
        assert plain(done.stdout) == answer
    else:
        assert name not in SPEED
        assert done.returncode == 2
        said = [line for line in done.stderr.splitlines() if line]
        assert len(said) == 1
        assert said[0].startswith("error: ")
        assert name.rpartition(".")[2] in said[0]
        assert "AttributeError" not in said[0]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks a process with torch")
@pytest.mark.parametrize("name", sorted(SPEED))
def test_without_a_name_that_saves_time_blocks_export_the_same(outcomes, tmp_path, name):
    file = tmp_path / "deep.py"
    file.write_text(
        "import torch\n"
        "class Block(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        with torch.no_grad():\n"
        "            mean = x.mean(-1, keepdim=True)\n"
        "        return torch.cat([super().forward(x - mean), x], 1)[:, : x.shape[1]]\n"
        "def factory():\n"
        "    return torch.nn.Sequential(*[Block(8, 8) for _ in range(3)]), (torch.randn(2, 5, 8),)\n"
    )
    command = ["check", f"{file}:factory", "--target", "H100", "--dynamic", "auto", "--no-progress"]
    whole = outcomes.of("_no_such_name", frozenset(), command)

    done = outcomes.of(name, NAMES[name], command)

    assert (whole.returncode, done.returncode) == (0, 0)
    assert plain(done.stdout) == plain(whole.stdout)


def raised(source: str, path: Path) -> Exception:
    try:
        exec(compile(source, str(path), "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("it raises nothing")


HERE = Path(patching.__file__).parent


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("import torch; torch._C._gone", "tracing/a.py"),
        ("from torch._dynamo import _gone", "speed/a.py"),
        ("import torch._gone", "a.py"),
        ("import torch; torch.ops.aten._gone", "kernels/a.py"),
        ("import ctypes; ctypes.CDLL(None)._gone", "emulation/a.py"),
        ("import torch; torch.backends.cudnn._gone", "emulation/a.py"),
        ("import torch; torch.nn.ReLU()._gone", "tracing/a.py"),
        ("from fakexport._torch import patching; patching.in_force(patching, '_gone')", "speed/a.py"),
    ],
)
def test_a_missing_name_is_one_line_with_the_version(source, place):
    error = raised(source, HERE / place)

    found = missing_in_torch(error)

    assert found is not None
    assert re.fullmatch(
        r"torch \S+ does not have the private API that fakexport \S+ needs: .*_gone.*", str(found)
    )
    assert is_missing_for_speed(error) == place.startswith("speed")
    with pytest.raises(MissingInTorch):
        raise_missing(error)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("object()._gone", Path("model.py")),  # The user's own.
        ("import torch; torch.gone", HERE / "speed" / "a.py"),
        ("raise ValueError('_gone')", HERE / "speed" / "a.py"),
    ],
)
def test_other_errors_are_left_alone(source, path):
    error = raised(source, path)

    assert missing_in_torch(error) is None
    assert not is_missing_for_speed(error)
    raise_missing(error)


def test_a_fast_path_without_its_name_is_left_out(monkeypatch):
    calls = []
    monkeypatch.setattr(node_stack_traces, "quick_stack_traces", lambda: raise_from(HERE / "speed" / "a.py"))
    monkeypatch.setattr(remembered_metadata, "remembered_metadata", lambda: calls.append(1) or nullcontext())

    with fast_paths("node_stack_traces", "remembered_metadata"):
        assert calls == [1]


def raise_from(path: Path) -> None:
    raise raised("import torch; torch._C._gone", path)


def test_a_trace_is_repeated_once_without_fast_paths(monkeypatch):
    monkeypatch.setattr(switch, "_is_broken", False)
    monkeypatch.delenv("FAKEXPORT_SPEED", raising=False)
    error = raised("import torch; torch._C._gone", HERE / "speed" / "a.py")

    assert not switch.turned_off(ValueError("_gone"))
    assert switch.is_fast()
    assert switch.turned_off(error)
    assert not switch.is_fast()
    assert not switch.turned_off(error)


def test_an_error_that_led_to_another_is_found():
    cause = raised("import torch; torch._gone", HERE / "tracing" / "a.py")
    error = RuntimeError("torch wraps it")
    error.__cause__ = cause

    assert "_gone" in str(missing_in_torch(error))


def test_every_private_name_is_found():
    assert {*SPEED, *NEEDED} <= NAMES.keys()
    assert all(Path(path).is_file() for paths in NAMES.values() for path in paths)
    assert not any(name.endswith(SUFFIX) for name in NAMES)
