"""Runs of models that track objects through a video: they are called with a session, not with tensors."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from fakexport.sources.input_request import InputRequest
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import SourceError

SESSION = "inference_session"


def takes_session(model_class: Any) -> bool:
    """Return whether the `forward` of a class takes a session to which points can be added."""
    try:
        parameters = inspect.signature(model_class.forward).parameters
    except ImportError:  # A stand-in for a class whose package is missing: to build it says which.
        return False
    return SESSION in parameters and _session(model_class) is not None


def session_inputs(module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
    """Return the inputs of a run on the first frame of a video, with one point on one object.

    The modules that the model calls take tensors, and can be programs; the model cannot, since a session is
    an object of Python.

    Args:
        device: Device of the frame and of the state.
        dtype: Dtype of the frame; None: that of the module's parameters.
    Raises:
        SourceError: The config does not say how large a frame is.
    """
    size = getattr(module.config, "image_size", None)
    if not isinstance(size, int):
        raise SourceError(f"{type(module).__name__}: the config has no image_size for the frames of a video")
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    request = InputRequest(module, device, dtype or own, batch=1)
    session = _session(type(module))(
        video=request.floats(1, 3, size, size),
        video_height=size,
        video_width=size,
        inference_device=device,
        inference_state_device=device,
        video_storage_device=device,
        dtype=request.dtype,
    )
    tracked = 1
    point = {
        "point_coords": request.floats(1, 1, 1, 2).float(),
        "point_labels": request.ids(1, 1, 1, value=1).to(torch.int32),
    }
    session.add_point_inputs(session.obj_id_to_idx(tracked), 0, point)
    session.obj_with_new_inputs = [tracked]
    note = (
        f"the model ran on the first frame of a video of {size} x {size} pixels, with a point on one object"
    )
    return ExampleInputs(kwargs={SESSION: session, "frame_idx": 0}, assumptions=(note,))


def _session(model_class: Any) -> Any:
    named = vars(sys.modules[model_class.__module__])
    return next(
        (
            each
            for name, each in named.items()
            if name.endswith("InferenceSession") and hasattr(each, "add_point_inputs")
        ),
        None,
    )
