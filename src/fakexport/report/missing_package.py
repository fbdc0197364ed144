"""What to say of a package that is not installed."""

from __future__ import annotations

import sys

from fakexport._libraries import LIBRARIES

# What installs a package that some commands need, by the name under which it is imported.
_REQUIREMENTS = {
    **{name: name for name in ("torch", "safetensors")},
    **{library.package: library.distribution or library.package for library in LIBRARIES},
    "executorch": "'fakexport[executorch]'",
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "'fakexport[onnx]'"),
    "yaml": "'fakexport[sweep]'",
    "ray": "'fakexport[ray]'",
    "tokenizers": "'fakexport[text]'",
    "matplotlib": "'fakexport[charts]'",
}


def missing_package(error: BaseException) -> str | None:
    """Return one line with what to install: `onnx is not installed: pip install 'fakexport[onnx]'`.

    Args:
        error: Any.
    Returns:
        None where the error is another, the package is none that fakexport asks for, or it is only hidden, by
        `None` in `sys.modules`.
    """
    if not isinstance(error, ModuleNotFoundError) or (name := error.name or "") not in _REQUIREMENTS:
        return None
    is_hidden = name in sys.modules and sys.modules[name] is None
    return None if is_hidden else f"{name} is not installed: pip install {_REQUIREMENTS[name]}"
