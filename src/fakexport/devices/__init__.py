"""Device profiles, topologies, and their emulation.

Profiles and topologies need no torch; `emulate` does, and is fetched on first use.
"""

import importlib
from typing import TYPE_CHECKING

from fakexport.devices.custom_profiles import ProfileError, device_profiles
from fakexport.devices.profile import DeviceProfile, default_profiles, load_profiles, profile_named
from fakexport.devices.topology import MAX_DEVICES, Topology

if TYPE_CHECKING:
    from fakexport.devices.emulation import (
        NoVirtualDevices,
        check_emulation,
        emulate,
        emulated_topology,
        exists_here,
    )
    from fakexport.devices.host_memory import peak_bytes, resident_bytes

_HOMES = {
    **dict.fromkeys(
        ("NoVirtualDevices", "check_emulation", "emulate", "emulated_topology", "exists_here"), "emulation"
    ),
    **dict.fromkeys(("peak_bytes", "resident_bytes"), "host_memory"),
}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
