"""Kinds of records in a program archive, and which of them are refused without trust."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FRAME_RECORDS = {
    ".data/version": b"6\n",
    "archive_format": b"pt2",
    "archive_version": b"0",
    "byteorder": b"little",
}
"What torch's readers check first, with the only accepted answers."

UNTRUSTED = "refused unless trusted: --trust lets torch read it, which can run code from the file"
LEGACY = "legacy layout, from before torch 2.8"

_PAYLOAD_CONFIG = re.compile(
    r"(data/(weights/.+_weights_config|constants/.+_constants_config)"
    r"|extra/fakexport/.+_(weights|constants)_config)\.json"
)
_OBJECT = re.compile(r"data/constants/custom_obj_[0-9]+")
_SAMPLE_INPUTS = re.compile(r"data/sample_inputs/[^/]+\.pt")
_NATIVE = re.compile(r"so(\.[0-9.]+)?|dll|dylib|pyd|exe|o|a|lib|cubin|fatbin|hsaco|metallib|cpp|cu|py|pyc|sh")
_PICKLED = re.compile(r"(pt|pth|pkl|pickle|bin|ckpt|joblib)")
_KNOWN = re.compile(
    r"\.data/serialization_id|models/[^/]+\.json|extra/.+"
    r"|data/weights/(weight_[0-9]+|[^/]+_weights_config\.json)"
    r"|data/constants/(tensor_[0-9]+|[^/]+_constants_config\.json)"
)
_COMPILED = ("data/aotinductor/", "data/mtia/", "data/executorch/", "xl_model_weights/")
_LEGACY = re.compile(r"serialized_(exported_program|state_dict|constants|example_inputs)\.(json|pt)")
_SCRIPTED = re.compile(r"code/.+|data\.pkl|constants\.pkl|data/[0-9]+|constants/[0-9]+|version")


@dataclass(frozen=True)
class Refused:
    """A record that only a trusted file may have.

    Args:
        name: Without the archive's folder.
        what: What it is.
        is_trust_missing: Whether torch reads the file if it is trusted.
    """

    name: str
    what: str
    is_trust_missing: bool = True


def legacy_layout(names: Iterable[str]) -> Refused | None:
    """Return the record that shows another layout than `.pt2` of torch 2.8 and later."""
    names = set(names)
    if legacy := sorted(name for name in names if _LEGACY.fullmatch(name)):
        return Refused(legacy[0], f"{LEGACY}, {UNTRUSTED}")
    if "archive_format" in names:
        return None
    if scripted := sorted(name for name in names if _SCRIPTED.fullmatch(name)):
        if any(name.startswith("code/") for name in scripted):
            return Refused(scripted[0], "TorchScript archive, not an exported program", False)
        return Refused(scripted[0], "pickled archive of `torch.save`, not an exported program", False)
    return None


def refused_names(names: Iterable[str]) -> list[Refused]:
    """Return the records that may run code when torch reads or runs them, and those of unknown purpose."""
    found = []
    for name in names:
        if what := _danger(name):
            found.append(Refused(name, what))
    return found


def _danger(name: str) -> str | None:
    suffix = name.rpartition("/")[2].partition(".")[2].casefold()
    last = suffix.rpartition(".")[2]
    file = name.rpartition("/")[2]
    if name.startswith(_COMPILED):
        return "compiled code, which runs when it is loaded"
    if _NATIVE.fullmatch(suffix) or _NATIVE.fullmatch(last) or ".so." in name:
        return "native library or code"
    if is_sample_inputs(name):
        return None  # Never read: torch pickles them, and no command needs them.
    if is_object_record(name):
        return None
    if file.startswith(("custom_obj_", "opaque_obj_")):
        return "pickled object"
    if _PICKLED.fullmatch(last):
        return "pickled record"
    if name in FRAME_RECORDS or _KNOWN.fullmatch(name):
        return None
    return "record of unknown purpose"


def is_object_record(name: str) -> bool:
    """Return whether the record is a C++ object, a pickle that is read without unpickling."""
    return _OBJECT.fullmatch(name) is not None


def is_sample_inputs(name: str) -> bool:
    """Return whether the record has pickled example inputs of `torch.export.save`; none are read."""
    return _SAMPLE_INPUTS.fullmatch(name) is not None


def is_payload_config(name: str) -> bool:
    """Return whether the record lists the bytes of weights or constants, and which of them are pickled."""
    return _PAYLOAD_CONFIG.fullmatch(name) is not None
