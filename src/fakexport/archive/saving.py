"""Save programs: their graphs and constants, and the description or data of every weight."""

from __future__ import annotations

import io
import os
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport._version import __version__
from fakexport.archive.codec.program import program_to_json
from fakexport.archive.weights import Checkpoint, caller_level, recipes_of
from fakexport.emulation.devices import Topology
from fakexport.error import InvalidType, InvalidValue
from fakexport.exporting.program import (
    SourcePaths,
    facts_of,
    library_classes,
    library_modules,
    library_operators,
    stand_in_inputs,
    unbound_names,
)
from fakexport.files.container import Content
from fakexport.files.documents import Recipe, collection_paused

from .bundle import Bundle
from .computed_weights import computed_values
from .linked_files import Links
from .manifest import ALONE, Manifest, MethodManifest, Prefix, WeightsKind
from .manifest_json import write_described
from .payload import constants_payload, weights_payload
from .shared_records import UNBOUND, ComputedRecords, Payload, encoded, method_records, share_records
from .stored_tensor import MethodRecords


@one_at_a_time
def save(
    program: ExportedProgram | Bundle,
    path: str | os.PathLike[str],
    *,
    root: str | Path | None = None,
    link: Checkpoint | None = None,
) -> Manifest:
    """Write a program, or a bundle of programs, as a `.pt2` archive, atomically.

    If the weights are fake, the archive is weight-less: it describes them, but does not contain their data.
    If they are real, the archive contains them, and stock `torch.export.load` can open it. A tensor subclass
    among the weights is written as its inner tensors, as `export` returns them. Constants are written with
    their values, and C++ objects with their states. Reading the file needs no unpickling. The file is
    deterministic: it does not contain the time, the machine or the user.

    The manifest records the source, target, placement and assumptions of programs from `export`, `check` or
    `load`, even after `bind` and `retarget`. This metadata is unknown for programs from stock `torch.export`.

    A weight that several methods of a bundle share is written once, and `load_bundle` restores the sharing.
    Equal constants are written once. A C++ object that several methods share becomes a separate object for
    each method. torch's `load_pt2` can open a bound bundle.

    With `link`, the archive does not contain weights that a safetensors file of the checkpoint contains in
    the program's form. Instead, it stores the file's path relative to the archive's folder, and a sha256 of
    each weight. Only fakexport can open such an archive. Weights that were converted, merged or moved to a
    different device are written into the archive.

    Args:
        program: A program or a bundle. It is not changed. Its example inputs are not written. For a bound
            program, zeros are written instead, because stock torch needs inputs.
        path: The file to write. An existing file is replaced.
        root: Folder of the user's project. Source files below it are stored with their relative path, and
            other files with their name only. Default: the working directory.
        link: The `Checkpoint` object, from `open_checkpoint`, that the weights were bound from. Its files
            must be below the folder of `path`.

    Returns:
        The manifest as written.

    Raises:
        ValueError: Only some weights are real; the weights are real but a constant has no value; a linked
            file is outside the archive's folder; there is no weight to link; or the format cannot express the
            program, for example because of an unsupported guard.
        TypeError: The value is neither a program nor a bundle.
        FileWriteError: The file cannot be written; an existing file is kept.

    Warns:
        WeightsDroppedWarning: Retargeting to devices that are not on this machine dropped the weights.

    Example:
        >>> from fakexport.exporting.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> save(program, "/tmp/linear.pt2").only.weights
        'none'
    """
    if not isinstance(program, ExportedProgram | Bundle):
        raise InvalidType(
            f"a {type(program).__name__} is not a program; use `save_bundle` for several programs"
        )
    bundle = program if isinstance(program, Bundle) else Bundle({ALONE: program})
    links = None if link is None else Links(link, path)
    return _written(bundle, path, Path.cwd() if root is None else root, links)


def _written(
    bundle: Bundle,
    path: str | os.PathLike[str],
    root: str | Path,
    links: Links | None = None,
    *,
    is_for_bind: bool = True,
) -> Manifest:
    """Write the archive of `save`. Unless `is_for_bind`, it does not say how checkpoints are converted."""
    records: dict[str, Content] = {}
    computed_records = ComputedRecords()
    manifests: dict[str, MethodManifest] = {}
    for method, (weights, constants) in _payloads(bundle, links).items():
        own, prefix = bundle[method], bundle.prefixes.get(method)
        model = _model(own, root, is_for_stock=_kind(weights) == "inside")
        records |= method_records(MethodRecords(method), model, sample_inputs_record(own), weights, constants)
        computed = computed_records.add(computed_values(own)) if _kind(weights) == "none" else {}
        recipes = recipes_of(own) if is_for_bind and _kind(weights) == "none" else ()
        manifests[method] = _described(own, weights, constants, prefix, computed, recipes, root=root)
    if links is not None and all(manifest.weights != "linked" for manifest in manifests.values()):
        raise InvalidValue(
            f"no weight can be linked: no safetensors file of {links.location} contains a weight in the "
            "program's form"
        )
    records |= computed_records.records
    manifest = Manifest(methods=manifests, shared=bundle.shared)
    for method, about in manifest.methods.items():
        where = f"{os.fspath(path)}, method {method}," if manifest.is_bundle else os.fspath(path)
        warn_of_weights(where, facts_of(bundle[method]).left_behind if about.weights == "none" else ())
    return write_described(path, records, manifest)


@one_at_a_time
def try_to_save(programs: ExportedProgram | Mapping[str, ExportedProgram], *, root: str | Path) -> None:
    """Raise the errors of `save` or `save_bundle`, but write no archive that is kept.

    The archive does not say how checkpoints are converted. This depends on the weights only, and takes a
    quarter of the time of `fakexport check` for models with many experts.
    """
    bundle = Bundle(programs if isinstance(programs, Mapping) else {ALONE: programs})
    with tempfile.TemporaryDirectory() as folder:
        _written(bundle, Path(folder, "programs.pt2"), root, is_for_bind=False)


@one_at_a_time
def save_bundle(
    programs: Mapping[str, ExportedProgram],
    path: str | os.PathLike[str],
    *,
    prefixes: Mapping[str, str | Prefix] | None = None,
    root: str | Path | None = None,
    link: Checkpoint | None = None,
) -> Manifest:
    """Write several programs as one bundle, as `save` does for a `Bundle`.

    Args:
        programs: A `Bundle`, or programs by method name. `Bundle` documents which weights they share.
        path, root, link: As for `save`.
        prefixes: As for `Bundle`; not allowed if `programs` is a `Bundle`, which has its own.

    Raises:
        ValueError, TypeError, FileWriteError: As for `Bundle` and `save`. ValueError also if `prefixes` are
            passed with a `Bundle`.

    Example:
        >>> import torch
        >>> from fakexport.exporting.capture import export
        >>> model, row = torch.nn.Linear(4, 4), torch.zeros(1, 4)
        >>> programs = {"one": export(model, (row,)), "two": export(model, (row.repeat(2, 1),))}
        >>> save_bundle(programs, "/tmp/linear.pt2").shared
        ((('one', 'weight'), ('two', 'weight')), (('one', 'bias'), ('two', 'bias')))
    """
    if not isinstance(programs, Bundle):
        programs = Bundle(programs, prefixes=prefixes)
    elif prefixes is not None:
        raise InvalidValue(
            "the bundle already has prefixes: create a new one with `Bundle(bundle, prefixes=...)`"
        )
    return save(programs, path, root=root, link=link)


def _payloads(bundle: Bundle, links: Links | None) -> dict[str, tuple[Payload, Payload]]:
    """Return the weights and constants of each method. A shared record belongs to the first method."""
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
        first_constant += len(constants[method].config)
    if len(bundle) > 1:
        share_records(weights, constants, bundle.shared)
    return {method: (weights[method], constants[method]) for method in bundle}


def _check_whole(weights: Payload, constants: Payload) -> None:
    """Reject a program with real weights if other weights are fake, or if a constant has no value."""
    if _kind(weights) == "none":
        return
    fake = next((name for name, entry in weights.config.items() if entry["path_name"] == UNBOUND), None)
    if fake is not None:
        raise InvalidValue(f"some weights are real, but {fake} is fake")
    if constants.unbound:
        raise InvalidValue(
            f"the weights are bound, but the constant {constants.unbound[0].name} has no value: pass it to "
            "`bind(..., constants={name: tensor})`"
        )


def _model(program: ExportedProgram, root: str | Path, *, is_for_stock: bool) -> bytes:
    with collection_paused():
        return encoded(program_to_json(program, root=root, is_for_stock=is_for_stock))


def _described(
    program: ExportedProgram,
    weights: Payload,
    constants: Payload,
    prefix: Prefix | None,
    computed: Mapping[str, str | None],
    recipes: tuple[Recipe, ...],
    *,
    root: str | Path | None,
) -> MethodManifest:
    """Return the manifest of one program. Record hashes are added when the records are written."""
    facts = facts_of(program)
    topology, profiles = facts.topology, facts.profiles
    if topology is not None and profiles is None:
        devices = Topology.parse(topology)
        topology, profiles = devices.canonical, [device.profile.name for device in devices.devices]
    kind = _kind(weights)
    operators = library_operators(program)
    same = (
        *("dtype", "dynamic_shapes", "load_hooks", "call", "adapter", "parallel", "stage", "sizes"),
        *("parameters", "unpacked_parameters", "settings"),
    )
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
        recipes=recipes,
        computed=computed,
        prefix=prefix,
    )


def _kind(weights: Payload) -> WeightsKind:
    locations = [tensor.location for tensor in weights.tensors if tensor.location]
    if any(location.is_link for location in locations):
        return "linked"
    return "inside" if locations else "none"


def sample_inputs_record(program: ExportedProgram) -> bytes:
    """Return the record of example inputs for a bound program: expanded zeros in plain containers.

    `torch.export.load` reads this pickle without running code (`weights_only`); fakexport never reads it. It
    is empty for a program without weights, because stock torch cannot run such a program.
    """
    if unbound_names(program):
        return b""
    content = io.BytesIO()
    torch.save(stand_in_inputs(program, device="cpu"), content)
    return content.getvalue()


class WeightsDroppedWarning(UserWarning):
    """Warning that an archive was written without weights, because retargeting dropped them."""


def warn_of_weights(path: str, names: Sequence[str]) -> None:
    """Warn about dropped weights. The warning shows the line that called fakexport."""
    if names:
        what = f"{len(names):,} weights, such as {names[0]}, were" if len(names) > 1 else f"{names[0]} was"
        text = (
            f"{path} has no weights: {what} dropped, because the new devices are not on this machine; "
            "bind the checkpoint again on a machine that has them"
        )
        warnings.warn(WeightsDroppedWarning(text), stacklevel=caller_level())


_SOURCE = re.compile(
    r"(?P<kind>(?:[a-z]+:)?)(?P<path>(?:~|[A-Za-z]:)?[/\\].*?\.(?:json|py))(?P<rest>(?::.*)?)"
)
_PATH = re.compile(r"(?<![\w.~/])~?/[^\s'\"=,()\[\]:]+")


def portable(text: str, root: str | os.PathLike[str] | None = None) -> str:
    """Make absolute paths in a text relative to `root`. A path outside `root` is reduced to its last part.

    Example:
        >>> portable("hf:/home/me/work/gpt2.json:AutoModel", "/home/me")
        'hf:work/gpt2.json:AutoModel'
        >>> portable("/tmp/my models/model.py:factory")
        'model.py:factory'
    """
    paths = SourcePaths(None if root is None else Path(root))

    def shortened(path: str) -> str:
        return paths.shortened(os.path.expanduser(path))  # noqa: PTH111 (`~x` may not be a user)

    if source := _SOURCE.fullmatch(text):  # A path in a source may contain spaces.
        return f"{source['kind']}{shortened(source['path'])}{source['rest']}"
    return _PATH.sub(lambda found: shortened(found[0]), text)
