"""Not a test: mypy reads it in `make lint`. The lazy public names have the types of what they name."""

from collections.abc import Callable

import fakexport as fe
from fakexport.checking import check

CALLABLES: list[Callable[..., object]] = [
    fe.bind,
    fe.build,
    fe.check,  # a module would be an error here
    fe.diff,
    fe.emulate,
    fe.export,
    fe.fake_mode,
    fe.is_fake,
    fe.meta_like,
    fe.summary,
    fe.transfers,
    fe.load_bundle,
    fe.save_bundle,
    fe.verify_weights,
    check,
]

VERSION: str = fe.__version__

fe.chekc  # type: ignore[attr-defined]  # noqa: B018 -- a misspelt name is an error
