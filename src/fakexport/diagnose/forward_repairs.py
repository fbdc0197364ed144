"""Suggest what to do about an error that `forward` or a constructor raises, by its message."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from linecache import getlines
from pathlib import Path
from typing import Any

from fakexport.diagnose.marked_code import expression_at, text_of, value_of
from fakexport.diagnostics import Span

REPAIRS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("repairs.toml").read_text("utf-8"))
QUANTIZED: str = REPAIRS["quantized"]
IN_FLOAT32 = "check the model in float32, `--dtype float32`"
# What starts so is about the call, and not about the model.
OF_CALL = re.compile("pass the missing input|name the library|install the package|check the model in float32")
OF_CONFIG = re.compile(r"set `\w+` in the config")
NO_REPAIR = (
    "no fix is known for this error: if eager mode raises it too, compare the shapes and dtypes at this line "
    "with what the operator expects; if not, move the line out of `forward`"
)
_NONE_IN_CONSTRUCTOR = (
    "no fix is known for this error: if plain Python raises it too, correct the arguments at this line; if "
    "not, move what needs data into a method that is called once the weights are loaded"
)


def known_repair(table: str, message: str) -> str | None:
    """Return what a table of `repairs.toml`, such as `forward`, says of an error; None if nothing."""
    for entry in REPAIRS[table]:
        if (match := re.search(entry["error"], message)) is not None:
            return QUANTIZED if entry["fix"] == "quantized" else match.expand(entry["fix"])
    return None


def forward_repair(message: str) -> str:
    """Return what to do about an error of `forward`, or that nothing is known."""
    return known_repair("forward", message) or NO_REPAIR


def empty_setting_repair(span: Span | None, variables: Mapping[str, Any]) -> str | None:
    """Return which setting of a config to set, where the marked line reads one that is None.

    It reads the setting itself, or an attribute that a constructor in this file takes from one.
    """
    names: set[str] = set()
    for node in ast.walk(expression_at(span) or ast.Constant(None)):
        if not isinstance(node, ast.Attribute) or span is None or value_of(node, variables) is not None:
            continue
        owner = text_of(node.value)
        if owner.rpartition(".")[2] == "config" and hasattr(value_of(node.value, variables), node.attr):
            names.add(node.attr)
        elif owner == "self" and hasattr(variables.get("self"), node.attr):
            taken = rf"self\.{re.escape(node.attr)}\s*=\s*(?:self\.)?config\.(\w+)\n"
            names |= set(re.findall(taken, "".join(getlines(span.path))))
    return f"set `{names.pop()}` in the config: it is empty" if len(names) == 1 else None


def construction_repair(message: str) -> str:
    """Return what to do about an error of a constructor, or that nothing is known."""
    return known_repair("forward", message) or _NONE_IN_CONSTRUCTOR
