"""From a source to its model of fake tensors: the one way for whatever looks at a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fakexport._torch.presented_classes import classes_presented
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.devices import Topology
from fakexport.error import FakexportError, type_and_line
from fakexport.fake import Built, DeviceMap, build
from fakexport.program import is_user_code
from fakexport.sources import Source, SourceError


class ModelNotBuilt(FakexportError, ValueError):
    """The model's own constructor raised; `__cause__` is the error."""


@one_at_a_time
def build_source(
    source: Source,
    devices: Topology,
    *,
    device_map: DeviceMap | None = None,
    dtype: torch.dtype | None = None,
) -> Built:
    """Build the model of a source without data, in the `emulate` block of its devices.

    Args:
        source: The model.
        devices: Those that are emulated.
        device_map: Where the modules live. Default: a library's model asks for no device and belongs on the
            usual one, all of it; a user's factory may place its parts itself, and is left alone.
        dtype: Default floating dtype of the construction; a module that is there already is converted to it.
            Default: that of the source, else torch's.
    Raises:
        ModelNotBuilt: the constructor raised.
        SourceError: it cannot be imported, or made no module: a bad call.
        ValueError, TypeError: as for `build`.
    """

    def factory() -> Any:
        try:
            return source.factory()
        except SourceError:
            raise
        except Exception as error:
            reason = f"{type_and_line(error)}; run `fakexport check {source.spec}` for details"
            raise ModelNotBuilt(f"{source.spec} cannot be built: {reason}") from error

    source.prepare()
    usual = devices.default_device
    with classes_presented(is_user_code):
        return build(
            source.factory if isinstance(source.factory, nn.Module) else factory,
            device_map=device_map or (None if source.kind == "python" else usual),
            dtype=dtype or source.dtype,
            default_device=usual,
        )
