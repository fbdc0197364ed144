"""What fakexport relies on, in the wheels of torch for platforms that these tests do not run on.

FAKEXPORT_TORCH_WHEELS is a folder of wheels: `make test-other-wheels` downloads them.
"""

import os
import zipfile
from pathlib import Path

import pytest

from fakexport._torch.emulation import device_guard, guard_layout, method_table, virtual_accelerator
from tests.torch_facts.mach_o import MachO

FOLDER = os.environ.get("FAKEXPORT_TORCH_WHEELS", "")
CPU_GUARD = "N3c104impl19NoOpDeviceGuardImplILNS_10DeviceTypeE0EEE"
HOOKS = {"cuda": "CUDAHooksInterface", "xpu": "XPUHooksInterface", "mps": "MPSHooksInterface"}


def wheel(platform):
    found = sorted(Path(FOLDER).glob(f"torch-*{platform}*.whl")) if FOLDER else []
    if not found:
        pytest.skip(f"no wheel of torch for {platform} in FAKEXPORT_TORCH_WHEELS")
    return zipfile.ZipFile(found[-1])


@pytest.fixture(scope="module")
def macos():
    return wheel("macosx_*_arm64")


@pytest.fixture(scope="module")
def libraries(macos):
    return {name: MachO.read(macos.read(f"torch/lib/lib{name}.dylib")) for name in ("c10", "torch_cpu")}


@pytest.fixture
def headers(macos, tmp_path, monkeypatch):
    """The functions that read torch's headers read those of the wheel."""
    for name in macos.namelist():
        if name.endswith("Interface.h"):
            macos.extract(name, tmp_path)
    monkeypatch.setattr(method_table.torch, "__file__", str(tmp_path / "torch" / "__init__.py"))


def test_macos_has_the_registry_of_guards_where_it_is_looked_for(macos, libraries, monkeypatch):
    monkeypatch.setattr(device_guard.sys, "platform", "darwin")

    assert f"torch/lib/{device_guard.library_path('c10').name}" in macos.namelist()
    assert device_guard._REGISTRY_SYMBOL in libraries["c10"].exported


def is_method(symbol, name):
    return f"{len(name)}{name}E" in (symbol or "")


def test_macos_has_each_method_of_a_guard_where_the_header_says(libraries, headers):
    positions = method_table.method_positions("c10/core/impl/DeviceGuardImplInterface.h")

    found = libraries["torch_cpu"].methods(f"_ZTV{CPU_GUARD}", max(positions.values()) + 1)

    for name in ("type", "getDevice", "deviceCount", "record", "block", "getStream", "setDevice"):
        assert is_method(found[positions[name]], name), (name, found[positions[name]])


def test_macos_guards_are_compiled_in_a_way_that_is_understood(libraries, headers, monkeypatch):
    monkeypatch.setattr(guard_layout.platform, "machine", lambda: "arm64")
    library, cpu = libraries["torch_cpu"], f"_ZNK{CPU_GUARD[1:-1]}"
    answers = {"4typeEv": 0, "9getDeviceEv": guard_layout.packed_device(0, -1)}

    for method, expected in answers.items():
        code = library.bytes_at(library.symbols[cpu + method], guard_layout._MOST_CODE_BYTES)
        assert guard_layout._constant(code) & 0xFFFF == expected


@pytest.mark.parametrize("device_type", HOOKS)
def test_macos_has_the_hooks_of_each_accelerator(libraries, headers, device_type):
    getter, header = virtual_accelerator._HOOKS[device_type]
    positions = method_table.method_positions(header, virtual_accelerator._BASE)
    library, name = libraries["torch_cpu"], HOOKS[device_type]

    assert getter in library.exported
    found = library.methods(f"_ZTVN2at{len(name)}{name}E", max(positions.values()) + 1)
    for method in ("isBuilt", "hasPrimaryContext"):
        assert is_method(found[positions[method]], method), (method, found[positions[method]])


def test_windows_has_no_guard_that_can_be_replaced(monkeypatch):
    """Its tables of methods follow another ABI: `missing_guards` says so."""
    library = wheel("win_amd64").read("torch/lib/c10.dll")

    assert device_guard._REGISTRY_SYMBOL.encode() not in library
    assert b"?device_guard_impl_registry@impl@c10@@" in library
    monkeypatch.setattr(device_guard.sys, "platform", "win32")
    device_guard.missing_guards.cache_clear()
    try:
        assert "Windows" in device_guard.missing_guards()
    finally:
        device_guard.missing_guards.cache_clear()
