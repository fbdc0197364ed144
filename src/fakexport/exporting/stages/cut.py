"""Cut an exported program into the programs of pipeline stages.

The nodes of a program are in the order of execution, so a stage is a range of nodes, which begins at the
first node of a module. A stage takes inputs of the program and values of earlier stages by name, and returns
a dict of the values that later stages need, and of the outputs of the program that it computes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, count
from operator import getitem
from typing import Any

import torch
from torch.export import ExportedProgram, ExportGraphSignature, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node

from fakexport._torch.tracing.program_assembly import (
    assemble,
    guards_code,
    leaf_spec,
    set_guards,
    tree_spec,
)
from fakexport._torch.tracing.vmap_steps import levels_opened
from fakexport.exporting.guards import always_guards, argument_names_of, has_identity_guard
from fakexport.exporting.program import (
    facts_of,
    give_stand_in_inputs,
    input_nodes,
    keep_facts,
    output_names,
    plain_path,
    tensor_identity,
)
from fakexport.files.documents import StageRecord

from .crossing import Needs, Repeatable, needs_of
from .errors import InseparableStages, StageError
from .memory_classes import MemoryClasses

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


def module_starts(program: ExportedProgram) -> dict[str, int]:
    """Return the position of the first node of each module, by path, in the order of execution.

    Modules that run only in a subgraph, such as a branch of `torch.cond`, or inside of `torch.vmap`, are left
    out.
    """
    starts: dict[str, int] = {}
    levels = 0
    for index, node in enumerate(program.graph.nodes):
        if node.op == "call_function":
            levels += levels_opened(node.target)
        # The items of a result belong to the stage of the result.
        if node.op == "call_function" and node.target is not getitem and not levels:
            for path, _ in (node.meta.get("nn_module_stack") or {}).values():
                starts.setdefault(plain_path(path), index)
    return starts


def cut(program: ExportedProgram, at: Sequence[str]) -> dict[str, ExportedProgram]:
    """Cut a program into stages. The program is not changed.

    Args:
        program: The program, with or without weights.
        at: Path of the module at which each stage after the first begins, in the order of execution.
    Returns:
        The programs `stage0`, `stage1`, ... Each contains only the weights that it uses. Numbers that the
        program returns are left out.
    Raises:
        StageError: a path is not a module of the program, the paths are not in the order of execution, or the
            program was decomposed and has side effects other than writes.
        InseparableStages: a stage needs what cannot be sent to it.
    """
    kinds = {spec.kind for spec in program.graph_signature.input_specs}
    if InputKind.TOKEN in kinds:
        raise StageError("a program with side effects cannot be cut after its decomposition: cut it before")
    stages = _stages(program, at)
    memory = MemoryClasses(program)
    values = _returned(program)
    returned = frozenset(value for value in values if isinstance(value, Node))
    for conflict in memory.conflicts(stages, returned):
        node, other = conflict.node, conflict.other
        here, there = stages.get(node, 0), stages.get(other, 0)
        if conflict.is_layout:
            raise InseparableStages(
                f"stage {here} depends on the memory layout of a slice or an expanded tensor of stage "
                f"{there}, but receives a dense copy",
                (node, f"writes, or reads by position, in stage {here}"),
                (other, f"is the received tensor, from stage {there}"),
            )
        why = f"that stage {there} uses, but stages share no memory"
        if here == there:
            why = "that several tensors of earlier stages share, but receives a copy of each"
        raise InseparableStages(
            f"stage {here} writes in place to memory {why}",
            (node, f"writes, in stage {here}"),
            (other, f"uses the memory, in stage {there}"),
        )
    parameters = [node for spec, node in input_nodes(program) if spec.kind is InputKind.PARAMETER]
    again = Repeatable(memory, program.graph_module)
    needs = [needs_of(stage, stages, again, parameters) for stage in range(len(at) + 1)]
    made = _Cut(program, at, stages, needs, values)
    return {f"stage{stage}": made.program_of(stage) for stage in range(len(needs))}


def _stages(program: ExportedProgram, at: Sequence[str]) -> dict[Node, int]:
    """Return the stage of each node that computes."""
    starts = module_starts(program)
    places: list[int] = []
    for path in at:
        if path not in starts:
            close = get_close_matches(path, starts, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise StageError(f"the program has no module {path!r} at which a stage could begin{hint}")
        if places and starts[path] <= places[-1]:
            raise StageError(
                f"a stage cannot begin at {path}, because the stage before it begins at "
                f"{at[len(places) - 1]}, which runs later or at the same time"
            )
        places.append(starts[path])
    found: dict[Node, int] = {}
    for index, node in enumerate(program.graph.nodes):
        if node.op != "call_function":
            continue
        source = node.args[0] if node.target is getitem else None
        found[node] = (
            found[source] if isinstance(source, Node) and source in found else bisect_right(places, index)
        )
    if places and 0 not in found.values():
        raise StageError(f"a stage cannot begin at {at[0]}, because nothing runs before it")
    for stage, path in enumerate(at, 1):
        if stage not in found.values():
            raise StageError(f"a stage cannot begin at {path}, because no operator would be in the stage")
    return found


def _returned(program: ExportedProgram) -> list[Any]:
    (returned,) = program.graph.output_node().args
    assert isinstance(returned, (list, tuple))
    return list(returned)


@dataclass(frozen=True)
class _Output:
    """An output of a stage: its name, and its value in the whole program."""

    name: str
    value: Node


class _Cut:
    """Build the programs of the stages."""

    def __init__(
        self,
        program: ExportedProgram,
        at: Sequence[str],
        stages: Mapping[Node, int],
        needs: Sequence[Needs],
        returned: Sequence[Any],
    ) -> None:
        self._program, self._at, self._stages, self._needs = program, at, stages, needs
        self._inputs = input_nodes(program)
        specs = program.graph_signature.output_specs
        pairs = list(zip(specs, returned, strict=True))
        self._mutations = [(spec, value) for spec, value in pairs if spec.kind is not OutputKind.USER_OUTPUT]
        users = [value for spec, value in pairs if spec.kind is OutputKind.USER_OUTPUT]
        self._outputs = [
            _Output(name, value)
            for name, value in zip(output_names(program), users, strict=True)
            if isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)
        ]
        sent = {node for each in needs for node in each.received}
        self._sent = [node for node in program.graph.nodes if node in sent]
        # A value has the name of its node, unless an output or an input of the program has this name.
        used = {output.name for output in self._outputs} | {node.name for _, node in self._inputs}
        taken = used | {node.name for node in program.graph.nodes}
        self._names = {
            node: _free(node.name, taken) if node.name in used else node.name for node in self._sent
        }

    def program_of(self, stage: int) -> ExportedProgram:
        """Return the program of a stage."""
        program, is_first = self._program, stage == 0
        needs = self._needs[stage]
        nodes = [n for n, at in self._stages.items() if at == stage or n in needs.again]
        outputs = self._outputs_of(stage)
        held = self._held(stage, nodes, needs, outputs)
        graph = Graph()
        copies: dict[Node, Node] = {}
        for _, node in held:
            copies[node] = _placeholder(graph, node, node.name)
        received = [node for node in self._sent if node in needs.received]
        for node in received:
            copies[node] = _placeholder(graph, node, self._names[node])
        self._compute(graph, nodes, needs, copies)

        mutations = [(s, v) for s, v in self._mutations if self._stage_of(v) == stage]
        values = [copies[value] for _, value in mutations] + [copies[output.value] for output in outputs]
        graph.output(tuple(values))
        specs = [spec for spec, _ in held] + [
            InputSpec(InputKind.USER_INPUT, TensorArgument(self._names[node]), None) for node in received
        ]
        returned = [replace(spec, arg=TensorArgument(copies[value].name)) for spec, value in mutations]
        returned += [
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(copies[o.value].name), None) for o in outputs
        ]
        names = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
        structure = program.call_spec.in_spec if is_first else _keywords(names)
        call = ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=structure,
            out_spec=tree_spec(dict, [output.name for output in outputs], [leaf_spec() for _ in outputs]),
            forward_arg_names=list(argument_names_of(program)) if is_first else names,
        )
        targets = {spec.target for spec, _ in held}
        made = assemble(
            root=program.graph_module,
            graph=graph,
            signature=ExportGraphSignature(specs, returned),
            state_dict={name: value for name, value in program.state_dict.items() if name in targets},
            constants={name: value for name, value in program.constants.items() if name in targets},
            range_constraints=dict(program.range_constraints),
            module_call_graph=[ModuleCallEntry("", call)],
            dialects=[verifier.dialect for verifier in program.verifiers],
            guards=guards_code(program) if is_first else [],
            meta=program.graph_module.meta,
        )
        if not is_first:
            # Two values of earlier stages may be the same tensor.
            set_guards(made, [g for g in always_guards(made) if not has_identity_guard([g])])
        facts = facts_of(program)
        keep_facts(
            made,
            replace(
                facts,
                stage=StageRecord(
                    stage=stage,
                    stages=len(self._needs),
                    start="" if is_first else self._at[stage - 1],
                    outputs=tuple(output.name for output in self._outputs),
                ),
                parameters=facts.parameters if is_first else (),
                call=None,
                unbound=tuple(each for each in facts.unbound if each.name in targets),
                has_stand_in_inputs=False,
            ),
        )
        give_stand_in_inputs(made)  # Without example inputs, torch does not check the guards.
        return made

    def _stage_of(self, value: Node) -> int:
        """Return the stage that returns a value. Inputs and weights are returned by the first stage."""
        return self._stages.get(value, 0)

    def _outputs_of(self, stage: int) -> list[_Output]:
        """Return the outputs of a stage: values for later stages, then outputs of the program."""
        sent = [_Output(self._names[node], node) for node in self._sent if self._stages[node] == stage]
        return sent + [output for output in self._outputs if self._stage_of(output.value) == stage]

    def _held(
        self, stage: int, nodes: Sequence[Node], needs: Needs, outputs: Sequence[_Output]
    ) -> list[tuple[InputSpec, Node]]:
        """Return the weights, constants and inputs of the program that a stage takes.

        All names of a tied weight are kept if the stage uses one of them. The first stage also keeps all
        inputs, and the weights that no stage uses.
        """
        used = {source for node in nodes if node not in needs.sizes for source in node.all_input_nodes}
        used |= {tensor for tensor, _ in needs.sizes.values()} | {output.value for output in outputs}
        if stage == 0:
            used |= {node for _, node in self._inputs if not node.users}
            used |= {node for spec, node in self._inputs if spec.kind is InputKind.USER_INPUT}
        written = {s.target for s, v in self._mutations if self._stage_of(v) == stage and s.target}
        held = {**self._program.constants, **self._program.state_dict}
        identities = {
            tensor_identity(held[spec.target])
            for spec, node in self._inputs
            if spec.kind in _STATE and spec.target in held and (node in used or spec.target in written)
        }

        def is_kept(spec: InputSpec, node: Node) -> bool:
            is_tied = spec.kind in _STATE and spec.target in held
            return node in used or (is_tied and tensor_identity(held[spec.target]) in identities)

        return [(spec, node) for spec, node in self._inputs if is_kept(spec, node)]

    def _compute(self, graph: Graph, nodes: Sequence[Node], needs: Needs, copies: dict[Node, Node]) -> None:
        """Copy the nodes of a stage into its graph."""
        taken = {node.name for node in self._program.graph.nodes}
        for node, (tensor, dim) in needs.sizes.items():
            size = graph.call_function(torch.ops.aten.sym_size.int, (copies[tensor], dim))
            size.meta = {"val": node.meta["val"]}
            size.name = _free(node.name, taken)
            copies[node] = size
        for node in nodes:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and source not in copies:
                    copies[source] = _copied(graph, source, copies)
            copies[node] = _copied(graph, node, copies)


def _placeholder(graph: Graph, node: Node, name: str) -> Node:
    made = graph.placeholder(name)
    # The graph numbers names that Python uses, such as `input`, which is an argument of torch.nn.Linear.
    made.name = made.target = name
    made.meta = dict(node.meta) if node.op == "placeholder" else {"val": node.meta["val"]}
    return made


def _copied(graph: Graph, node: Node, copies: Mapping[Node, Node]) -> Node:
    made = graph.node_copy(node, lambda source: copies[source])
    made.name = node.name
    made.meta = dict(node.meta)
    return made


def _free(name: str, taken: set[str]) -> str:
    """Return the name, or the name with a number if it is taken, and take it."""
    found = next(n for n in chain([name], (f"{name}_{at}" for at in count(1))) if n not in taken)
    taken.add(found)
    return found


def _keywords(names: Sequence[str]) -> Any:
    """Return the structure of a call with these keyword arguments."""
    keywords = tree_spec(dict, list(names), [leaf_spec() for _ in names])
    return tree_spec(tuple, None, [tree_spec(tuple, None, []), keywords])
