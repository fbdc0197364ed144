"""Honest inputs for the fuzzers to begin with: real archives, programs and checkpoints, made anew."""

from __future__ import annotations

import base64
import json
import tempfile
import zlib
from pathlib import Path

import torch
from torch import nn

import fakexport as fe
from fakexport.archive.manifest_json import encode_manifest
from fakexport.archive.stored_tensor import MODEL
from fakexport.files.container.reader import read_container
from tests.unit.archive.described import manifest, write_sample
from tests.unit.archive.programs import branches, every_kind
from tests.unit.archive.test_hostile_bundle import bundle_manifest
from tests.unit.files.container.forged_zip import Forged, Part


def corpus(target: str) -> list[bytes]:
    """The inputs of a target, the smallest first."""
    with tempfile.TemporaryDirectory() as folder:
        return sorted(_CORPORA[target](Path(folder)), key=len)


def _archives(folder: Path) -> list[bytes]:
    program = fe.export(lambda: nn.Linear(2, 1), (torch.zeros(3, 2),), dynamic_shapes=["input.0=2..9"])
    fe.save(program, folder / "weightless.pt2")
    fe.save(fe.bind(program, dict(nn.Linear(2, 1).state_dict())), folder / "bound.pt2")
    both = {"a": program, "b": fe.export(nn.Linear(2, 1), (torch.zeros(4, 2),))}
    fe.save_bundle(both, folder / "bundle.pt2", prefixes={"a": "x.", "b": "x."})
    stock = torch.export.export(nn.Linear(2, 1), (torch.zeros(3, 2),))
    stock.example_inputs = None
    torch.export.save(stock, folder / "stock.pt2")
    write_sample(folder / "sample.pt2")
    parts = [Part(b"model/extra/x.json", b'{"a": 1}' * 9, method=8), Part(b"model/extra/y", b"y")]
    return [*(path.read_bytes() for path in folder.glob("*.pt2")), Forged(parts).bytes(), Forged().bytes()]


def _manifests(folder: Path) -> list[bytes]:
    texts = [encode_manifest(manifest()), encode_manifest(bundle_manifest())]
    return [*texts, json.dumps(json.loads(texts[0]), indent=1).encode()]


def _programs(folder: Path) -> list[bytes]:
    programs = [
        fe.export(lambda: nn.Linear(2, 1), (torch.zeros(3, 2),), dynamic_shapes=["input.0=2..9"]),
        every_kind(is_dynamic=True),
        branches(),
    ]
    found = []
    for program in programs:
        fe.save(program, folder / "model.pt2")
        with read_container(folder / "model.pt2") as container:
            found.append(container.record(MODEL))
    return found


def _safetensors(folder: Path) -> list[bytes]:
    from safetensors.torch import save

    tensors = {"a.weight": torch.ones(2, 3), "b": torch.zeros(0), "c": torch.ones(2, dtype=torch.bfloat16)}
    return [save(tensors, metadata={"format": "pt"}), save({"x": torch.tensor(1)})]


def _indexes(folder: Path) -> list[bytes]:
    names = {"a.weight": "shard-1.safetensors", "b.weight": "shard-1.safetensors"}
    return [json.dumps({"metadata": {"total_size": 8}, "weight_map": names}).encode()]


# What `pickled_object` returns for `foo(3, -4)` and for a queue of two tensors, by zlib and base64: only the
# CPU-only wheel of torch comes with the library of their classes.
_PICKLED = (
    "eNprYEqOjy/JL0rOiI/XA9N6yTmJxcWpxXrxISBucHJRZkFJSGpxSWZeOle8W34+VyGDZmMyRG1WZolefEFmcnZOKldSaWZOSnxmXklO"
    "ZnEJVyGjRqyGN7PXn////6eWBBUyJRUy6wEA5MIpVw==",
    "eNpVjstOwzAQRZOYpuDy/gp3E0G/AbHJArXNIhtkpc6oNlhJxp6whk0l/hrngQSrsT33+pzPRElJrVNaymycmbKV9+AzWQzXvXKmowI8mebI"
    "ZQGNb922hx44RuuvchVFkWkMSRo3GKvpF9mTsZ5LB4fe2Hpey48Nx0SIchlqPiSrIyCbKvzZthXtp0eOZ2UcMg+4KFmYqusxzRPa4jKPRDiI"
    "PKZvpVprQZFpG89fXA0O6iejiOP5eke7U7kIVRxk8WL2ejOUyc6odwv8r5k1PtS4eBU6+GmmJ/4jrnSap4F7OXJzFshsYOsRgVf/4hu8nuM3"
    "Q5xNoqH0G7+FoHXCuwPeZz9YCnMj",
)


def _objects(folder: Path) -> list[bytes]:
    return [zlib.decompress(base64.b64decode(pickled)) for pickled in _PICKLED]


def _tomls(folder: Path) -> list[bytes]:
    return [
        b'[tool.fakexport]\nsources = ["a.py:f"]\ntarget = ["cpu", "8xH100"]\nlibraries = []\n',
        b'format = 1\n\n[[entry]]\nsource = "a.py:f"\nnumbers = [1, 2.5, 0x1f]\nday = 2001-01-01\n',
    ]


def _yamls(folder: Path) -> list[bytes]:
    return [b"models: [a.py:f]\ntargets: [cpu, 8xH100]\ndynamic: [static]\ntimeout: 60\nmemory: 4 GiB\n"]


def _adapters(folder: Path) -> list[bytes]:
    settings = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": r".*\.(q_proj|v_proj)$",
        "alpha_pattern": {r"h\.\d+\.attn": 4},
        "rank_pattern": {},
        "exclude_modules": ["k_proj"],
    }
    return [json.dumps(settings).encode()]


_CORPORA = {
    "archive": _archives,
    "manifest": _manifests,
    "program": _programs,
    "safetensors": _safetensors,
    "index": _indexes,
    "object": _objects,
    "toml": _tomls,
    "yaml": _yamls,
    "adapter": _adapters,
}
