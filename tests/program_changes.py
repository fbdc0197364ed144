"""Every way to change one part of a program or of a value, by its path; for tests of what compares them."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils._pytree import TreeSpec
from torch.utils._sympy.value_ranges import ValueRanges

from fakexport.exporting.program import derived_program
from fakexport.exporting.program.program_copy import graph_modules

Change = Callable[[ExportedProgram], None]


def copied(program: ExportedProgram) -> ExportedProgram:
    """Return a copy that shares nothing but tensors and values of nodes."""
    made = derived_program(
        program,
        state_dict=program.state_dict,
        constants=program.constants,
        signature=copy.deepcopy(program.graph_signature),
    )
    for entry in made.module_call_graph:
        entry.signature = copy.copy(entry.signature)
    return made


def sample(kind: Any) -> Any:
    """Return a value of a type, every field of a dataclass filled, without its checks."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return parts[0]
    if origin in (Union, types.UnionType):
        return sample(next(part for part in parts if part is not types.NoneType))
    if origin is tuple:
        return tuple(sample(part) for part in parts if part is not Ellipsis)
    if origin is not None and issubclass(origin, Mapping):
        return {sample(parts[0]): sample(parts[1])}
    if origin is frozenset:
        return frozenset({sample(parts[0])})
    if origin is not None and issubclass(origin, Sequence):
        return (sample(parts[0]),)
    if dataclasses.is_dataclass(kind):
        made = object.__new__(kind)
        for name, hint in get_type_hints(kind).items():
            object.__setattr__(made, name, sample(hint))
        return made
    known: dict[Any, Any] = {str: "a", int: 1, float: 0.5, bool: True, torch.Tensor: torch.ones(2)}
    return nn.Linear(1, 1) if kind is nn.Module else known[kind]


def variants(value: Any, nodes: Sequence[Node] = ()) -> Iterator[tuple[str, Any]]:
    """Yield values that differ from one in a single part, with the path of the part.

    Args:
        value: A value of a dataclass, or an argument of a node.
        nodes: Nodes that may replace one.
    """
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.compare:
                for path, other in variants(getattr(value, field.name), nodes):
                    made = copy.copy(value)
                    object.__setattr__(made, field.name, other)
                    yield f".{field.name}{path}", made
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from ((f"[{key!r}]{path}", {**value, key: other}) for path, other in variants(item, nodes))
            rest = {k: v for k, v in value.items() if k != key}
            yield f" without {key!r}", rest
            yield f" with another name of {key!r}", {**rest, "another": item}
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            for path, other in variants(item, nodes):
                yield f"[{at}]{path}", type(value)([*value[:at], other, *value[at + 1 :]])
            yield f" without [{at}]", type(value)([*value[:at], *value[at + 1 :]])
        if len(value) > 1 and value[0] is not value[1]:
            yield " exchanged", type(value)([value[1], value[0], *value[2:]])
    elif isinstance(value, frozenset):
        yield " emptied", frozenset()
    else:
        yield from ((f" -> {other!r}"[:60], other) for other in _others(value, nodes))


def _others(value: Any, nodes: Sequence[Node]) -> Iterator[Any]:
    match value:
        case Node():
            yield from [node for node in nodes if node is not value][:1]
        case bool():
            yield from (not value, int(value))
        case int():
            yield from (value + 1, float(value))
        case float():
            yield from (value + 1, -value)
        case str():
            yield from (value + "  x", value + " x")
        case None:
            yield 1
        case torch.dtype():
            yield torch.float64 if value is not torch.float64 else torch.float32
        case torch.device():
            yield torch.device("cuda:1")
        case torch.layout():
            yield torch.sparse_coo
        case torch.Tensor():
            yield value + 1
        case nn.Module():
            yield nn.Linear(1, 1)
        case _:
            raise AssertionError(f"no other value is known for a {type(value)}: add one")


def changes_of_nodes(program: ExportedProgram) -> Iterator[tuple[str, Change]]:
    """Yield changes of each node: operator, arguments, each entry of `meta`, each property of its value."""
    for at, owner in enumerate(graph_modules(program.graph_module)):
        nodes = list(owner.graph.nodes)
        for place, node in enumerate(nodes):
            for what, change in _changes_of_node(node, nodes[:place]):
                yield f"graph {at} {node.name}: {what}", _at(at, place, change)


NodeChange = Callable[[Node, Sequence[Node]], None]


def _at(graph: int, place: int, change: NodeChange) -> Change:
    def changed(program: ExportedProgram) -> None:
        nodes = list(list(graph_modules(program.graph_module))[graph].graph.nodes)
        change(nodes[place], nodes[:place])

    return changed


def _changes_of_node(node: Node, before: Sequence[Node]) -> Iterator[tuple[str, NodeChange]]:
    if node.op == "call_function":
        yield "target", lambda node, _: setattr(node, "target", torch.ops.aten.tan.default)
    if node.op == "get_attr":
        yield "target", _exchange_subgraph
    if node.op in ("call_function", "output"):
        before = [other for other in before if other.op != "get_attr"]
        for field in ("args", "kwargs"):
            for number, (path, _) in enumerate(variants(getattr(node, field), before)):
                is_message = "_assert_scalar" in str(node.target) and path.startswith("[1] ->")
                what = "message of an assertion" if is_message else f"{field}{path}"
                yield what, _argument_change(field, number)
    for key, value in node.meta.items():
        if key == "val":
            yield from _changes_of_value(value)
        else:
            yield f"meta {key}", lambda node, _, key=key: node.meta.pop(key)


def _exchange_subgraph(node: Node, _: Sequence[Node]) -> None:
    owner = node.graph.owning_module
    assert owner is not None
    names = [name for name, held in owner.named_children() if isinstance(held, GraphModule)]
    node.target = next(name for name in names if name != node.target)


def _argument_change(field: str, number: int) -> NodeChange:
    def change(node: Node, before: Sequence[Node]) -> None:
        before = [other for other in before if other.op != "get_attr"]
        setattr(node, field, list(variants(getattr(node, field), before))[number][1])

    return change


def _changes_of_value(value: Any) -> Iterator[tuple[str, NodeChange]]:
    if isinstance(value, torch.Tensor):
        for name, change in _TENSOR_CHANGES.items():
            yield f"val {name}", lambda node, _, change=change: _replace_value(node, (), change)
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                for name, change in _TENSOR_CHANGES.items():
                    yield (
                        f"val[{at}] {name}",
                        lambda node, _, at=at, change=change: _replace_value(node, (at,), change),
                    )
    elif value is not None:
        yield "val", lambda node, _: node.meta.update(val=None)


def _replace_value(node: Node, path: tuple[int, ...], change: Callable[[Any], torch.Tensor]) -> None:
    value = node.meta["val"]
    if not path:
        node.meta["val"] = change(value)
    else:
        node.meta["val"] = type(value)(change(v) if at == path[0] else v for at, v in enumerate(value))


def _like(value: Any, sizes: Any = None, strides: Any = None, dtype: torch.dtype | None = None) -> Any:
    with value.fake_mode:
        return torch.empty_strided(
            tuple(value.shape) if sizes is None else sizes,
            value.stride() if strides is None else strides,
            dtype=dtype or value.dtype,
            device=value.device,
        )


def _elsewhere(value: Any) -> Any:
    made = _like(value)
    made.fake_device = torch.device("cuda:3")
    return made


_TENSOR_CHANGES: Mapping[str, Callable[[Any], torch.Tensor]] = {
    "dtype": lambda v: _like(v, dtype=torch.int16 if v.dtype != torch.int16 else torch.int32),
    "shape": lambda v: _like(v, (*v.shape, 3), (*v.stride(), 1)),
    "stride": lambda v: (
        _like(v, strides=tuple(s * 2 for s in v.stride())) if v.dim() else _like(v, (1,), (1,))
    ),
    "device": _elsewhere,
}


def changes_of_signature(program: ExportedProgram) -> Iterator[tuple[str, Change]]:
    """Yield changes of each field of each spec, and of the order of the specs and of the outputs."""
    for side in ("input_specs", "output_specs"):
        specs = getattr(program.graph_signature, side)
        for at, spec in enumerate(specs):
            for field in dataclasses.fields(spec):
                if getattr(spec, field.name) is None or (field.name == "arg" and len(specs) == 1):
                    continue
                yield f"{side}[{at}].{field.name}", _spec_change(side, at, field.name)
        if len(specs) > 1:
            yield f"{side}: two exchanged", _exchange_specs(side)
    if len(program.graph.output_node().args[0]) > 1:
        yield "outputs of the graph: two exchanged", _exchange_outputs


_KINDS = {
    "input_specs": (InputKind.BUFFER, InputKind.PARAMETER),
    "output_specs": (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION),
}


def _spec_change(side: str, at: int, name: str) -> Change:
    def changed(program: ExportedProgram) -> None:
        specs = getattr(program.graph_signature, side)
        spec = specs[at]
        match name:
            case "kind":
                spec.kind = next(kind for kind in _KINDS[side] if kind is not spec.kind)
            case "arg":
                spec.arg = next(other.arg for other in specs if other is not spec)
            case "target":
                spec.target = f"{spec.target}_other"
            case "persistent":
                spec.persistent = not spec.persistent
            case _:
                raise AssertionError(f"no change is known of {name}: add one")

    return changed


def _exchange_specs(side: str) -> Change:
    def changed(program: ExportedProgram) -> None:
        specs = getattr(program.graph_signature, side)
        specs[0], specs[1] = specs[1], specs[0]

    return changed


def _exchange_outputs(program: ExportedProgram) -> None:
    node = program.graph.output_node()
    first, second, *rest = node.args[0]
    node.args = ((second, first, *rest),)


def changes_of_tensors(program: ExportedProgram) -> Iterator[tuple[str, Change]]:
    """Yield changes of each entry of the state dict and of each constant."""
    for field in ("_state_dict", "_constants"):
        for name in vars(program)[field]:
            yield f"{field} without {name}", lambda p, f=field, n=name: vars(p)[f].pop(n)
            yield f"{field} {name} has another name", _rename(field, name)
            for what, change in _STATE_CHANGES.items():
                if what == "stride" and not vars(program)[field][name].dim():
                    continue
                yield f"{field} {name}: {what}", _entry_change(field, name, change)
    for name, value in program.constants.items():
        if type(value) is torch.Tensor:
            for bit in range(0, value.nbytes * 8, 37):
                yield f"constant {name}: bit {bit}", _flip(name, bit)


def _rename(field: str, name: str) -> Change:
    def changed(program: ExportedProgram) -> None:
        vars(program)[field]["another"] = vars(program)[field].pop(name)

    return changed


def _entry_change(field: str, name: str, change: Callable[[Any], Any]) -> Change:
    def changed(program: ExportedProgram) -> None:
        vars(program)[field][name] = change(vars(program)[field][name])

    return changed


_STATE_CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "dtype": lambda v: v.detach().to(torch.int16 if v.dtype != torch.int16 else torch.int32),
    "shape": lambda v: v.detach().unsqueeze(0),
    "stride": lambda v: v.detach().new_empty_strided(tuple(v.shape), tuple(2 * s for s in v.stride())),
    "requires_grad": lambda v: v.detach().to(torch.float16, copy=True).requires_grad_(not v.requires_grad),
    "no value": lambda v: torch.empty_like(v, device="meta"),
}


def _flip(name: str, bit: int) -> Change:
    def changed(program: ExportedProgram) -> None:
        value = program.constants[name].clone()
        memory = value.view(-1).view(torch.uint8)
        if value.dtype is torch.bool:
            memory[bit // 8] = 1 - memory[bit // 8]
        else:
            memory[bit // 8] ^= 1 << bit % 8
        program.constants[name] = value

    return changed


def changes_of_ranges(program: ExportedProgram) -> Iterator[tuple[str, Change]]:
    """Yield changes of each bound of each range."""
    for symbol, bounds in program.range_constraints.items():
        for what, other in {
            "lower": ValueRanges(bounds.lower + 1, bounds.upper),
            "upper": ValueRanges(bounds.lower, bounds.lower + 40),
        }.items():
            yield f"range {symbol} {what}", lambda p, s=symbol, o=other: p._range_constraints.update({s: o})
        yield f"no range of {symbol}", lambda p, s=symbol: p._range_constraints.pop(s)


def changes_of_guards(program: ExportedProgram) -> Iterator[tuple[str, Change]]:
    """Yield changes of each guard."""
    for at, guard in enumerate(program._guards_code):
        yield f"without {guard}", lambda p, at=at: p._guards_code.pop(at)
        other = f"not ({guard.partition(' and ')[0]})"
        yield f"the opposite of {guard}", lambda p, at=at, o=other: p._guards_code.__setitem__(at, o)
    yield "one more guard", lambda p: p._guards_code.append("L['flat_args'][0].size()[0] == 6")


def changes_of_calls(program: ExportedProgram) -> Iterator[tuple[str, Change]]:
    """Yield changes of the containers of inputs and outputs, and of the names of arguments."""
    signature = program.module_call_graph[0].signature
    assert signature is not None
    for name in ("in_spec", "out_spec"):
        for number, (what, _) in enumerate(_tree_changes(getattr(signature, name))):
            yield f"{name} {what}", _tree_change(name, number)
    for number, (what, _) in enumerate(variants(signature.forward_arg_names)):
        yield f"forward_arg_names{what}", _names_change(number)


def _tree_change(name: str, number: int) -> Change:
    def changed(program: ExportedProgram) -> None:
        signature = program.module_call_graph[0].signature
        assert signature is not None
        setattr(signature, name, list(_tree_changes(getattr(signature, name)))[number][1])

    return changed


def _names_change(number: int) -> Change:
    def changed(program: ExportedProgram) -> None:
        signature = program.module_call_graph[0].signature
        assert signature is not None
        signature.forward_arg_names = list(variants(signature.forward_arg_names))[number][1]

    return changed


def _tree_changes(tree: TreeSpec) -> Iterator[tuple[str, TreeSpec]]:
    if tree.is_leaf():
        return
    if tree.type is dict:
        for path, keys in variants(list(tree.context)):
            if len(keys) == len(tree.context):
                yield f"keys{path}", TreeSpec(dict, keys, tree.children())
    if tree.type is tuple:
        yield "list for tuple", TreeSpec(list, None, tree.children())
    for at, child in enumerate(tree.children()):
        for path, other in _tree_changes(child):
            children = [*tree.children()[:at], other, *tree.children()[at + 1 :]]
            yield f"[{at}]{path}", TreeSpec(tree.type, tree.context, children)
