"""Whether a device is on this machine, under the name by which the archives know it."""

from fakexport.devices.presence import exists_here

__all__ = ["exists_here"]
