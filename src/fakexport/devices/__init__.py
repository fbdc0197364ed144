"""Device profiles, topologies, and their emulation.

Profiles and topologies need no torch; `emulate` does, and is fetched on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fakexport.devices.custom_profiles import ProfileError, device_profiles
from fakexport.devices.profile import (
    PEAK_DTYPES,
    DeviceProfile,
    default_profiles,
    load_profiles,
    profile_named,
)
from fakexport.devices.topology import MAX_DEVICES, Topology, VirtualDevice

if TYPE_CHECKING:
    from fakexport.devices.emulation import NoVirtualDevices, check_emulation, emulate, emulated_topology

__all__ = [
    "MAX_DEVICES",
    "PEAK_DTYPES",
    "DeviceProfile",
    "NoVirtualDevices",
    "ProfileError",
    "Topology",
    "VirtualDevice",
    "check_emulation",
    "default_profiles",
    "device_profiles",
    "emulate",
    "emulated_topology",
    "load_profiles",
    "profile_named",
]


def __getattr__(name: str) -> Any:
    if name in ("NoVirtualDevices", "check_emulation", "emulate", "emulated_topology"):
        return getattr(importlib.import_module("fakexport.devices.emulation"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
