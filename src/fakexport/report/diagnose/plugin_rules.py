"""Diagnostics from the rules of installed packages."""

from __future__ import annotations

from torch.export import ExportedProgram

from fakexport.error import first_line
from fakexport.files import load_plugin, plugin_fault, plugins
from fakexport.rules.diagnostics import Diagnostic


def diagnose_with_plugins(program: ExportedProgram) -> tuple[Diagnostic, ...]:
    """Call the function of each entry point of `fakexport.rules` with an exported program.

    Raises:
        PluginError: a function cannot be imported, raises an error, or does not return diagnostics.
    """
    found: list[Diagnostic] = []
    for entry in plugins("rules").values():
        diagnose = load_plugin(entry)
        try:
            new = tuple(diagnose(program))
        except Exception as error:
            raise plugin_fault(entry, f"raises {type(error).__name__}: {first_line(error)}") from error
        if not all(isinstance(each, Diagnostic) for each in new):
            raise plugin_fault(entry, "must return diagnostics, from `rule(code).diagnostic(...)`")
        found += new
    return tuple(found)
