"""The description of a program in its ONNX file, for checking calls and binding checkpoints."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport._version import __version__
from fakexport.archive import MethodManifest, TensorEntry, method_from_json, method_to_json, weights_payload
from fakexport.archive.weights import ExpectedWeights, Weight, recipes_of
from fakexport.exporting.program import facts_of, has_value
from fakexport.files.documents import field, items, mapping, matching, one_of, parse_json, record, text

from ..artifact import WeightsPlace
from ..signature import Signature

KEY = "fakexport"
"""Key of the description in the model's `metadata_props`."""

_FORMAT = "fakexport.onnx/1"
_file_name = matching(re.compile(r"[^/\\\0:]+\.safetensors"), "name of a file next to the model", 1000)


@dataclass(frozen=True)
class Description:
    """The description of a program in an ONNX file.

    Args:
        signature: Inputs and outputs of a call.
        outputs: Names of the signature's output tensors in the graph, in order.
        place, file: Where the weights are, and the name of their file; "" if they are inside the model.
        manifest: The weights that the program needs, recipes for checkpoints with a different layout, and how
            the program uses an adapter, as in an archive. Non-persistent entries are constants without a
            value.
        digest: Hash of the model and this description; "" until both are complete.
    """

    signature: Signature
    outputs: tuple[str, ...]
    place: WeightsPlace
    file: str
    manifest: MethodManifest
    digest: str = ""

    @classmethod
    def of(
        cls, program: ExportedProgram, signature: Signature, outputs: tuple[str, ...], file: str
    ) -> Description:
        """Describe a program whose weights will be in `file`, or inside the model if `file` is empty."""
        tensors = (*map(_weight_entry, weights_payload(program).tensors), *_unknown_constants(program))
        manifest = MethodManifest(
            versions={"fakexport": __version__, "torch": str(torch.__version__)},
            source="",
            device_map={},
            tensors=tuple(sorted(tensors, key=lambda tensor: tensor.name)) if file else (),
            recipes=recipes_of(program) if file else (),
            adapter=facts_of(program).adapter if file else None,
        )
        return cls(signature, outputs, "beside" if file else "inside", file, manifest)

    @property
    def expected(self) -> ExpectedWeights:
        """The weights that a checkpoint must contain."""
        weights: dict[str, Weight] = {}
        constants: dict[str, Weight] = {}
        for tensor in self.manifest.tensors:
            owner = weights if tensor.persistent else constants
            for name in (tensor.name, *tensor.aliases):
                owner[name] = Weight(tensor.shape, getattr(torch, tensor.dtype))
        tied = tuple((tensor.name, *tensor.aliases) for tensor in self.manifest.tensors if tensor.aliases)
        return ExpectedWeights(weights, constants, tied)

    @property
    def stored(self) -> dict[str, Weight]:
        """The weights in the file next to the model. A tied weight is listed only once."""
        return {
            tensor.name: Weight(tensor.shape, getattr(torch, tensor.dtype))
            for tensor in self.manifest.tensors
        }

    @property
    def stored_name(self) -> dict[str, str]:
        """Each name of a weight -> the weight's name in the file next to the model."""
        return {
            name: tensor.name for tensor in self.manifest.tensors for name in (tensor.name, *tensor.aliases)
        }

    def sealed(self, model: Any) -> Description:
        """Return the description with a digest of the `ModelProto` and itself, to detect damage."""
        bare = type(model)()
        bare.CopyFrom(model)
        for index in reversed(range(len(bare.metadata_props))):
            if bare.metadata_props[index].key == KEY:
                del bare.metadata_props[index]
        found = hashlib.sha256(bare.SerializeToString(deterministic=True))
        found.update(replace(self, digest="").to_json().encode())
        return replace(self, digest=found.hexdigest())

    def to_json(self) -> str:
        """Return the description as JSON. It is deterministic."""
        value = {
            "format": _FORMAT,
            "signature": self.signature.to_dict(),
            "outputs": self.outputs,
            "sha256": self.digest,
            "weights": {"place": self.place, "file": self.file},
            "archive": method_to_json(self.manifest),
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, encoded: bytes) -> Description:
        """Parse the output of `to_json` from an untrusted file, or raise a `DocumentError`."""
        found = record(
            parse_json(encoded),
            {
                "format": one_of((_FORMAT,), "format of a fakexport ONNX file"),
                "signature": Signature.from_dict,
                "outputs": lambda value: tuple(items(value, text)),
                "weights": _place,
                "sha256": text,
                "archive": method_from_json,
            },
        )
        place, file = found["weights"]
        return cls(
            found["signature"], found["outputs"], place, file, found["archive"], digest=found["sha256"]
        )


def _place(value: Any) -> tuple[WeightsPlace, str]:
    place = field(mapping(value), "place", one_of(("inside", "beside"), "location of weights"))
    if place == "inside":
        record(value, {"place": text, "file": one_of(("",), "file for weights that are inside the model")})
        return "inside", ""
    return "beside", record(value, {"place": text, "file": _file_name})["file"]


def _weight_entry(found: TensorEntry) -> TensorEntry:
    """Return the entry of a weight as stored in the file, which is always row-major and on the CPU."""
    return replace(
        found, **_row_major(found.shape), device="cpu", requires_grad=False, source=None, location=None
    )


def _unknown_constants(program: ExportedProgram) -> list[TensorEntry]:
    return [
        TensorEntry(
            name=name,
            aliases=(),
            shape=tuple(constant.shape),
            dtype=str(constant.dtype).removeprefix("torch."),
            device="cpu",
            is_parameter=False,
            requires_grad=False,
            persistent=False,
            **_row_major(tuple(constant.shape)),
        )
        for name, constant in program.constants.items()
        if isinstance(constant, torch.Tensor) and not has_value(constant)
    ]


def _row_major(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"stride": torch.empty(shape, device="meta").stride(), "storage_offset": 0}
