"""The most that a hostile file can ask for, in a process of its own: below 1 GiB and 20 s."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from fakexport.files.container.limits import Limits
from fakexport.files.documents.parsing import memory_estimate
from tests.unit.files.container.forged_zip import Forged, Part

CONFIG = b"model/data/weights/model_weights_config.json"
MEASURE = """
import pathlib, re, sys, time
from fakexport.files.container.reader import read_container
from fakexport.archive.manifest_json import read_manifest
started = time.monotonic()
try:
    with read_container(sys.argv[1]) as container:
        read_manifest(container)
except ValueError as error:
    pass
status = pathlib.Path("/proc/self/status").read_text()
print(time.monotonic() - started, re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])
"""


def config_of(unit: bytes) -> bytes:
    """A payload configuration of as many such values as the limits let through."""
    limits = Limits()
    by_memory = (limits.json_memory_bytes - 10_000) // memory_estimate(unit + b",")
    count = min(by_memory, (limits.json_bytes - 1000) // (len(unit) + 1))
    text = b'{"config":{"a":[' + b",".join([unit] * count) + b"]}}"
    return Forged([Part(CONFIG, text)]).bytes()


def many_entries() -> bytes:
    names = (b"model/extra/" + b"a/" * 14 + b"%06d" % number for number in range(Limits().entries - 10))
    return Forged([Part(name) for name in names]).bytes()


WORST: dict[str, Callable[[], bytes]] = {
    "floats": lambda: config_of(b"1.5"),
    "strings": lambda: config_of(b'"ab"'),
    "wide strings": lambda: config_of('"a\U0001f600"'.encode()),
    "objects": lambda: config_of(b'{"a":1}'),
    "lists": lambda: config_of(b"[[]]"),
    "entries": many_entries,
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("kind", WORST)
def test_the_worst_file_stays_small(tmp_path, kind):
    (tmp_path / "a.pt2").write_bytes(WORST[kind]())
    paths = os.pathsep.join(path for path in sys.path if path)

    process = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "a.pt2")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    seconds, kib = map(float, process.stdout.split())
    print(f"{kind}: {seconds:.1f} s, {kib / 1024:.0f} MiB")

    assert kib < 1 << 20
    assert seconds < 20
