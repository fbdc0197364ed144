"""The most that a document of each kind can ask for, in a child: below 1 GiB and 20 s of a processor."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakexport.archive.manifest_json import decode_manifest
from fakexport.archive.weights import read_header
from fakexport.archive.weights.checkpoint_files import read_index
from fakexport.checking.lock import read_lock
from fakexport.checking.sweep.zoo_file import read_zoo
from fakexport.emulation.fake.placement import _read_json as read_device_map
from fakexport.error import FakexportError
from fakexport.files.container.limits import Limits
from fakexport.files.documents import DocumentError
from fakexport.models.sources.adapters.adapter_config import CONFIG, AdapterFolder
from tests.hostile.test_documents import profiles_of, project_of

GIB, SECONDS = 1 << 30, 20
Read = Callable[[Path], object]


def index_of(path: Path) -> None:
    read_index(path, suffixes=(".safetensors",))


def manifest_of(path: Path) -> None:
    decode_manifest(path.read_bytes(), Limits())


READERS: dict[str, tuple[str, Read, int]] = {
    "project": ("pyproject.toml", project_of, 1 << 24),
    "profiles": ("profiles.toml", profiles_of, 1 << 20),
    "lock": ("fakexport.lock", read_lock, 1 << 28),
    "zoo": ("ZOO.yaml", read_zoo, 1 << 19),
    "device map": ("map.json", read_device_map, 1 << 24),
    "adapter": (CONFIG, lambda path: AdapterFolder.read(path.parent), 1 << 20),
    "index": ("model.safetensors.index.json", index_of, 1 << 27),
    "manifest": ("manifest.json", manifest_of, 1 << 27),
    "safetensors": ("model.safetensors", read_header, 1 << 27),
}
# What is repeated, and what is before and behind it.
TOML = {
    "keys": ("k{} = 1\n", "", ""),
    "tables": ("[t{}]\n", "", ""),
    "entries": ("[[entry]]\n", "", ""),
    "dotted": ("a.b.c.d.k{} = 1\n", "", ""),
    "lists": ("[],", "entry = [", "]\n"),
    "inline": ("{{a=1}},", "entry = [", "]\n"),
    "strings": ('"a",', "entry = [", "]\n"),
}
YAML = {
    "keys": ("k{}: 1\n", "", ""),
    "lists": ("[],", "models: [", "]\n"),
    "strings": ("a.py:f{},", "models: [", "]\n"),
    "deep": ("- ", "models: ", "a"),
    "maps": ("{{a: 1}},", "models: [", "]\n"),
    "aliases": ("*a,", "a: &a [x,x]\nmodels: [", "]\n"),
}
JSON = {
    "keys": ('"k{}":"0",', "{", '"z":0}'),
    "pairs": ('"model.layers.{}.weight":"m-1.safetensors",', '{"weight_map":{', '"z":"m-1.safetensors"}}'),
    "modules": ('"q{}",', '{"peft_type":"LORA","target_modules":[', '"z"]}'),
    "patterns": ('".*a.*b.*c{}",', '{"peft_type":"LORA","target_modules":[', '"z"]}'),
    "lists": ("[],", '{"entries":[', "[]]}"),
    "objects": ('{{"a":1}},', '{"entries":[', "0]}"),
    "tensors": ('"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}},', "{", '"z":0}'),
}
GRAMMARS = {".toml": TOML, ".lock": TOML, ".yaml": YAML, ".json": JSON, ".safetensors": JSON}
CASES = [(kind, form) for kind, (name, _, _) in READERS.items() for form in GRAMMARS[Path(name).suffix]]


def document(kind: str, form: str, most_bytes: int) -> bytes:
    """A document of at most so many bytes."""
    name = READERS[kind][0]
    unit, before, behind = GRAMMARS[Path(name).suffix][form]
    count = (most_bytes - 1000) // len(unit.format(1_000_000))
    text = before + "".join(unit.format(number) for number in range(count)) + behind
    if kind == "project":
        text = f"[tool.fakexport]\n{text}"
    content = text.encode()
    return len(content).to_bytes(8, "little") + content if kind == "safetensors" else content


def measured(work: Callable[[], object]) -> tuple[str, int, float]:
    """Return what became of the work in a child, the memory by which it grew, and its processor time."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "a fault of the test"
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (3 * SECONDS, 3 * SECONDS))
            before, begun = _resident("VmRSS"), time.process_time()
            try:
                work()
                said = "read"
            except (FakexportError, DocumentError, OSError) as error:
                said = "refused: " + str(error)[-300:] if "\n" not in str(error) else repr(error)
            except BaseException as error:
                said = repr(error)[:200]
            said = json.dumps([said, _resident("VmHWM") - before, time.process_time() - begun])
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with open(reader) as found:  # noqa: PTH123 (a descriptor is no path)
        text = found.read()
    os.waitpid(child, 0)
    assert text.startswith("["), text or f"it took more than {3 * SECONDS} s"
    return tuple(json.loads(text))


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(("kind", "form"), CASES)
def test_a_document_takes_no_more_than_its_budget(kind: str, form: str, tmp_path: Path) -> None:
    """The largest of the form that the reader does not refuse for its size, within a factor of two."""
    name, read, most_bytes = READERS[kind]
    is_too_large = True
    while is_too_large:
        (tmp_path / name).write_bytes(document(kind, form, most_bytes))
        said, grown, seconds = measured(lambda: read(tmp_path / name))
        print(f"{kind} of {form}, {most_bytes:,} bytes: {said}, {grown >> 20} MiB, {seconds:.1f} s")

        assert said.startswith(("read", "refused"))
        assert grown < GIB
        assert seconds < SECONDS
        is_too_large = "the limit is" in said or "has more than" in said
        most_bytes //= 2
