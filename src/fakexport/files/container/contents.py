"""Names and kinds of records in a program archive. Some kinds are rejected unless the file is trusted."""

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
"""Records that torch's readers check first. Each must have exactly this content."""

UNTRUSTED = "rejected by default: with --trust, torch reads it, and reading it can run code from the file"
LEGACY = "legacy layout from before torch 2.8"

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
    """A record that is only accepted in a trusted file.

    `name` does not include the archive's folder. `what` describes the kind of record. `is_trust_missing` is
    whether torch could read the file if it were trusted.
    """

    name: str
    what: str
    is_trust_missing: bool = True


def legacy_layout(names: Iterable[str]) -> Refused | None:
    """Return a record that shows that the archive does not have torch's `.pt2` layout, or None."""
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
    """Return records that may run code when torch loads or runs them, and records of unknown purpose."""
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
        return "compiled code, which runs when loaded"
    if _NATIVE.fullmatch(suffix) or _NATIVE.fullmatch(last) or ".so." in name:
        return "native library or code"
    if is_sample_inputs(name):
        return None  # It is a pickle, but it is never read, because no command needs it.
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
    """Return whether the record is a C++ object. It is a pickle, which is parsed without unpickling it."""
    return _OBJECT.fullmatch(name) is not None


def is_sample_inputs(name: str) -> bool:
    """Return whether the record contains example inputs, pickled by `torch.export.save`. It is never read."""
    return _SAMPLE_INPUTS.fullmatch(name) is not None


def is_payload_config(name: str) -> bool:
    """Return whether the record lists the weights or constants, with their records and which are pickled."""
    return _PAYLOAD_CONFIG.fullmatch(name) is not None


_MOST_FOLDERS = 16
_DRIVE = re.compile(r"[A-Za-z]:")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def fault_of_name(name: str) -> str | None:
    """Return why a record or a linked file must not have this name, or None if the name is valid.

    A valid name is a relative ASCII path, separated by `/`, that has the same meaning on every system.
    """
    if not name:
        return "the name is empty"
    if "\0" in name:
        return "the name contains a null character"
    if not name.isascii():
        return "the name contains a non-ASCII character"
    if not name.isprintable():
        return "the name contains a control character"
    if "\\" in name:
        return "the name contains a backslash"
    if name.startswith("/"):
        return "the name is an absolute path"
    if _DRIVE.match(name):
        return "the name starts with a drive letter"
    if ":" in name:
        return "the name contains a colon"
    if name.endswith("/"):
        return "the name is the name of a folder"
    if name.count("/") > _MOST_FOLDERS:
        return f"the name has more than {_MOST_FOLDERS} folders"
    return next((fault for part in name.split("/") if (fault := _fault_of_part(part))), None)


def _fault_of_part(part: str) -> str | None:
    if part == "":
        return "the name has an empty part"
    if part in {".", ".."}:
        return f"the name contains the path component `{part}`"
    if part != part.strip() or part.endswith("."):
        return "a part of the name ends in a dot or has surrounding spaces"
    if _RESERVED.fullmatch(part):
        return "the name is reserved for a device on Windows"
    return None


def comparable(name: str) -> str:
    """Return the name in lower case, because torch and some file systems ignore case."""
    return name.lower()


def fault_of_names(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first ambiguous name and the reason, or None."""
    seen: dict[str, str] = {}
    for name in names:
        key = comparable(name)
        if key in seen:
            same = seen[key] == name
            return name, "two records have this name" if same else (
                f"it differs from `{seen[key]}` only in case"
            )
        seen[key] = name
    for key, name in seen.items():
        folder = key.rpartition("/")[0]
        while folder:
            if folder in seen:
                return name, f"`{seen[folder]}` is a record, but also the folder of this record"
            folder = folder.rpartition("/")[0]
    return None
