"""A small archive with a manifest, for the tests that damage one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fakexport.archive.manifest import ALONE, Manifest, MethodManifest, TensorEntry, UnboundName
from fakexport.archive.manifest_json import MANIFEST, read_manifest, verify_records, write_described
from fakexport.files.container.contents import FRAME_RECORDS
from fakexport.files.container.reader import read_container
from fakexport.files.container.writer import Digest
from fakexport.files.documents.program_records import Recipe, Step

RECORDS = {
    "models/model.json": b'{"graph": "%s"}' % (b"aten.linear " * 30),
    "data/weights/model_weights_config.json": b'{"config": {}}',
    "data/constants/model_constants_config.json": b'{"config": {}}',
    "data/constants/tensor_0": bytes(range(64)),
    "data/sample_inputs/model.pt": b"",
}


def tensor(name: str = "lm_head.weight", **changes: object) -> TensorEntry:
    fields = {
        "name": name,
        "aliases": (),
        "shape": (4, 3),
        "stride": (3, 1),
        "storage_offset": 0,
        "dtype": "bfloat16",
        "device": "cuda:0",
        "is_parameter": True,
        "requires_grad": True,
        "persistent": True,
        "source": name,
    }
    return TensorEntry(**(fields | changes))


def about(**changes: object) -> MethodManifest:
    fields = {
        "versions": {"fakexport": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.23.0"},
        "source": "hf:configs/gpt2.json",
        "topology": "8xH100",
        "profiles": ("H100-80GB",) * 8,
        "device_map": {"": "cuda:0", "model.layers.1": "cuda:1"},
        "dtype": "bfloat16",
        "dynamic_shapes": "input_ids.1=1..4096",
        "skipped_checks": ("guards were not compared with a second input",),
        "unbound_constants": (UnboundName("scale", "parameter", "it comes from a weight", weight="w"),),
        "library_operators": ("signal_ops.soft_clip.default",),
        "library_modules": {"signal_ops.soft_clip.default": "signal_ops.kernels"},
        "library_classes": ("signal_ops::Polynomial",),
        "tensors": (tensor(aliases=("model.wte.weight",)), tensor("model.rotary", source=None)),
        "recipes": (Recipe(("old.0", "old.1"), (Step("cat", (0, 1), (0,)),), (("lm_head.weight", 2),)),),
    }
    return MethodManifest(**(fields | changes))


def manifest(records: tuple[Digest, ...] = (), **changes: object) -> Manifest:
    return Manifest(methods={ALONE: about(**changes)}, records=records)


def write_sample(path: Path) -> Manifest:
    return write_described(path, RECORDS, manifest())


def read_all(path: Path) -> dict[str, bytes]:
    """Everything that an archive says, or the refusal."""
    with read_container(path) as container:
        read_manifest(container)
        verify_records(container)
        return {name: container.record(name) for name in container.names}


def records_of(path: Path, *, trust: bool = False) -> dict[str, bytes]:
    """The records that differ between archives, without the manifest."""
    with read_container(path, trust=trust) as container:
        return {n: container.record(n) for n in container.names if n not in (MANIFEST, *FRAME_RECORDS)}


def manifest_of(path: Path) -> Manifest:
    with read_container(path) as container:
        return read_manifest(container)


def described_otherwise(manifest: Manifest, **changes: object) -> Manifest:
    """The manifest of a program that was saved alone, with other fields of that program; without records."""
    return replace(manifest, methods={ALONE: replace(manifest.only, **changes)}, records=())
