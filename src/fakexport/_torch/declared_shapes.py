"""Whether dynamic dimensions that are declared in torch's own form fit the inputs.

Seen on torch 2.13 and 2.15.

Source: `torch/export/dynamic_shapes.py:_check_dynamic_shapes`, which `torch.export.export` calls while it
traces. It does not look whether a tensor has the dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch.export import ShapesCollection
from torch.export.dynamic_shapes import _check_dynamic_shapes


def why_shapes_do_not_fit(inputs: Mapping[str, Any], shapes: Any) -> str | None:
    """Return in one line why a declaration does not fit; None where it does.

    Args:
        inputs: Argument name -> example value.
        shapes: What `torch.export.export(dynamic_shapes=...)` takes. A `ShapesCollection` is not judged.
    """
    if shapes is None or isinstance(shapes, ShapesCollection):
        return None
    if not isinstance(shapes, (dict, tuple, list)):
        return f"expected a dict, a tuple or a list, and not {type(shapes).__name__}"
    try:
        _check_dynamic_shapes(dict(inputs), shapes)
    except UserError as error:
        return str(error.msg).splitlines()[0].partition(" For more information")[0]
    return next(_absent_dims(inputs, shapes), None)


def _absent_dims(inputs: Mapping[str, Any], shapes: Any) -> Iterator[str]:
    named = shapes if isinstance(shapes, dict) else dict(zip(inputs, shapes, strict=False))
    for name, dims in named.items():
        tensor = inputs.get(name)
        if isinstance(tensor, torch.Tensor) and isinstance(dims, dict):
            for dim in dims:
                if isinstance(dim, int) and not 0 <= dim < tensor.dim():
                    yield f"{name} has no dimension {dim} (shape {list(tensor.shape)})"
