"""Findings about a converter that translates one operator after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport.error import type_and_line
from fakexport.exporting.program import operator_name, plain_name
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

from ..unsupported import arguments_text, finding_at, operator_finding

_PLACE = re.compile(
    r"(?P<path>\S+?):(?P<line>\d+):\d+: error: failed to legalize operation '\w+\.(?P<operation>\w+)'"
)


@dataclass(frozen=True)
class Converter:
    """A converter with a registry of operators.

    Args:
        name: Name of its package.
        code: Code of the diagnostic for what it does not convert.
        registry: What is missing for an operator that it does not know, for a sentence.
        step: Name of its function that converts a node. The function has a local variable `node`.
        fix: What to do about an operator of torch.
        custom_fix: What to do about an operator `{name}` of a library.
        dtype_fix: What to do about a dtype that it does not have.
    """

    name: str
    code: str
    registry: str
    step: str
    fix: str
    custom_fix: str
    dtype_fix: str

    def unknown(self, program: ExportedProgram, is_known: Callable[[Node], bool]) -> Iterator[Diagnostic]:
        """Yield a finding for each operator that is not in the registry."""
        nodes: dict[str, list[Node]] = {}
        for node in program.graph.nodes:
            if node.op == "call_function" and not is_known(node):
                nodes.setdefault(operator_name(node), []).append(node)
        for name, found in nodes.items():
            yield operator_finding(
                self.code,
                found,
                name,
                f"is not an operator that {self.name} converts",
                (f"{name} at node {found[0].name} has no {self.registry}",),
                self.fix,
                self.custom_fix.format(name=name),
            )

    def failure(self, program: ExportedProgram, error: Exception, missing: object = None) -> Diagnostic:
        """Return the finding for an error of the converter, at the node that it was converting.

        If `missing` is a dtype that the converter lacks and the program has, the finding is for the dtype.
        """
        if isinstance(missing, torch.dtype) and (found := self._of_dtype(program, missing)) is not None:
            return found
        said = f"{self.name}: {type_and_line(error)}"
        name = self._converted(error)
        node = next((each for each in program.graph.nodes if each.name == name), None)
        node = _node_at(program, str(error)) if node is None else node
        if node is None:
            return rule(self.code).diagnostic(notes=(said,))
        operator = operator_name(node)
        operator = node.name if "<" in operator else operator  # The converter replaced it with a function.
        return finding_at(
            self.code,
            node,
            f"{self.name} does not convert {operator} with these arguments",
            notes=(said, f"the arguments of {operator}: {arguments_text(node)}"),
            fix=Fix(self.fix),
        )

    def _of_dtype(self, program: ExportedProgram, dtype: torch.dtype) -> Diagnostic | None:
        """Return the finding for a dtype that the converter lacks, at the first call that returns it."""
        values = ((node, node.meta.get("val")) for node in program.graph.nodes)
        held = [node for node, value in values if isinstance(value, torch.Tensor) and value.dtype == dtype]
        if not held:
            return None
        calls = [node for node in held if node.op == "call_function"]
        name = plain_name(dtype)
        return finding_at(
            self.code,
            (calls or held)[0],
            f"this tensor is {name}",
            notes=(f"{self.name} has no dtype {name}, which {len(held)} tensors of the program have",),
            fix=Fix(self.dtype_fix),
            count=len(held),
        )

    def _converted(self, error: Exception) -> str | None:
        """Return the name of the node that was being converted, from the error's text or traceback."""
        named = re.search(r'(?:fx node |Layer "|"\(")(\w+?)(?:_cast_fp16)?[",]', str(error))
        found: str | None = named[1] if named else None
        link = error.__traceback__
        while link is not None:
            if link.tb_frame.f_code.co_name == self.step:
                node: Any = link.tb_frame.f_locals.get("node")
                found = getattr(node, "name", found)
            link = link.tb_next
        return found


def _node_at(program: ExportedProgram, text: str) -> Node | None:
    """Return a call at the source line that MLIR's error names, if possible of the operation in the error."""
    named = _PLACE.search(text)
    if named is None:
        return None
    frame = f'File "{named["path"]}", line {named["line"]},'
    calls = (node for node in program.graph.nodes if node.op == "call_function")
    found: list[Node] = [node for node in calls if frame in node.meta.get("stack_trace", "")]
    same = [node for node in found if named["operation"] in operator_name(node)]
    return next(iter(same or found), None)
