"""Saving a program: its graph, its constants, and the description of every weight."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport import __version__
from fakexport.capture import flattened
from fakexport.devices import Topology
from fakexport.documents.collection_pause import collection_paused
from fakexport.program import library_classes, library_modules, library_operators
from fakexport.program.program_facts import facts_of
from fakexport.weights import Checkpoint, recipes_of

from .codec.program_encoder import program_to_json
from .container.writer import Content
from .described_container import write_described
from .links import Links
from .manifest import Manifest, WeightsKind
from .method_records import CONSTANTS_CONFIG, MODEL, WEIGHTS_CONFIG, MethodRecords
from .payload import UNBOUND, Payload, constants_payload, weights_payload
from .portable_text import portable
from .sample_inputs import sample_inputs_record
from .weights_left import warn_of_weights

__all__ = [
    "CONSTANTS_CONFIG",
    "MODEL",
    "WEIGHTS_CONFIG",
    "check_whole",
    "described",
    "program_records",
    "save",
]


def save(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    root: str | Path | None = None,
    link: Checkpoint | None = None,
) -> Manifest:
    """Writes a program as a `.pt2` archive: as a whole, or not at all.

    A tensor subclass among the weights is written as the tensors inside of it, as `export` gives them.
    Fake weights are described and not written: the archive is weight-less. Real ones are written, and stock
    `torch.export.load` opens the archive. Constants are written with their values, objects of C++ classes
    with their states. Nothing in the file has to be unpickled, and nothing tells when, where or by whom it
    was made: the same program gives the same bytes.

    The manifest says what is known of the program since `export`, `check` or `load`, through `bind` and
    `retarget`: source, target, placement, what was assumed. Of a program that torch made nothing is known.

    With `link`, weights that lie in a safetensors file of the checkpoint as the program wants them stay
    there: the archive has the file's path relative to its own folder, and a sha256 of each weight. Only
    `load` opens it. What was converted, merged or moved to another device is written into the archive.

    Args:
        program: Not changed. Its example inputs are not written: zeros are, for stock torch, and only with
            weights.
        path: The file; one that is there is replaced.
        root: Folder of the user's project: files below it are named relative to it, others by their name.
        link: The checkpoint that the weights were bound from, as `open_checkpoint` gave it to `bind`: the
            same object. Its files must lie in the folder of `path` or below it.
    Returns:
        The manifest as written.
    Raises:
        ValueError: some weights are real and some fake; bound weights with unbound constants; a link that
            leads out of the folder, or none to be made; or the program has what the format cannot say, such
            as a condition on inputs that nothing could check.
        TypeError: no program; `save_bundle` writes several.
        FileWriteError: the file cannot be written; what was there before is there still.
    Warns:
        WeightsLeftBehind: the program had weights, and has none since it was retargeted to devices that are
            not here.

    Example:
        >>> from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> save(program, "/tmp/linear.pt2").weights
        'none'
    """
    if not isinstance(program, ExportedProgram):
        raise TypeError(
            f"a {type(program).__name__} is not an exported program; `save_bundle` writes several"
        )
    program = flattened(program)
    facts = facts_of(program)
    weights = weights_payload(program, None if link is None else Links(link, path))
    constants = constants_payload(program, facts.unbound)
    check_whole(weights, constants)
    if link is not None and _kind(weights) != "linked":
        raise ValueError(f"no weight can be linked: none lies in a safetensors file of {link.location}")
    records = program_records(program, MethodRecords(), weights, constants, root=root)
    manifest = described(program, weights, constants, root=root)
    warn_of_weights(os.fspath(path), facts.left_behind if _kind(weights) == "none" else ())
    return write_described(path, records, replace(manifest, prefix=facts.prefix))


def check_whole(weights: Payload, constants: Payload) -> None:
    """Refuses a program that is bound in part.

    Raises:
        ValueError: some weights are real and some fake, or the weights are real and a constant has no value.
    """
    if _kind(weights) == "none":
        return
    fake = next((name for name, entry in weights.config.items() if entry["path_name"] == UNBOUND), None)
    if fake is not None:
        raise ValueError(f"some weights are real, and {fake} is fake")
    if constants.unbound:
        raise ValueError(f"the weights are bound, and the constant {constants.unbound[0].name} has no value")


def program_records(
    program: ExportedProgram,
    names: MethodRecords,
    weights: Payload,
    constants: Payload,
    *,
    root: str | Path | None = None,
) -> dict[str, Content]:
    """The records of one program, its tensors included; `save` says what `root` is."""
    with collection_paused():
        model = _json(program_to_json(program, root=root, is_for_stock=_kind(weights) == "inside"))
    return {
        names.model: model,
        names.weights: _json({"config": weights.config}),
        names.constants: _json({"config": constants.config}),
        names.sample_inputs: sample_inputs_record(program),
        **weights.records,
        **constants.records,
    }


def described(
    program: ExportedProgram,
    weights: Payload,
    constants: Payload,
    *,
    root: str | Path | None = None,
) -> Manifest:
    """What is said of one program beside its records, which have their digests when they are written."""
    facts = facts_of(program)
    topology, profiles = facts.topology, facts.profiles
    if topology is not None and profiles is None:
        devices = Topology.parse(topology)
        topology, profiles = devices.canonical, [device.profile.name for device in devices.devices]
    kind = _kind(weights)
    operators = library_operators(program)
    return Manifest(
        versions={**facts.versions, "fakexport": __version__, "torch": str(torch.__version__)},
        source=portable(facts.source, root),
        topology=topology,
        profiles=tuple(profiles or ()),
        device_map=dict(facts.device_map or {}),
        dtype=facts.dtype,
        dynamic_shapes=facts.dynamic_shapes,
        skipped_checks=tuple(portable(check, root) for check in facts.skipped_checks),
        unbound_constants=tuple(sorted(constants.unbound, key=lambda constant: constant.name)),
        library_operators=operators,
        library_modules=library_modules(operators),
        library_classes=library_classes(program),
        weights=kind,
        tensors=tuple(sorted(weights.tensors, key=lambda tensor: tensor.name)),
        recipes=recipes_of(program) if kind == "none" else (),
    )


def _kind(weights: Payload) -> WeightsKind:
    locations = [tensor.location for tensor in weights.tensors if tensor.location]
    if any(location.is_link for location in locations):
        return "linked"
    return "inside" if locations else "none"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
