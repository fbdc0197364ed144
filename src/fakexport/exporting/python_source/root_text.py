"""Write the Python class of the program itself, with inputs, checks, mutations and results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, Node

from fakexport._torch.tracing.symbolic_numbers import expression_of, finite_bound
from fakexport.exporting.guards import argument_names_of, conditions_of, leaves_of, linear_size
from fakexport.exporting.interface import InputLeaf, UnreadableCondition, expression_text
from fakexport.exporting.program import input_nodes

from .class_text import ClassWriter, assigned, class_text, defined_constructor
from .literal_text import Devices, literal_text, quoted
from .method_text import MethodText, defined
from .module_tree import ModuleTree
from .names import base_name, comment_text, identifier

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def root_text(program: ExportedProgram, graph: Graph, writer: ClassWriter) -> tuple[str, str, list[str]]:
    """Return the name and the text of the program's class. All other classes must already be written.

    Also return the types of output containers that are written as plain containers, so that no library is
    needed.
    """
    node = writer.tree.root
    devices = Devices(writer.devices, node.names)
    devices.name_all()
    base, statements = writer.constructor(node, devices)
    scope = writer.scope(node, devices)
    text = MethodText(scope, writer.owner)
    parameters, lines = _inputs(program, graph, text)
    lines += text.region(node.regions[0])
    foreign: dict[str, None] = {}
    lines += _results(program, graph, text, foreign)
    method = [*defined(scope.names.new("forward"), parameters, lines), *scope.subgraph_methods()]
    unknown = [entry.place for entry in writer.in_file if entry.value is None]
    given = [f"{name}={quoted(device)}" for device, name in devices.used.items()]
    statements += [*_ties(writer.tree), *_loading(unknown)]
    statements += ["load_constants(self)"] if len(unknown) < len(writer.in_file) else []
    constructor = defined_constructor(
        [*(["constants"] if unknown else ()), *given],
        devices,
        statements,
        [f"{name} = torch.device({name})" for name in devices.used.values()],
    )
    name = writer.class_names.new(identifier(node.kind.rpartition(".")[2], otherwise="Module"))
    body = [*constructor, *method]
    return name, class_text(name, base, node.kind, "the program", body), list(foreign)


def _ties(tree: ModuleTree) -> Iterator[str]:
    for first, *others in tree.ties:
        source = tree.root.reach(first)
        for other in others:
            owner, _, name = other.rpartition(".")
            yield assigned(tree.root.reach(owner) if owner else "self", name, source)


def _loading(unknown: Sequence[str]) -> Iterator[str]:
    for path in unknown:
        owner, _, name = path.rpartition(".")
        yield f"# The program has no value for {comment_text(path)}."
        held = f"self.get_submodule({quoted(owner)}).get_buffer({quoted(name)})"
        yield f"{held}.copy_(constants[{quoted(path)}])"


def _inputs(program: ExportedProgram, graph: Graph, text: MethodText) -> tuple[list[str], list[str]]:
    """Return the parameters of `forward`, and the statements that unpack and check the inputs."""
    positional, keywords = program.call_spec.in_spec.children()
    count = positional.num_children
    given = list(argument_names_of(program)[:count])
    given += [f"arg_{index}" for index in range(len(given), count)]
    wanted = [*given, *keywords.context]
    names = [text.names.new(identifier(str(name))) for name in wanted]
    nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
    remaining = iter(leaves_of(program))
    lines, parameters, found = list[str](), list[str](), list[tuple[InputLeaf, Node, str]]()
    for name, part in zip(names, (*positional.children(), *keywords.children()), strict=True):
        leaves = list(islice(remaining, part.num_leaves))
        default = f"={literal_text(leaves[0].constant)}" if part.is_leaf() and _is_fixed(leaves[0]) else ""
        parameters.append(f"{name}{default}")
        for index, leaf in enumerate(leaves):
            node, place = nodes[leaf.name], name
            if part.is_leaf():
                text.values[node] = name
            else:
                keys = "".join(f"[{literal_text(key)}]" for key in (leaf.path or ())[1:])
                text_of_leaf = f"{name}{keys}" if keys else f"pytree.tree_leaves({name})[{index}]"
                place = text.declare(node, base_name(node.name))
                lines.append(f"{place} = {text_of_leaf}")
            found.append((leaf, node, place))
    last = max((at for at, parameter in enumerate(parameters[:count], 1) if "=" not in parameter), default=0)
    parameters[:last] = [parameter.partition("=")[0] for parameter in parameters[:last]]
    parameters[count:count] = ["*"] if keywords.context else []
    return parameters, [*lines, *dict.fromkeys(_checks(program, found))]


def _is_fixed(leaf: InputLeaf) -> bool:
    return leaf.constant is not ... and not isinstance(leaf.constant, Enum)


def _checks(program: ExportedProgram, inputs: Sequence[tuple[InputLeaf, Node, str]]) -> Iterator[str]:
    values = [(place, node.meta.get("val")) for _, node, place in inputs]
    symbols = {
        expression.name: place
        for place, expression in reversed(list(_sizes(values)))
        if isinstance(expression, sympy.Symbol)
    }
    for leaf, _, place in inputs:
        if _is_fixed(leaf):
            is_single = leaf.constant is None or isinstance(leaf.constant, bool)
            yield f"assert {place} {'is' if is_single else '=='} {literal_text(leaf.constant)}"
    for place, value in values:
        if isinstance(value, torch.Tensor):
            yield from _shape_checks(place, value, symbols)
    for symbol, bounds in program.range_constraints.items():
        if str(symbol) in symbols:
            yield from _range_check(symbols[str(symbol)], bounds)
    try:
        conditions = conditions_of(program)
    except UnreadableCondition as error:
        yield f"# not checked here: {comment_text(str(error))}"
        return
    places = {leaf.name: place for leaf, _, place in inputs}
    for condition in conditions:
        yield f"assert {expression_text(condition.check, places)}"


def _sizes(values: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each size of an input: a Python expression that reads the size, and the symbolic size."""
    for place, value in values:
        if isinstance(value, torch.SymInt):
            yield place, expression_of(value)
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                yield f"{place}.shape[{dim}]", expression_of(size)


def _shape_checks(place: str, value: torch.Tensor, symbols: Mapping[str, str]) -> Iterator[str]:
    """Yield checks of static sizes and of sizes computed from another size; see also `conditions_of`."""
    if all(isinstance(size, int) for size in value.shape):
        yield f"assert {place}.shape == {tuple(value.shape)}"
        return
    yield f"assert {place}.dim() == {value.dim()}"
    yield from (f"assert {place}.shape[{d}] == {n}" for d, n in enumerate(value.shape) if isinstance(n, int))
    for own, expression in _sizes([(place, value)]):
        name, times, plus = linear_size(expression) or ("", 0, 0)
        if name in symbols and symbols[name] != own:
            product = symbols[name] if times == 1 else f"{times} * {symbols[name]}"
            yield f"assert {own} == {product}{f' + {plus}' if plus else ''}"


def _range_check(text: str, bounds: Any) -> Iterator[str]:
    """Yield the check of a range. As in torch, a lower bound of 2 means unspecialized: 0 and 1 are valid."""
    lower, upper = finite_bound(bounds.lower), finite_bound(bounds.upper)
    below = f"{lower} <= " if lower is not None and lower > 2 else ""
    above = f" <= {upper}" if upper is not None else ""
    if below or above:
        yield f"assert {below}{text}{above}"


def _results(
    program: ExportedProgram, graph: Graph, text: MethodText, foreign: dict[str, None]
) -> Iterator[str]:
    """Yield the statements that write new values into buffers and inputs, and the `return` statement."""
    inputs = input_nodes(program, graph)
    nodes = {node.name: node for _, node in inputs}
    stored = {spec.target: node for spec, node in inputs if spec.target}
    (output,) = graph.find_nodes(op="output")
    returned, copied = list[Any](), dict[Any, str]()
    for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            returned.append(value)
        elif spec.kind in _MUTATIONS:
            is_input = spec.kind is OutputKind.USER_INPUT_MUTATION
            target = text.text(nodes[spec.target] if is_input else stored[spec.target])
            yield f"{target}.copy_({text.text(value)})"
            copied[value] = target
    leaves = (copied.get(value) if isinstance(value, Node) else None for value in returned)
    texts = (known or text.text(value) for known, value in zip(leaves, returned, strict=True))
    yield f"return {_container(program.call_spec.out_spec, texts, foreign)}"


def _container(spec: Any, leaves: Iterator[str], foreign: dict[str, None]) -> str:
    if spec.is_leaf():
        return next(leaves)
    parts = [_container(child, leaves, foreign) for child in spec.children()]
    if spec.type not in (tuple, list, dict, OrderedDict):
        foreign[f"{spec.type.__module__}.{spec.type.__qualname__}"] = None
    if spec.type is list:
        return f"[{', '.join(parts)}]"
    if (keys := _keys(spec)) is not None:
        pairs = [f"{literal_text(key)}: {part}" for key, part in zip(keys, parts, strict=True)]
        text = f"{{{', '.join(pairs)}}}"
        return f"OrderedDict({text})" if spec.type is OrderedDict else text
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _keys(spec: Any) -> list[Any] | None:
    """Return the keys of a mapping, including mapping types that a library registered, or None."""
    if spec.type in (dict, OrderedDict):
        return list(spec.context)
    for keys in (spec.context, *(spec.context if isinstance(spec.context, (list, tuple)) else ())):
        is_keys = isinstance(keys, (list, tuple)) and len(keys) == spec.num_children
        if is_keys and keys and all(isinstance(key, str) for key in keys):
            return list(keys)
    return None
