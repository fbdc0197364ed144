"""Error message for a package that is not installed."""

from __future__ import annotations

import sys

from fakexport.models import LIBRARIES, packages_of

# Import name of a package that some commands need -> the extra that installs it; "" if there is none.
_EXTRAS = {
    **dict.fromkeys(("torch", "safetensors", "coremltools", "litert_torch"), ""),
    **{library.package: library.package for library in LIBRARIES},
    "executorch": "executorch",
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "yaml": "sweep",
    "ray": "ray",
    "triton": "cuda",
    "tokenizers": "text",
    "matplotlib": "charts",
}


def missing_package(error: BaseException) -> str | None:
    """Return one line that says what to install: `yaml is not installed: pip install 'pyyaml>=6.0'`.

    Returns:
        None for any other error, for a package that fakexport does not use, and for a package that is hidden
        by `None` in `sys.modules`.
    """
    if not isinstance(error, ModuleNotFoundError) or (name := error.name or "") not in _EXTRAS:
        return None
    is_hidden = name in sys.modules and sys.modules[name] is None
    if is_hidden:
        return None
    extra = _EXTRAS[name]
    return f"{name} is not installed: pip install {packages_of(extra) if extra else name}"
