"""Encode a program as JSON in torch's own schema, and decode it from an untrusted document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram, ExportGraphSignature
from torch.export.graph_signature import CustomObjArgument, InputKind

from fakexport._torch.tracing.program_assembly import DIALECTS, as_parameter, assemble, guards_code
from fakexport._torch.tracing.program_schema import SCHEMA_VERSION, aten_version
from fakexport._torch.tracing.symbolic_numbers import SymbolTable, finite_bound, value_range
from fakexport.archive.codec.document import check_version, read_guards, read_range
from fakexport.archive.codec.graph_decoder import GraphDecoder, Shared
from fakexport.archive.codec.graph_encoder import GraphEncoder
from fakexport.archive.codec.guard_text import checked_guard
from fakexport.archive.codec.node_metadata import MetadataDecoder, MetadataEncoder, custom_json
from fakexport.archive.codec.operator_lookup import Operators
from fakexport.archive.codec.signature import SignatureDecoder, SignatureEncoder
from fakexport.archive.codec.values import Json, ValueDecoder, ValueEncoder
from fakexport.exporting.guards import conditions_of
from fakexport.exporting.interface import UnreadableCondition
from fakexport.exporting.program import SourcePaths, with_plain_indexing
from fakexport.files.documents import (
    DocumentError,
    collection_paused,
    entries,
    field,
    items,
    mapping,
    one_of,
    text,
)


@dataclass(frozen=True)
class MissingObject:
    """Placeholder for a constant that is a C++ object. A program's document does not contain the object's
    state.

    Args:
        qualified_name: Name of the class, such as `__torch__.torch.classes.signal_ops.Polynomial`.
    """

    qualified_name: str


def program_from_json(document: Any, *, trust: bool = False) -> ExportedProgram:
    """Decode the program that a `models/model.json` describes. This is safe for untrusted documents.

    It does not execute, import or load anything that the document names. Expressions and guards are parsed
    with a separate grammar, only registered operators are accepted, and types and sizes are checked before
    values are passed to torch. The devices of the program need not exist on this machine.

    Args:
        document: The result of `json.loads`. It is not changed.
        trust: Also accept operators with side effects, such as those that open files.

    Returns:
        A validated program without example inputs. Each node has a fake value in `meta["val"]`, with the
        symbols, ranges and hints of the original. Weights and constants are fake tensors of the same fake
        mode, with the properties in the document. Instead of each C++ object, the program contains a
        `MissingObject`, which the caller replaces.

    Raises:
        DocumentError: The document is invalid. The message is a single line with the position and the fault.
    """
    try:
        with collection_paused():
            return _program(document, Operators(trust=trust))
    except DocumentError:
        raise
    except Exception as error:  # errors that torch only finds when it assembles the checked parts
        raise DocumentError(f"torch rejects the program: {type(error).__name__}: {error}") from error


def _program(document: Any, operators: Operators) -> ExportedProgram:
    owner = mapping(document)
    field(owner, "schema_version", check_version)
    bounds = field(owner, "range_constraints", lambda v: entries(v, read_range))
    ranges = {name: value_range(found.lower, found.upper) for name, found in bounds.items()}
    dialects = field(owner, "verifiers", lambda v: items(v, one_of(DIALECTS, "dialect")), ["ATEN"])
    guards = field(
        owner, "guards_code", lambda v: read_guards(v, lambda guard: checked_guard(text(guard))), []
    )
    table = SymbolTable(ranges)
    shared = Shared(ValueDecoder(table), operators, MetadataDecoder(operators.remembered_function))
    signatures = SignatureDecoder(operators)
    graph_module = field(owner, "graph_module", mapping)
    try:
        signature = field(graph_module, "signature", signatures.signature)
        names = [getattr(spec.arg, "name", "") for spec in signature.input_specs]
        main = GraphDecoder(shared, names)
        field(graph_module, "graph", main.decode)
        if (unbound := table.unbound_symbols()) and not shared.values.are_offsets_alone(unbound):
            raise DocumentError(f"no value defines the symbol {unbound[0]}")
        calls = field(graph_module, "module_call_graph", lambda v: items(v, signatures.call))
        meta = field(graph_module, "metadata", lambda v: entries(v, text), {})
    except DocumentError as error:
        raise error.within("graph_module") from None
    state_dict, constants = _fakes(main, signature)
    return assemble(
        root=main.root,
        graph=main.graph,
        signature=signature,
        state_dict=state_dict,
        constants=constants,
        range_constraints={
            table.symbols[name]: bounds for name, bounds in ranges.items() if name in table.symbols
        },
        module_call_graph=calls,
        dialects=dialects,
        guards=guards,
        meta={"custom": shared.metadata.custom(meta["custom"])} if "custom" in meta else {},
    )


def _fakes(main: GraphDecoder, signature: ExportGraphSignature) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fake state dict and the constants, by name, as the document describes them."""
    state_dict: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for spec in signature.input_specs:
        if spec.target is None:
            continue
        if isinstance(spec.arg, CustomObjArgument):
            constants[spec.target] = MissingObject(spec.arg.class_fqn)
        elif (value := main.new_tensor(spec.arg.name)) is None:
            continue
        elif spec.kind is InputKind.PARAMETER:
            state_dict[spec.target] = as_parameter(value)
        else:
            is_state = spec.kind is InputKind.BUFFER and spec.persistent is not False
            (state_dict if is_state else constants)[spec.target] = value
    return state_dict, constants


def program_to_json(
    program: ExportedProgram, *, root: str | Path | None = None, is_for_stock: bool = False
) -> Json:
    """Encode a program as the document that stock torch stores as `models/model.json` in a `.pt2` archive.

    The document contains everything except tensors. It is deterministic: it contains no addresses and no
    absolute paths of source files, and the order of its entries does not depend on hashes.

    Args:
        root: Folder of the user's project. Source files below it are stored with their relative path, and
            other files outside packages with their file name only.
        is_for_stock: Whether to use only torch's schema, so that stock torch can read the document.
            Otherwise, possibly only `program_from_json` can read it.

    Returns:
        Dicts, lists, strings, numbers, true, false and null for `json.dumps`. Equal parts may be the same
        object, so do not modify the document in place.

    Raises:
        ValueError: The program contains something that torch's schema cannot express, or that could only be
            read back by running code. The error names the node and the reason.
    """
    with collection_paused():
        return _document(
            program,
            GraphEncoder(ValueEncoder(), MetadataEncoder(SourcePaths(root)), is_for_stock=is_for_stock),
        )


def _document(program: ExportedProgram, encoder: GraphEncoder) -> Json:
    graph = encoder.encode(with_plain_indexing(program))
    signatures = SignatureEncoder()
    custom = program.graph_module.meta.get("custom")
    return {
        "graph_module": {
            "graph": graph,
            "signature": signatures.signature(program.graph_signature),
            "module_call_graph": [signatures.call(entry) for entry in program.module_call_graph],
            "metadata": {"custom": custom_json(custom)} if custom else {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": aten_version()},
        "range_constraints": {
            str(symbol): {"min_val": finite_bound(bounds.lower), "max_val": finite_bound(bounds.upper)}
            for symbol, bounds in sorted(program.range_constraints.items(), key=lambda item: str(item[0]))
        },
        "schema_version": {"major": SCHEMA_VERSION[0], "minor": SCHEMA_VERSION[1]},
        "verifiers": [verifier.dialect for verifier in program.verifiers],
        "torch_version": str(torch.__version__),
        "guards_code": _guards(program),
    }


def _guards(program: ExportedProgram) -> list[str]:
    """Return the guards on inputs as torch writes them, after checking that `load` would accept them.

    Raises:
        ValueError: A guard cannot be stored; the error names the first one.
    """
    guards = guards_code(program)
    for guard in guards:
        try:
            checked_guard(guard)
        except DocumentError as error:
            raise UnreadableCondition(guard, str(error)) from error
    conditions_of(program)
    return guards
