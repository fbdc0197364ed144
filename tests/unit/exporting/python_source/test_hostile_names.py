"""A program from anybody cannot put its own Python into the file that is written from it."""

from __future__ import annotations

import ast

import pytest
import torch
from torch import nn
from torch.export import export
from torch.utils import _pytree as pytree

from fakexport.exporting.python_source import PythonSourceError, to_python
from fakexport.exporting.python_source.names import comment_text, identifier

ROWS = torch.ones(4, 8)
PAYLOADS = [
    "x\nPWNED()",
    "x\r\nPWNED()\n",
    "x\u2028PWNED()\u2029",
    "x\x0cPWNED()\x0b\x85PWNED()",
    'x"); PWNED(); ("',
    "x'); PWNED(); ('",
    '"""\nPWNED()\n"""',
    "\\\nPWNED()",
    "x\\",
    "${PWNED()}{PWNED()}%s",
    "\u202ePWNED()\u2066",
    "\x00PWNED()",
    "-*- coding: utf-7 -*- +AAo-PWNED()",
    "class",
    "",
    "é\ud800",
]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.table = torch.arange(32.0)

    def forward(self, x, *, other):
        y = self.block(x + other) + self.table.sum()
        return {"result": torch.einsum("ij,ij->i", y, x)}


def harmless(text: str) -> None:
    """Runs nothing: looks for the payload as anything but a string or a comment."""
    tree = ast.parse(text.encode())
    for node in ast.walk(tree):
        assert getattr(node, "id", getattr(node, "attr", "")) != "PWNED"
        assert not isinstance(node, (ast.Lambda, ast.JoinedStr, ast.Global, ast.AsyncFunctionDef))


def program_of():
    return export(Model(), (ROWS,), {"other": ROWS})


@pytest.mark.parametrize("payload", PAYLOADS)
def test_names_of_modules_and_lines_become_comments_and_identifiers(payload):
    program = program_of()
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            node.meta["nn_module_stack"] = {key: (path, payload) for key, (path, _) in stack.items()}
        node.meta["stack_trace"] = f'File "{payload}.py", line 3, in {payload}\n    {payload}\n'

    harmless(to_python(program).text)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_names_of_nodes_become_identifiers(payload):
    program = program_of()
    names = {}
    for index, node in enumerate(program.graph.nodes):
        names[node.name] = f"{payload}{index}"
        node.name = names[node.name]
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        spec.arg.name = names[spec.arg.name]

    harmless(to_python(program).text)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("where", ["module", "weight"])
def test_names_of_weights_are_string_literals_or_refused(payload, where):
    program = program_of()
    old, new = "block.0.weight", f"block.{payload}.weight" if where == "module" else f"block.0.{payload}"
    program.state_dict[new] = program.state_dict.pop(old)
    for spec in program.graph_signature.input_specs:
        spec.target = new if spec.target == old else spec.target
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack and where == "module":
            node.meta["nn_module_stack"] = {
                key: (path.replace("block.0", f"block.{payload}"), kind)
                for key, (path, kind) in stack.items()
            }

    refusal = ""
    try:
        harmless(to_python(program).text)
    except PythonSourceError as error:
        refusal = str(error)

    assert refusal == "" or "no module can" in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize("payload", PAYLOADS)
def test_keys_of_inputs_and_outputs_and_strings_are_literals(payload):
    program = program_of()
    signature = program.module_call_graph[0].signature
    signature.in_spec = pytree.tree_structure(((ROWS,), {payload: ROWS}))
    signature.out_spec = pytree.tree_structure({payload: ROWS})
    signature.forward_arg_names = [payload, payload]
    for node in program.graph.nodes:
        node.args = tuple(payload if isinstance(arg, str) else arg for arg in node.args)

    harmless(to_python(program).text)


def test_a_guard_that_does_more_than_compare_sizes_is_a_comment():
    program = program_of()
    program._guards_code.append("PWNED()\nPWNED()")

    text = to_python(program).text

    harmless(text)
    assert "# not checked here: fakexport cannot check the condition `PWNED()" in text


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_comment_is_one_line_of_visible_characters(payload):
    text = comment_text(payload)

    assert text.isprintable()
    assert ast.parse(f"x = 1\ny = 2\n# {text}".encode()).body[2:] == []


@pytest.mark.parametrize("payload", [*PAYLOADS, "1", "_", "__", "self", "torch", "print", "None", "a" * 5000])
def test_an_identifier_is_one(payload):
    name = identifier(payload)

    assert name.isidentifier()
    assert name.isascii()
    assert len(name) < 100
    assert name not in ("self", "torch", "print", "None", "class", "_", "__")
