"""The command line: parse arguments, call one function of another package, print the result.

Names are imported on first use, because pytest imports this package for its plugin in every run.
"""

from typing import TYPE_CHECKING

from fakexport._lazy_face import lazy_names

if TYPE_CHECKING:
    from .entry import main

if not TYPE_CHECKING:  # With `__getattr__`, a type checker would accept any misspelled name.
    __getattr__ = lazy_names(__name__, {"entry": "main"})
