"""Encode and safely decode the metadata of nodes: the line of the model's code that each node comes from."""

from __future__ import annotations

import re
from collections.abc import Callable
from json import dumps, loads  # A model may replace `json.dumps` and `json.loads`.
from typing import Any

from torch.fx import Node

from fakexport._torch.operators.operator_registry import operator_text
from fakexport.error import InvalidValue
from fakexport.exporting.program import SourcePaths
from fakexport.files.documents import DocumentError, memory_estimate, named_items, text

# Torch may print these texts as comments in generated code, and a line break would end the comment.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_MAX_MODULES = 1000
_MOST_PARTS = 1_000_000
"""Limit on the module and function names in all nodes together; a model of 10,000 nodes has 100,000."""
_CUSTOM_BYTES = 64 << 20
"""Limit on the memory for the decoded `custom` metadata of a program, which is JSON inside JSON."""

GRAPH_NAMES = "graph_names"
"""Metadata key that torch ignores. It stores node names for the graphs that a higher-order operator runs."""


class MetadataEncoder:
    """Encode the metadata of the nodes of one program.

    `from_node`, which records how passes changed a node, is omitted because it identifies graphs by address.
    """

    def __init__(self, paths: SourcePaths) -> None:
        self._paths = paths

    def of(self, node: Node) -> dict[str, str]:
        meta = node.meta
        found: dict[str, str] = {}
        if trace := meta.get("stack_trace"):
            found["stack_trace"] = _CONTROL.sub(" ", self._paths.in_trace(trace))
        if modules := meta.get("nn_module_stack"):
            # TorchDynamo's keys are addresses, which differ between processes.
            found["nn_module_stack"] = ";".join(
                f"{path if key.isdecimal() else key},{path},{kind}" for key, (path, kind) in modules.items()
            )
        if sources := meta.get("source_fn_stack"):
            found["source_fn_stack"] = ";".join(
                f"{name},{function if isinstance(function, str) else operator_text(function)}"
                for name, function in sources
            )
        if function := meta.get("torch_fn"):
            found["torch_fn"] = ";".join(function)
        if custom := meta.get("custom"):
            found["custom"] = custom_json(custom)
        return found


def custom_json(custom: Any) -> str:
    try:
        return dumps(custom)
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"its custom metadata is not valid JSON: {error}") from error


class MetadataDecoder:
    """Decode the metadata of nodes. Equal texts, which identical modules produce, are decoded once.

    `function` looks up a function that `source_fn_stack` names, or returns the name if the function is
    unknown.
    """

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function
        self._stacks: dict[str, dict[str, tuple[str, str]]] = {}
        self._custom_bytes = 0
        self._parts = 0
        self._readers: dict[str, Callable[[str], Any]] = {
            "stack_trace": str,
            "nn_module_stack": self._module_stack,
            "source_fn_stack": self._source_functions,
            "torch_fn": lambda joined: tuple(self._split(joined)),
            "custom": self.custom,
        }

    def read(self, value: Any) -> dict[str, Any]:
        meta: dict[str, Any] = {}
        for key, entry in named_items(value):
            try:
                written = text(entry)
                if not written.isprintable() and _CONTROL.search(written):
                    raise DocumentError("the text has a control character")
                if written and key in self._readers:
                    meta[key] = self._readers[key](written)
            except DocumentError as error:
                raise error.within(key[:80]) from None
        return meta

    def custom(self, written: str) -> Any:
        """Decode the `custom` metadata of a node or of the program."""
        content = written.encode(errors="surrogatepass")
        self._custom_bytes += memory_estimate(content)
        if self._custom_bytes > _CUSTOM_BYTES:
            raise DocumentError(f"the custom metadata could need more than {_CUSTOM_BYTES:,} bytes")
        try:
            return loads(written)
        except (ValueError, RecursionError):
            raise DocumentError("the text is not valid JSON") from None

    def _split(self, joined: str) -> list[str]:
        """Split a list at semicolons. Raise if all lists split so far have too many parts in total."""
        self._parts += 1 + joined.count(";")
        if self._parts > _MOST_PARTS:
            raise DocumentError(f"the nodes refer to more than {_MOST_PARTS:,} modules and functions")
        return joined.split(";")

    def _module_stack(self, joined: str) -> dict[str, tuple[str, str]]:
        entries = self._split(joined)
        stack = self._stacks.get(joined)
        if stack is None:
            stack = self._stacks[joined] = dict(map(_module_entry, entries))
            if len(stack) > _MAX_MODULES:
                raise DocumentError(f"the module is nested {len(stack)} levels deep")
        return dict(stack)

    def _source_functions(self, joined: str) -> list[tuple[str, Any]]:
        found = []
        for entry in self._split(joined):
            name, comma, function = entry.partition(",")
            if not comma:
                raise DocumentError("expected pairs of a name and a function")
            found.append((name, self._function(function)))
        return found


def _module_entry(entry: str) -> tuple[str, tuple[str, str]]:
    parts = entry.split(",") if "(" not in entry and "[" not in entry else _split_outside_brackets(entry)
    if len(parts) != 3:
        raise DocumentError("expected a key, a path and a type for each module")
    return parts[0], (parts[1], parts[2])


def _split_outside_brackets(entry: str) -> list[str]:
    parts, depth = [""], 0
    for character in entry:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
