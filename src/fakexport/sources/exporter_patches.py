"""What `transformers.exporters` replaces in the code of models while they are traced."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from fakexport._torch.patching import Patches

_EXPORTER = "transformers.exporters.exporter_dynamo"
_MODELS = "transformers.models."
_sources: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def import_exporter() -> None:
    """Import `transformers.exporters`, which must not be imported in a fake mode."""
    importlib.import_module(_EXPORTER)


@contextmanager
def exporter_patches() -> Iterator[None]:
    """Enter `apply_patches("dynamo")` for the model files that are imported.

    Left to itself it imports about 30 of them, for 0.8 s, and parses a method of each, every time. A model
    none of whose files is imported cannot be in the trace.

    Source: transformers 5.17 to 5.23, `exporters/utils.py:apply_patches`. In 5.17 importing the exporter
    imports the models, and the patches are of objects, not of their names.
    """
    utils = importlib.import_module("transformers.exporters.utils")
    quick = {
        (utils, "import_dotted_path"): _of_loaded(getattr(utils, "import_dotted_path", None)),
        (inspect, "getsource"): _source(inspect.getsource),
    }
    with ExitStack() as stack:
        with Patches(quick):
            stack.enter_context(utils.apply_patches("dynamo"))
        yield


def _of_loaded(stock: Any) -> Callable[..., Any]:
    def resolve(path: str, **options: Any) -> Any:
        return stock(path, **options) if _is_loaded(path) else None

    return resolve


def _is_loaded(path: str) -> bool:
    """Return whether the model file of a dotted path is imported, or it is of no model file."""
    return not path.startswith(_MODELS) or ".".join(path.split(".")[:4]) in sys.modules


def _source(stock: Callable[[Any], str]) -> Callable[[Any], str]:
    def source(of: Any) -> str:
        if type(of) is not FunctionType:
            return stock(of)
        if of not in _sources:
            _sources[of] = stock(of)
        return _sources[of]

    return source
