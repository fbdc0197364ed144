"""Device guards: what stock torch does without one, and the C++ layout that ours are built from."""

import ctypes
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from fakexport._torch.emulation import guard_layout, method_table, virtual_guard
from fakexport._torch.emulation.device_guard import VirtualGuards, guard_address
from tests.torch_facts.stock_torch import run_stock_from_nothing

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel does")
has_streams = pytest.mark.skipif(not virtual_guard.has_streams(), reason="no page of machine code here")
NOT_LINKED = "PyTorch is not linked with support for {} devices"


@is_cpu_wheel
def test_stock_is_not_linked_with_other_devices_and_aborts_where_their_parameters_require_grad():
    ended = run_stock_from_nothing(
        "for device in ('cuda', 'xpu', 'mps'):\n"
        "    try:\n"
        "        with FakeTensorMode(): torch.empty(2, device=device).uniform_()\n"
        "    except RuntimeError as error: print(error)"
    )
    assert ended.stdout.splitlines() == [NOT_LINKED.format(device) for device in ("cuda", "xpu", "mps")]

    ended = run_stock_from_nothing(
        "with FakeTensorMode():\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    model.weight = torch.nn.Parameter(torch.empty(2, 2, device='cuda'))\n"
        "    x = torch.empty(2, 2, device='cuda')\n"
        "model.bias = None\n"
        "torch.export.export(model, (x,))"
    )
    assert ended.returncode == -signal.SIGABRT
    assert NOT_LINKED.format("cuda") in ended.stderr


def test_a_guard_that_stood_there_is_put_back_and_one_of_ours_stays_where_none_stood():
    before = guard_address("meta")

    with VirtualGuards(["meta", "xpu"]):
        inside = guard_address("meta"), guard_address("xpu")

    assert inside[0] != before
    assert guard_address("meta") == before
    assert guard_address("xpu") == inside[1]


def test_device_types_and_methods_are_where_the_headers_say():
    members = torch._C._autograd.DeviceType.__members__  # all but meta
    numbers = {name: int(members[name.upper()]) for name in ("cpu", "cuda", "xpu", "mps")}
    assert numbers | {"meta": 14} == virtual_guard.DEVICE_TYPE_INDEX

    positions = method_table.method_positions(virtual_guard._HEADER)
    assert {"type", "getDevice", "getStream", "record", "block", "deviceCount"} <= positions.keys()
    assert sorted(positions.values()) == list(range(len(positions)))
    assert positions["type"] == 0


@pytest.mark.parametrize("shift", [-1, 1, 2])
def test_another_layout_and_a_table_that_is_shifted_are_refused_and_nothing_is_called(shift):
    positions = method_table.method_positions(virtual_guard._HEADER)
    shifted = {name: position + shift for name, position in positions.items()}

    with pytest.raises(OSError, match="has an unknown layout of device guards"):
        guard_layout.check_layout(guard_address, shifted)
    with pytest.raises(OSError, match="has an unknown layout of device guards"):
        virtual_guard.VirtualGuard("cuda", lambda device_type: guard_address("cpu"))


def test_the_machine_code_of_the_guards_is_understood():
    positions = method_table.method_positions(virtual_guard._HEADER)

    found = guard_layout._read_methods(guard_address, positions)

    assert found == guard_layout._expected() == guard_layout.call_methods(guard_address, positions)


@pytest.mark.slow
def test_code_that_is_not_understood_is_called_in_a_process_of_its_own():
    positions = method_table.method_positions(virtual_guard._HEADER)

    assert guard_layout._called_elsewhere(positions) == guard_layout._expected()


ARM = {
    "00e09f52 c0035fd6": 0xFF00,  # mov w0, 0xff00; ret
    "5f2403d5 010080d2 e01f8012 c0035fd6": 0xFFFFFF00,  # bti c; mov x1, 0; mov w0, -256; ret
    "c0018052 c0035fd6": 14,  # mov w0, 14; ret
    "fd7bbfa9 c0018052 c0035fd6": None,  # stp x29, x30, [sp, -16]!; ...
}


@pytest.mark.parametrize("code", ARM)
def test_machine_code_of_arm_is_read(code):
    padded = bytes.fromhex(code).ljust(24, b"\0")
    words = [int.from_bytes(padded[at : at + 4], "little") for at in range(0, 24, 4)]

    assert guard_layout._constant_on_arm(words) == ARM[code]


@has_streams
def test_the_page_of_machine_code_is_not_writable_and_our_stream_is_on_the_device_it_was_asked_for():
    address = ctypes.cast(virtual_guard._stream_function(), ctypes.c_void_p).value
    pages = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    bounds = [[int(end, 16) for end in page[0].split("-")] for page in pages]

    ((page, _),) = [each for each in zip(pages, bounds, strict=True) if each[1][0] <= address < each[1][1]]

    assert page[1] == "r-xp"
    for number, index in ((1, 0), (12, 127), (13, 1)):
        device = virtual_guard.packed_device(number, index)
        stream = virtual_guard._stream_function()(None, device)
        assert (stream.device, stream.id) == (device, 0)


def test_a_declaration_is_read_whatever_its_type(tmp_path, monkeypatch):
    header = tmp_path / "include" / "base.h"
    header.parent.mkdir()
    header.write_text(
        "struct Base {\n  // virtual int commented() const;\n  virtual ~Base() = default;\n"
        "  virtual std::pair<int, int> two(int a = f(1)) const = 0;\n"
        "  virtual void* pointer() { return 0; }\n};\n"
    )
    (tmp_path / "include" / "derived.h").write_text(
        "struct Derived : Base {\n  ~Derived() override;\n  void* pointer() override;\n"
        "  virtual const Generator& mine(\n      int b) const;\n};\n"
    )
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))

    positions = method_table.method_positions("derived.h", "base.h")

    assert positions == {"~": 0, "two": 2, "pointer": 3, "mine": 4}


def test_threads_that_ask_at_once_get_one_object_whose_address_c_can_keep():
    made, got, start = [], [], threading.Barrier(8)

    @method_table.made_once
    def make(name):
        made.append(name)
        time.sleep(0.01)
        return object()

    def ask():
        start.wait()
        got.append(make("cuda"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert made == ["cuda"]
    assert len(set(map(id, got))) == 1


def test_where_no_page_may_be_run_there_are_no_streams_and_no_failure(monkeypatch):
    def forbidden():
        raise PermissionError(13, "the system forbids it")

    monkeypatch.setattr(virtual_guard, "_stream_function", forbidden)

    assert virtual_guard.missing_streams.__wrapped__() == "the system forbids it"


@pytest.mark.slow
@has_streams
def test_a_system_that_forbids_the_page_is_named_by_a_backward_pass():
    # PR_SET_MDWE: the kernel refuses to make written memory executable, as systemd's setting does.
    ended = run_stock_from_nothing(
        "import ctypes, sys\n"
        "from fakexport._torch.emulation.virtual_accelerator import virtual_backward\n"
        "from fakexport._torch.emulation.device_guard import VirtualGuards\n"
        "if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0: sys.exit('too old a kernel')\n"
        "try:\n"
        "    with VirtualGuards(['cuda']), virtual_backward('cuda'), FakeTensorMode():\n"
        "        x = torch.ones(2, device='cuda', requires_grad=True)\n"
        "        (x * x).sum().backward()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )

    if "too old a kernel" in ended.stderr:
        pytest.skip("the kernel has no PR_SET_MDWE")
    assert "MemoryDenyWriteExecute" in ended.stdout
