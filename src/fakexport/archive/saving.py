"""Save programs: their graphs, their constants, and the description of every weight."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from json import dumps  # A model may replace them in `json`.
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport._version import __version__
from fakexport.container import Content
from fakexport.devices import Topology
from fakexport.documents import collection_paused
from fakexport.error import InvalidType, InvalidValue
from fakexport.program import (
    SourcePaths,
    facts_of,
    library_classes,
    library_modules,
    library_operators,
    stand_in_inputs,
    unbound_names,
)
from fakexport.weights import Checkpoint, caller_level, recipes_of

from .bundle import Bundle
from .codec.program_encoder import program_to_json
from .computed_weights import ComputedRecords
from .described_container import write_described
from .linked_files import Links
from .manifest import ALONE, Manifest, MethodManifest, Prefix, WeightsKind
from .method_records import MethodRecords, apart
from .payload import ABSENT, UNBOUND, Payload, constants_payload, weights_payload
from .shared_records import share_equal, share_weights


@one_at_a_time
def save(
    program: ExportedProgram | Bundle,
    path: str | os.PathLike[str],
    *,
    root: str | Path | None = None,
    link: Checkpoint | None = None,
) -> Manifest:
    """Write a program, or several that belong together, as a `.pt2` archive, atomically.

    A tensor subclass among the weights is written as the tensors inside of it, as `export` returns them.
    Fake weights are described and not written: the archive is weight-less. Real ones are written, and stock
    `torch.export.load` opens the archive. Constants are written with their values, C++ objects with their
    states. Nothing in the file needs unpickling, and nothing records when, where or by whom it was written:
        the
    same program results in the same bytes.

    The manifest records what is known of the program since `export`, `check` or `load`, through `bind` and
    `retarget`: source, target, placement, assumptions. For a program from torch, nothing is known.

    A weight that several methods of a bundle share is written once, and is one tensor again after
    `load_bundle`; equal constants are written once. A C++ object that several methods share becomes a
    separate object for each of them. torch's `load_pt2` opens a bundle once it is bound.

    With `link`, weights that are in a safetensors file of the checkpoint in the program's form stay
    there: the archive has the file's path relative to its own folder, and a sha256 of each weight. Only
    `load` opens it. Converted or merged weights, and those moved to another device, are written into the
    archive.

    Args:
        program: A program, or a bundle. Not changed. Example inputs are not written: zeros are, for
            stock torch, and only with weights.
        path: The file; an existing one is replaced.
        root: Folder of the user's project: files below it are named relative to it, others by their name.
            Default: the working directory.
        link: The checkpoint that the weights were bound from, as returned by `open_checkpoint`: the same
            object. Its files must be in the folder of `path` or below it.
    Returns:
        The manifest as written.
    Raises:
        ValueError: some weights are real and some fake; bound weights with unbound constants; a link that
            leads out of the folder, or no weight to link; or the program has something that the format cannot
            express, such as a condition on inputs that nothing could check.
        TypeError: neither a program nor a bundle.
        FileWriteError: the file cannot be written; the previous file is kept.
    Warns:
        WeightsLeftBehind: retargeting to devices that are not on this machine dropped the weights.

    Example:
        >>> from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> save(program, "/tmp/linear.pt2").only.weights
        'none'
    """
    if not isinstance(program, ExportedProgram | Bundle):
        raise InvalidType(f"a {type(program).__name__} is not a program; `save_bundle` writes several")
    bundle = program if isinstance(program, Bundle) else Bundle({ALONE: program})
    links = None if link is None else Links(link, path)
    root = Path.cwd() if root is None else root
    records: dict[str, Content] = {}
    computed_records = ComputedRecords()
    manifests: dict[str, MethodManifest] = {}
    for method, (weights, constants) in _payloads(bundle, links).items():
        own, prefix = bundle[method], bundle.prefixes.get(method)
        records |= _program_records(own, MethodRecords(method), weights, constants, root=root)
        computed = computed_records.add(own) if _kind(weights) == "none" else {}
        manifests[method] = _described(own, weights, constants, prefix, computed, root=root)
    if link is not None and all(manifest.weights != "linked" for manifest in manifests.values()):
        raise InvalidValue(f"no weight can be linked: none is in a safetensors file of {link.location}")
    records |= computed_records.records
    manifest = Manifest(methods=manifests, shared=bundle.shared)
    for method, about in manifest.methods.items():
        where = f"{os.fspath(path)}, method {method}," if manifest.is_bundle else os.fspath(path)
        warn_of_weights(where, facts_of(bundle[method]).left_behind if about.weights == "none" else ())
    return write_described(path, records, manifest)


@one_at_a_time
def save_bundle(
    programs: Mapping[str, ExportedProgram],
    path: str | os.PathLike[str],
    *,
    prefixes: Mapping[str, str | Prefix] | None = None,
    root: str | Path | None = None,
    link: Checkpoint | None = None,
) -> Manifest:
    """Write programs by method as a `Bundle`, as `save` does.

    Args:
        programs: A `Bundle`, or programs by method: see `Bundle` for which weights they share.
        path, root, link: As for `save`.
        prefixes: As for `Bundle`. A `Bundle` has its own.
    Raises:
        ValueError, TypeError, FileWriteError: as for `Bundle` and `save`; prefixes for a `Bundle`.

    Example:
        >>> import torch
        >>> from fakexport.capture import export
        >>> model, row = torch.nn.Linear(4, 4), torch.zeros(1, 4)
        >>> programs = {"one": export(model, (row,)), "two": export(model, (row.repeat(2, 1),))}
        >>> save_bundle(programs, "/tmp/linear.pt2").shared
        ((('one', 'weight'), ('two', 'weight')), (('one', 'bias'), ('two', 'bias')))
    """
    if not isinstance(programs, Bundle):
        programs = Bundle(programs, prefixes=prefixes)
    elif prefixes is not None:
        raise InvalidValue(
            "the bundle already has prefixes: create a new one, `Bundle(bundle, prefixes=...)`"
        )
    return save(programs, path, root=root, link=link)


def _payloads(bundle: Bundle, links: Links | None) -> dict[str, tuple[Payload, Payload]]:
    """Return weights and constants by method; equal records are in the first payload that has them."""
    weights: dict[str, Payload] = {}
    constants: dict[str, Payload] = {}
    first_weight = first_constant = 0
    for method, program in bundle.items():
        weights[method] = weights_payload(program, links, first=first_weight)
        constants[method] = constants_payload(program, facts_of(program).unbound, first=first_constant)
        try:
            _check_whole(weights[method], constants[method])
        except ValueError as error:
            if bundle.is_alone:
                raise
            raise InvalidValue(f"the method {method}: {error}") from None
        first_weight += len(program.state_dict)
        first_constant += len(program.constants)
    if len(bundle) > 1:
        share_weights(weights, bundle.shared)
        share_equal(constants)
    return {method: (weights[method], constants[method]) for method in bundle}


def _check_whole(weights: Payload, constants: Payload) -> None:
    """Refuse a partly bound program.

    Raises:
        ValueError: some weights are real and some fake, or the weights are real and a constant has no value.
    """
    if _kind(weights) == "none":
        return
    fake = next((name for name, entry in weights.config.items() if entry["path_name"] == UNBOUND), None)
    if fake is not None:
        raise InvalidValue(f"some weights are real, but {fake} is fake")
    if constants.unbound:
        raise InvalidValue(
            f"the weights are bound, but the constant {constants.unbound[0].name} has no value"
        )


def _program_records(
    program: ExportedProgram,
    names: MethodRecords,
    weights: Payload,
    constants: Payload,
    *,
    root: str | Path | None = None,
) -> dict[str, Content]:
    """Return the records of one program, including its tensors; see `save` for `root`."""
    with collection_paused():
        model = _json(program_to_json(program, root=root, is_for_stock=_kind(weights) == "inside"))
    return {
        names.model: model,
        _place(names.weights, weights): _json({"config": weights.config}),
        _place(names.constants, constants): _json({"config": constants.config}),
        names.sample_inputs: sample_inputs_record(program),
        **weights.records,
        **constants.records,
    }


def _place(config: str, payload: Payload) -> str:
    """Return where a config goes: torch's place, if the records that it names are in the archive."""
    is_whole = all(entry["path_name"] not in ABSENT for entry in payload.config.values())
    return config if is_whole else apart(config)


def _described(
    program: ExportedProgram,
    weights: Payload,
    constants: Payload,
    prefix: Prefix | None,
    computed: Mapping[str, str | None],
    *,
    root: str | Path | None,
) -> MethodManifest:
    """Return the description of one program; its records get their digests when they are written."""
    facts = facts_of(program)
    topology, profiles = facts.topology, facts.profiles
    if topology is not None and profiles is None:
        devices = Topology.parse(topology)
        topology, profiles = devices.canonical, [device.profile.name for device in devices.devices]
    kind = _kind(weights)
    operators = library_operators(program)
    same = ("dtype", "dynamic_shapes", "load_hooks", "call", "adapter", "parallel", "parameters")
    return MethodManifest(
        **{name: getattr(facts, name) for name in same},
        versions={**facts.versions, "fakexport": __version__, "torch": str(torch.__version__)},
        source=portable(facts.source, root),
        topology=topology,
        profiles=tuple(profiles or ()),
        device_map=dict(facts.device_map or {}),
        skipped_checks=tuple(portable(check, root) for check in facts.skipped_checks),
        unbound_constants=tuple(sorted(constants.unbound, key=lambda constant: constant.name)),
        library_operators=operators,
        library_modules=library_modules(operators),
        library_classes=library_classes(program),
        weights=kind,
        tensors=tuple(sorted(weights.tensors, key=lambda tensor: tensor.name)),
        recipes=recipes_of(program) if kind == "none" else (),
        computed=computed,
        prefix=prefix,
    )


def _kind(weights: Payload) -> WeightsKind:
    locations = [tensor.location for tensor in weights.tensors if tensor.location]
    if any(location.is_link for location in locations):
        return "linked"
    return "inside" if locations else "none"


def _json(value: object) -> bytes:
    return dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def sample_inputs_record(program: ExportedProgram) -> bytes:
    """Return the record of a program with weights: zeros of one element each, in plain containers.

    It is a pickle, for `torch.export.load` alone, which reads it without running code (`weights_only`);
    fakexport never reads it. It contains no values of the real example inputs. Empty for a program
    without weights, which stock torch cannot run.
    """
    if unbound_names(program):
        return b""
    content = io.BytesIO()
    torch.save(stand_in_inputs(program, device="cpu"), content)
    return content.getvalue()


class WeightsLeftBehind(UserWarning):
    """An archive is written without the weights that its program had before it was retargeted."""


def warn_of_weights(path: str, names: Sequence[str]) -> None:
    """Warn, at the line that called fakexport, of weights that are left out.

    Warns:
        WeightsLeftBehind: there are some.
    """
    if names:
        what = f"{len(names):,} weights, such as {names[0]}, were" if len(names) > 1 else f"{names[0]} was"
        text = (
            f"{path} has no weights: {what} left out, since the new devices are not on this machine; "
            "bind the checkpoint again on a machine that has them"
        )
        warnings.warn(WeightsLeftBehind(text), stacklevel=caller_level())


_SOURCE = re.compile(
    r"(?P<kind>(?:[a-z]+:)?)(?P<path>(?:~|[A-Za-z]:)?[/\\].*?\.(?:json|py))(?P<rest>(?::.*)?)"
)
_PATH = re.compile(r"(?<![\w.~/])~?/[^\s'\"=,()\[\]:]+")


def portable(text: str, root: str | os.PathLike[str] | None = None) -> str:
    """Return the text with absolute paths made relative to `root`; a path outside keeps its last part.

    Example:
        >>> portable("hf:/home/me/work/gpt2.json:AutoModel", "/home/me")
        'hf:work/gpt2.json:AutoModel'
        >>> portable("/tmp/my models/model.py:factory")
        'model.py:factory'
    """
    paths = SourcePaths(None if root is None else Path(root))

    def shortened(path: str) -> str:
        return paths.shortened(os.path.expanduser(path))  # noqa: PTH111 (a path may begin with no user's `~x`)

    if source := _SOURCE.fullmatch(text):  # A path in it may have blanks.
        return f"{source['kind']}{shortened(source['path'])}{source['rest']}"
    return _PATH.sub(lambda found: shortened(found[0]), text)
