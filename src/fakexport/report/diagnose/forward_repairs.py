"""Suggest fixes for errors of `forward` or a constructor, by error message."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from linecache import getlines
from pathlib import Path
from typing import Any

from fakexport.report.diagnose.marked_code import expression_at, text_of, value_of
from fakexport.rules.diagnostics import Span

REPAIRS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("repairs.toml").read_text("utf-8"))
QUANTIZED: str = REPAIRS["quantized"]
IN_FLOAT32 = "check the model in float32, `--dtype float32`"
# Fixes that begin with one of these texts change how fakexport is called, not the model.
OF_CALL = re.compile("pass the missing input|name the library|install the package|check the model in float32")
OF_CONFIG = re.compile(r"set `\w+` in the config")
NO_REPAIR = (
    "no fix is known for this error. If eager mode raises it too, compare the shapes and dtypes "
    "at this line with what the operator expects; otherwise, move the line out of `forward`"
)
_NONE_IN_CONSTRUCTOR = (
    "no fix is known for this error. If plain Python raises it too, correct the arguments at "
    "this line; otherwise, move the code that needs data into a method that you call after "
    "loading the weights"
)


def known_repair(table: str, message: str, runtime: str = "") -> str | None:
    """Look up an error message in a table of `repairs.toml`, such as `forward`.

    Returns the fix, or None if no entry matches. Entries that list runtimes match only for `runtime`.
    """
    for entry in REPAIRS[table]:
        if runtime not in entry.get("runtimes", (runtime,)):
            continue
        if (match := re.search(entry["error"], message)) is not None:
            return QUANTIZED if entry["fix"] == "quantized" else match.expand(entry["fix"])
    return None


def forward_repair(message: str) -> str:
    """Return a fix for an error of `forward`, or `NO_REPAIR` if the error is unknown."""
    return known_repair("forward", message) or NO_REPAIR


def empty_setting_repair(span: Span | None, variables: Mapping[str, Any]) -> str | None:
    """Return a fix that names the setting, if the marked line reads a config setting that is None.

    The line may read the setting from the config, or from an attribute of `self` that was set from the
    config.
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
    return f"set `{names.pop()}` in the config: it is None" if len(names) == 1 else None


def construction_repair(message: str) -> str:
    """Return a fix for an error of a constructor, or a general fix if the error is unknown."""
    return known_repair("forward", message) or _NONE_IN_CONSTRUCTOR
