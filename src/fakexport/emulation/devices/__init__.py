"""Device profiles, topologies, and their emulation.

Only `emulate` needs torch; it is imported on first use.
"""

from typing import TYPE_CHECKING

from fakexport._lazy_face import lazy_names
from fakexport.emulation.devices.custom_profiles import ProfileError, device_profiles
from fakexport.emulation.devices.profile import (
    DeviceProfile,
    default_profiles,
    known_profiles,
    load_profiles,
    profile_named,
)
from fakexport.emulation.devices.topology import MAX_DEVICES, Topology

if TYPE_CHECKING:
    from fakexport.emulation.devices.emulation import (
        EmulationUnavailableError,
        attention_device,
        check_emulation,
        emulate,
        emulated_topology,
        exists_here,
    )
    from fakexport.emulation.devices.host_memory import peak_bytes, resident_bytes

if not TYPE_CHECKING:  # A type checker would accept any misspelled name otherwise.
    __getattr__ = lazy_names(
        __name__,
        {
            "emulation": "EmulationUnavailableError attention_device check_emulation emulate "
            "emulated_topology exists_here",
            "host_memory": "peak_bytes resident_bytes",
        },
    )
