"""The devices that weights are bound on; they must be on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from fakexport.devices import exists_here
from fakexport.error import InvalidValue
from fakexport.program import DeviceMove


def move_to_here(devices: str | Mapping[str, str] | None, present: tuple[str, ...]) -> DeviceMove:
    """Return where `devices` moves the devices of programs that are to be bound.

    Args:
        devices: As for `bind`.
        present: The programs' devices.
    Raises:
        ValueError: a device that the programs do not use or that is unknown; one that is not on this machine.
    """
    move = DeviceMove.parse(devices, present)
    for device in present:
        target = str(move.of(device))
        if not exists_here(target):
            is_own = target == device
            hint = f"devices={{{device!r}: 'cpu'}} would bind it here" if is_own else "choose another"
            raise InvalidValue(f"the device {target} is not on this machine; {hint}")
    return move
