"""Count the nodes of the program that a document describes, without decoding it."""

from __future__ import annotations

from typing import Any

from fakexport.files.documents import DocumentError, field, items, mapping, text, union

from .program_outline import MAX_DEPTH, subgraph_arguments


def node_count(graph: Any, depth: int = 0) -> int:
    """Return the number of nodes that `walk` visits in the decoded graph and its subgraphs."""
    if depth > MAX_DEPTH:
        raise DocumentError(f"the graph is nested {depth} levels deep")
    owner = mapping(graph)
    count = len(field(owner, "inputs", _mappings)) + 1
    subgraphs: dict[str, Any] = {}
    for node in field(owner, "nodes", _mappings):
        count += 1 + _extracted(node)
        for argument in field(node, "inputs", _mappings):
            for held in subgraph_arguments(argument):
                count += 1  # The node that refers to the subgraph.
                subgraphs[field(held, "name", text)] = held.get("graph")
    return count + sum(node_count(subgraph, depth + 1) for subgraph in subgraphs.values())


def _mappings(value: Any) -> list[dict[str, Any]]:
    return items(value, mapping)


def _extracted(node: dict[str, Any]) -> int:
    """Return the number of `getitem` nodes that extract used results of a call."""
    outputs = field(node, "outputs", lambda v: items(v, union))
    name, is_tuple = node.get("name"), node.get("is_hop_single_tensor_return") is False
    if len(outputs) == 1 and outputs[0][0] == "as_tensors":
        return _used(outputs[0][1], f"{name}_unused_")
    if len(outputs) == 1 and not is_tuple:
        return 0
    count = 0
    for index, (kind, content) in enumerate(outputs):
        if kind == "as_tensors":
            count += (1 + len(content)) * (_used(content, f"{name}_unused_{index}_") > 0)
        elif kind != "as_none":
            count += set(content.values()) != {f"{name}_unused_{index}"}
    return count


def _used(names: Any, unused: str) -> int:
    found = enumerate(_mappings(names))
    return sum(entry.get("name") != f"{unused}{index}" for index, entry in found)
