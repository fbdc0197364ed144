"""Shapes of time series, read from a config of transformers."""

from __future__ import annotations

import torch

from fakexport.sources.input_request import InputRequest


def past_values(request: InputRequest) -> torch.Tensor:
    """Return values of shape `[batch, steps]`, or `[batch, steps, channels]` where there are several."""
    channels = request.setting("num_input_channels", "input_size", default=1)
    is_channelled = channels > 1 or request.setting("num_input_channels") is not None
    return request.floats(request.batch, _steps(request), *([channels] if is_channelled else []))


def observed(request: InputRequest) -> torch.Tensor:
    """Return a mask of the shape of `past_values`: nothing is missing."""
    return torch.ones_like(past_values(request))


def past_time_features(request: InputRequest) -> torch.Tensor:
    """Return what is known of each step: `[batch, steps, features]`."""
    return request.floats(request.batch, _steps(request), request.setting("num_time_features", default=1))


def _steps(request: InputRequest) -> int:
    lags = request.setting("lags_sequence", default=[0])
    length = request.setting("context_length", "prediction_length", default=64)
    return int(length + max(lags))
