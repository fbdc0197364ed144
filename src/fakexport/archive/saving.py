"""Saving a program: its graph, its constants, and the description of every weight."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport import __version__
from fakexport.capture import UnboundConstant

from .codec.collection_pause import collection_paused
from .codec.program_encoder import program_to_json
from .container.writer import Content
from .described_container import write_described
from .manifest import Manifest
from .payload import UNBOUND, constants_payload, weights_payload

__all__ = ["CONSTANTS_CONFIG", "MODEL", "WEIGHTS_CONFIG", "save"]

MODEL = "models/model.json"
WEIGHTS_CONFIG = "data/weights/model_weights_config.json"
CONSTANTS_CONFIG = "data/constants/model_constants_config.json"
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"


def save(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    source: str = "",
    topology: str | None = None,
    device_map: Mapping[str, str] | None = None,
    dtype: str | None = None,
    dynamic_shapes: str | None = None,
    unbound: Sequence[UnboundConstant] = (),
    root: str | Path | None = None,
) -> Manifest:
    """Writes a program as a `.pt2` archive: as a whole, or not at all.

    Fake weights are described and not written: the archive is weight-less. Real ones are written, and stock
    `torch.export.load` opens the archive. Constants are written with their values. Nothing in the file is
    pickled, and nothing tells when, where or by whom it was made: the same program gives the same bytes.

    Args:
        program: Not changed. Its example inputs are not written.
        path: The file; one that is there is replaced.
        source, topology, device_map, dtype, dynamic_shapes: What the program was exported from and for; for
            the manifest alone.
        unbound: Why constants have no value, as `capture` found out.
        root: Folder of the user's project: source files below it are named relative to it.
    Returns:
        The manifest as written.
    Raises:
        ValueError: some weights are real and some fake; bound weights with unbound constants; or the program
            has what the format cannot say.
        ArchiveWriteError: the file cannot be written; what was there before is there still.

    Example:
        >>> from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> save(program, "/tmp/linear.pt2").weights
        'none'
    """
    weights = weights_payload(program)
    constants = constants_payload(program, unbound)
    is_bound = bool(weights.records)
    fake = next((name for name, entry in weights.config.items() if entry["path_name"] == UNBOUND), None)
    if is_bound and fake is not None:
        raise ValueError(f"some weights are real, and {fake} is fake")
    if is_bound and constants.unbound:
        raise ValueError(f"the weights are bound, and the constant {constants.unbound[0].name} has no value")
    with collection_paused():
        model = _json(program_to_json(program, root=root))
    records: dict[str, Content] = {
        MODEL: model,
        WEIGHTS_CONFIG: _json({"config": weights.config}),
        CONSTANTS_CONFIG: _json({"config": constants.config}),
        _SAMPLE_INPUTS: b"",  # Stock torch wants the record; empty, it stands for no inputs.
        **weights.records,
        **constants.records,
    }
    manifest = Manifest(
        versions={"fakexport": __version__, "torch": str(torch.__version__)},
        source=source,
        topology=topology,
        device_map=dict(device_map or {}),
        dtype=dtype,
        dynamic_shapes=dynamic_shapes,
        unbound_constants=tuple(sorted(constants.unbound, key=lambda constant: constant.name)),
        weights="inside" if is_bound else "none",
        tensors=tuple(sorted(weights.tensors, key=lambda tensor: tensor.name)),
    )
    return write_described(path, records, manifest)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
