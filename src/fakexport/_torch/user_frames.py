"""Make torch name the user's line. Seen on torch 2.11 to 2.13.

Two questions of torch are answered here while a model is traced. Which frames go into a node's stack trace:
those that are not in a set of torch's own files, to which ours are added, since some of our functions replace
torch's. And which frame imposed a condition on sizes: stock takes the innermost one outside of a few
files, which for `reshape` is a file of torch.

Source: `torch/fx/experimental/symbolic_shapes.py:uninteresting_files, ShapeEnv._get_stack_summary`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from traceback import FrameSummary
from types import FrameType
from typing import Any

from torch.export import _trace
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files

from .patching import Patches, in_force


@contextmanager
def name_user_frames(is_user_code: Callable[[str], bool]) -> Iterator[None]:
    """Enter a context in which torch blames the innermost frame of user code."""
    files = uninteresting_files()  # Cached by torch: the very set that it asks.
    added = _own_files() - files
    files |= added
    try:
        with Patches({(ShapeEnv, "_get_stack_summary"): _innermost(cache(is_user_code))}):
            yield
    finally:
        files -= added


@cache
def _own_files() -> frozenset[str]:
    return frozenset(str(path) for path in Path(__file__).parents[1].rglob("*.py"))


def _innermost(is_user_code: Callable[[str], bool]) -> Callable[..., Any]:
    stock = in_force(ShapeEnv, "_get_stack_summary")

    # Not `_get_user_frame`: torch also asks that one whether it is in an `assert`, which decides what is
    # traced.
    def stack_summary(environment: ShapeEnv, is_debug: bool = False, framework_loc: Any = None) -> Any:
        frame: FrameType | None = sys._getframe(1)
        # The model is called from there: frames outside belong to who asked for the export.
        while framework_loc is None and frame is not None and frame.f_code.co_filename != _trace.__file__:
            if is_user_code(frame.f_code.co_filename):
                code = frame.f_code
                framework_loc = FrameSummary(code.co_filename, frame.f_lineno, code.co_name)
            frame = frame.f_back
        return stock(environment, is_debug, framework_loc=framework_loc)

    return stack_summary
