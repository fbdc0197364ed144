"""Which devices this process can put data on."""

from __future__ import annotations

import torch

from fakexport.devices.emulation import emulated_topology


def exists_here(device: str | torch.device) -> bool:
    """Return whether this process can put data on a device; an emulated device takes none."""
    wanted = torch.device(device)
    if wanted.type in ("cpu", "meta"):
        return wanted.type == "cpu"
    if emulated_topology() is not None:
        return False
    module = getattr(torch, wanted.type, None)
    return bool(module is not None and module.is_available() and (wanted.index or 0) < module.device_count())
