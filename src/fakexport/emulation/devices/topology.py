"""Topologies: the virtual devices of one target, written as `cpu`, `H100`, `8xH100` or `cpu+2xA100-40GB`."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fakexport.emulation.devices.profile import DeviceProfile, default_profiles, profile_named
from fakexport.error import InvalidValue

MAX_DEVICES = 4096
"""The maximum number of devices in a topology."""

_SINGLE = frozenset({"cpu", "mps"})
_COUNTED = re.compile(r"([0-9]+)\s*x\s*(.*)", re.IGNORECASE | re.DOTALL)
_INDEXED = re.compile(r"([a-z]+):([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class VirtualDevice:
    """A device that a process can use under emulation.

    Args:
        name: torch's name of the device, such as `cuda:0` or `mps:0`. The host is `cpu`, without an index.
        type: torch's device type.
        index: Index of the device among all devices of its type, starting at 0; 0 for the host.
        profile: The properties that the device reports.
    """

    name: str
    type: str
    index: int
    profile: DeviceProfile


@dataclass(frozen=True)
class Topology:
    """The devices of one target. Every topology includes the host `cpu`, whether it is listed or not.

    Args:
        spec: The text as the user wrote it.
        devices: The listed devices, in order. Each device type is numbered separately from 0.
        assumptions: Sentences that explain how ambiguous text was interpreted.
    """

    spec: str
    devices: tuple[VirtualDevice, ...]
    assumptions: tuple[str, ...] = ()

    @classmethod
    def parse(cls, spec: str) -> Topology:
        """Parse a topology: device models joined by `+`, each with an optional count before an `x`.

        Args:
            spec: `cpu`, `H100`, `8xH100-80GB`, `cpu+2xA100-40GB`, `cuda`, `cuda:0`. Case is ignored; spaces
                are allowed around `+` and `x`. A device type means its default model, and `assumptions` then
                names that model. The indices of a device type must be listed in order: `cuda:0+cuda:1`.
        Returns:
            The topology. Models of one type can be mixed: in `H100+T4`, cuda:0 is an H100 and cuda:1 a T4.
        Raises:
            ValueError: an unknown name (the message names the closest matches), an empty part, a count of 0,
                an index that is not the next one, more than one cpu or mps, or more than `MAX_DEVICES`
                devices. The message is a single line.

        Example:
            >>> Topology.parse("cpu + 2xA100-40GB").listed
            ('cpu', 'cuda:0', 'cuda:1')
        """
        profiles: list[DeviceProfile] = []
        assumptions: list[str] = []
        for part in spec.split("+"):
            count, name = _counted(part.strip(), spec)
            if len(profiles) + count > MAX_DEVICES:
                raise InvalidValue(f"topology {spec!r} lists more than {MAX_DEVICES} devices")
            model = _without_index(name, count, profiles)
            profile = profile_named(model)
            if model.casefold() in default_profiles() and profile.device_type != "cpu":
                assumptions.append(
                    f"'{model.casefold()}' does not specify a GPU model: assuming {profile.name}"
                )
            profiles += [profile] * count
        for device_type, count in Counter(profile.device_type for profile in profiles).items():
            if count > 1 and device_type in _SINGLE:
                raise InvalidValue(
                    f"topology {spec!r} lists {count} {device_type} devices, but a process has only one"
                )
        return cls(spec=spec, devices=_numbered(profiles), assumptions=tuple(dict.fromkeys(assumptions)))

    @property
    def canonical(self) -> str:
        """The same devices in the shortest unambiguous form: `8xH100-80GB`, `cpu+2xA100-40GB`."""
        runs = itertools.groupby(device.profile.name for device in self.devices)
        counted = ((len(list(run)), name) for name, run in runs)
        return "+".join(name if count == 1 else f"{count}x{name}" for count, name in counted)

    @property
    def listed(self) -> tuple[str, ...]:
        """The names of the listed devices, in order."""
        return tuple(device.name for device in self.devices)

    @property
    def present(self) -> str:
        """The existing devices, including the host: `cpu, cuda:0..cuda:7`."""
        return _ranges(self.devices)

    @property
    def accelerators(self) -> tuple[VirtualDevice, ...]:
        """The listed devices except the host."""
        return tuple(device for device in self.devices if device.type != "cpu")

    @property
    def default_device(self) -> str:
        """The device that models use by default: the first accelerator, or `cpu` if there is none."""
        return next((device.name for device in self.accelerators), "cpu")

    def devices_of(self, device_type: str) -> tuple[VirtualDevice, ...]:
        """Return the devices of one type, ordered by index. There is always one `cpu`."""
        if device_type == "cpu":
            return (self.device("cpu"),)
        return tuple(device for device in self.devices if device.type == device_type)

    def device(self, name: str) -> VirtualDevice:
        """Return a device by name.

        Raises:
            ValueError: the topology has no such device. The message is a single line that lists the existing
                devices.
        """
        found = self._find(name)
        if found is None:
            raise InvalidValue(f"topology {self.spec!r} has no device {name!r}; it has {self.present}")
        return found

    def has_device(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> VirtualDevice | None:
        if name in ("cpu", "cpu:0"):
            host = VirtualDevice(name="cpu", type="cpu", index=0, profile=profile_named("cpu"))
            return next((device for device in self.devices if device.type == "cpu"), host)
        full_name = name if ":" in name else f"{name}:0"
        return next((device for device in self.devices if device.name == full_name), None)


def _counted(part: str, spec: str) -> tuple[int, str]:
    """Return the count and the name in one part of a spec."""
    counted = _COUNTED.fullmatch(part)
    name = counted[2] if counted else part
    if not name:
        raise InvalidValue(f"topology {spec!r} has an empty part: write, for example, 'cpu+2xA100-40GB'")
    if counted is None:
        return 1, name
    digits = counted[1].lstrip("0")
    if not digits:
        raise InvalidValue(f"topology {spec!r} lists 0 of {name!r}: a count must be at least 1")
    # int() rejects thousands of digits with its own message.
    return (int(digits) if len(digits) <= len(str(MAX_DEVICES)) else MAX_DEVICES + 1), name


def _without_index(name: str, count: int, before: Iterable[DeviceProfile]) -> str:
    """Return a device name without its index: `cuda` for `cuda:0`. Other names are returned unchanged.

    Raises:
        ValueError: the index is not the next one after the devices in `before`, or `count` is not 1.
    """
    indexed = _INDEXED.fullmatch(name)
    device_type = indexed[1].casefold() if indexed else ""
    if indexed is None or device_type not in default_profiles():
        return name
    index = sum(profile.device_type == device_type for profile in before)
    if count != 1:
        raise InvalidValue(f"{name!r} is a single device, not {count}: write '{count}x{device_type}'")
    if indexed[2] != str(index):
        raise InvalidValue(
            f"{name!r} is out of order: the next {device_type} device is {device_type}:{index}"
        )
    return device_type


def _numbered(profiles: Iterable[DeviceProfile]) -> tuple[VirtualDevice, ...]:
    indices: Counter[str] = Counter()
    devices: list[VirtualDevice] = []
    for profile in profiles:
        device_type = profile.device_type
        index = indices[device_type]
        name = "cpu" if device_type == "cpu" else f"{device_type}:{index}"
        devices.append(VirtualDevice(name=name, type=device_type, index=index, profile=profile))
        indices[device_type] += 1
    return tuple(devices)


def _ranges(devices: Iterable[VirtualDevice]) -> str:
    """Return the names of the host and the devices. Devices of one type become a range: `cuda:0..cuda:7`."""
    counts = Counter(device.type for device in devices if device.type != "cpu")
    rows = (f"{t}:0" if count == 1 else f"{t}:0..{t}:{count - 1}" for t, count in counts.items())
    return ", ".join(["cpu", *rows])
