"""Where the exported program behaves differently from what the model code suggests: the rules FE9."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport.capture import KeptMask, PythonEffect
from fakexport.diagnose.forward_repairs import REPAIRS
from fakexport.diagnose.labels import labels_at
from fakexport.diagnose.marked_code import replaced
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import (
    named_devices,
    shared_outputs,
    source_span,
    training_operators,
    walk,
    written_inputs,
)
from fakexport.rules import rule


def diagnose_behaviour(
    program: ExportedProgram, effects: Iterable[PythonEffect] = (), kept_masks: Iterable[KeptMask] = ()
) -> Iterator[Diagnostic]:
    """Report what eager code does and the program does not, or does differently.

    Reports:
        All of FE9.
    """
    yield from _training(program)
    yield from _written(program)
    yield from map(_python, effects)
    yield from _generators(program)
    yield from _current_devices(program)
    yield from _masks(kept_masks)
    yield from _plain_attributes(program)
    yield from _shared(program)


def _training(program: ExportedProgram) -> Iterator[Diagnostic]:
    for found in training_operators(program):
        yield rule("FE901").diagnostic(
            labels=labels_at(found.span, f"`{found.operator}` runs with `{found.argument}`"),
            notes=(f"{found.module_path or 'the model'}: `{found.operator}`, `{found.argument}`",),
            fix=Fix("call `.eval()` on the model before it is exported"),
            node=found.node,
            module_path=found.module_path or None,
        )


def _written(program: ExportedProgram) -> Iterator[Diagnostic]:
    for found in written_inputs(program):
        yield rule("FE902").diagnostic(
            labels=labels_at(found.span, f"`{found.operator}` writes into the input `{found.name}`"),
            notes=(f"the caller's tensor `{found.name}` is changed by each call",),
            fix=Fix("compute a new tensor: `x = x + 1` instead of `x += 1`, or write into `x.clone()`"),
            node=found.node,
            module_path=found.module_path or None,
        )


def _python(effect: PythonEffect) -> Diagnostic:
    kind = "default" if ".set_default_" in effect.what and effect.kind == "state" else effect.kind
    place = f"{effect.module_path}.{effect.what}".lstrip(".")
    words = {"what": effect.what, "place": place, "root": effect.what.partition(".")[0]}
    code, label, note, fix = (REPAIRS["effect"][kind][part] for part in ("code", "label", "note", "fix"))
    changes = replaced(effect.span, "None") if kind == "print" else ()
    return rule(code).diagnostic(
        labels=labels_at(effect.span, label.format_map(words)),
        notes=(note.format_map(words),),
        fix=Fix(fix, changes=changes),
        module_path=effect.module_path or None,
    )


def _generators(program: ExportedProgram) -> Iterator[Diagnostic]:
    """A generator that `forward` makes is one object of the program, and the state of one is a constant."""
    constants = {
        spec.arg.name: program.constants[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.target in program.constants
    }
    for node in program.graph.nodes:
        for value in filter(
            _is_generator_or_state, (constants.get(each.name) for each in node.all_input_nodes)
        ):
            is_generator = isinstance(value, torch.Generator)
            verb, noun = ("draws from", "") if is_generator else ("reads", "the state of ")
            note = "draws on from call to call, and it cannot be saved" if is_generator else "reads one state"
            yield rule("FE910").diagnostic(
                labels=labels_at(source_span(node), f"{verb} {noun}a `torch.Generator`"),
                notes=(f"the program {note}",),
                fix=Fix("draw from the default generator, or pass what is drawn as an input"),
                node=node.name,
            )


def _current_devices(program: ExportedProgram) -> Iterator[Diagnostic]:
    """A device without an index is the current one of each call: a program does not choose it."""
    for node in (visit.node for visit in walk(program)):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.device.index or value.device.type == "cpu":
            continue
        if value.device.type not in named_devices(node):
            continue
        yield rule("FE910").diagnostic(
            labels=labels_at(source_span(node), f"takes the current device, here `{value.device}`"),
            notes=(f"the program takes the current device of each call, `{value.device.type}:0` as a rule",),
            fix=Fix(f'name the device: `device="{value.device}"`, or that of a tensor, `device=x.device`'),
            node=node.name,
        )


def _is_generator_or_state(value: object) -> bool:
    state = torch.default_generator.get_state()
    is_state = isinstance(value, torch.Tensor) and (value.dtype, value.shape) == (state.dtype, state.shape)
    return is_state or isinstance(value, torch.Generator)


def _masks(masks: Iterable[KeptMask]) -> Iterator[Diagnostic]:
    for mask in masks:
        yield rule("FE908").diagnostic(
            labels=labels_at(mask.span, "attention gets a causal mask, and is not causal without one"),
            notes=(
                "with sdpa, eager mode drops a causal mask where nothing is padded, and here tokens then see "
                "those after them; the program keeps it, as eager mode does for padded inputs",
            ),
            fix=Fix(
                'load the model with `attn_implementation="eager"`, or set it in the config: eager mode then '
                "keeps the mask, as the program does"
            ),
            module_path=mask.module_path,
        )


def _plain_attributes(program: ExportedProgram) -> Iterator[Diagnostic]:
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        is_literal = (spec.target or "").rpartition(".")[2].startswith("lifted_tensor_")
        if spec.kind is not InputKind.CONSTANT_TENSOR or spec.target is None or is_literal:
            continue
        path, _, name = spec.target.rpartition(".")
        users = nodes[spec.arg.name].users
        span = next((found for user in users if (found := source_span(user))), None)
        yield rule("FE904").diagnostic(
            labels=labels_at(span, f"reads `{name}`, which is neither a parameter nor a buffer"),
            notes=(f"{spec.target}: a tensor that the module holds as a plain attribute",),
            fix=Fix(f"`self.register_buffer({name!r}, ..., persistent=False)` in the constructor"),
            module_path=path or None,
        )


def _shared(program: ExportedProgram) -> Iterator[Diagnostic]:
    for found in shared_outputs(program):
        yield rule("FE905").diagnostic(
            labels=labels_at(found.span, f"the output `{found.name}` is the memory of {found.other}"),
            notes=(f"the output `{found.name}` shares its memory with {found.other}",),
            fix=Fix("return a copy, `x.clone()`, if the caller writes into it"),
            module_path=found.module_path or None,
        )
