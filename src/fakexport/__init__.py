"""Will this model export to the program that my target devices need, and can I ship that program?

Importing this package does not import torch: a public name is fetched from its room on first use.
"""

import importlib
from typing import TYPE_CHECKING

from fakexport._version import __version__ as __version__

if TYPE_CHECKING:
    from fakexport.archive import Bundle, bind, load, load_bundle, save, save_bundle, verify_weights
    from fakexport.capture import export
    from fakexport.checking import check
    from fakexport.deploy import write_source
    from fakexport.devices import emulate
    from fakexport.diagnose.comparison import compare
    from fakexport.fake import (
        build,
        deferred_init,
        fake_mode,
        is_deferred,
        is_fake,
        materialize_module,
        materialize_tensor,
        meta_like,
    )
    from fakexport.program import diff, inspect_devices, retarget, source, transfers
    from fakexport.program import summary_of as summary

__all__ = [
    "Bundle",
    "bind",
    "build",
    "check",
    "compare",
    "deferred_init",
    "diff",
    "emulate",
    "export",
    "fake_mode",
    "inspect_devices",
    "is_deferred",
    "is_fake",
    "load",
    "load_bundle",
    "materialize_module",
    "materialize_tensor",
    "meta_like",
    "retarget",
    "save",
    "save_bundle",
    "source",
    "summary",
    "transfers",
    "verify_weights",
    "write_source",
]

_HOMES = {
    "Bundle": "fakexport.archive:Bundle",
    "bind": "fakexport.archive:bind",
    "build": "fakexport.fake:build",
    "check": "fakexport.checking:check",
    "compare": "fakexport.diagnose.comparison:compare",
    "deferred_init": "fakexport.fake:deferred_init",
    "diff": "fakexport.program:diff",
    "emulate": "fakexport.devices:emulate",
    "export": "fakexport.capture:export",
    "fake_mode": "fakexport.fake:fake_mode",
    "inspect_devices": "fakexport.program:inspect_devices",
    "is_deferred": "fakexport.fake:is_deferred",
    "is_fake": "fakexport.fake:is_fake",
    "load": "fakexport.archive:load",
    "load_bundle": "fakexport.archive:load_bundle",
    "materialize_module": "fakexport.fake:materialize_module",
    "materialize_tensor": "fakexport.fake:materialize_tensor",
    "meta_like": "fakexport.fake:meta_like",
    "retarget": "fakexport.program:retarget",
    "save": "fakexport.archive:save",
    "save_bundle": "fakexport.archive:save_bundle",
    "source": "fakexport.program:source",
    "summary": "fakexport.program:summary_of",
    "transfers": "fakexport.program:transfers",
    "verify_weights": "fakexport.archive:verify_weights",
    "write_source": "fakexport.deploy:write_source",
}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        room, _, attribute = _HOMES[name].partition(":")
        value = getattr(importlib.import_module(room), attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
