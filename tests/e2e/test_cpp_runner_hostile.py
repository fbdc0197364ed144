"""The C++ program reads files of tensors that anybody may have written: one line each, and never an abort."""

import json
import struct

import pytest

from tests.cpp_runner import Runner
from tests.e2e.compiled_models import mlp, save_bound

safetensors = pytest.importorskip("safetensors.torch")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpp_runner")]


def tensor(dtype: str, shape: list[object], begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file_of(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


X = tensor("F32", [3, 8], 0, 96)
DATA = bytes(96)
HOSTILE = {
    "empty": (b"", "too short"),
    "a length beyond everything": (file_of(b"{}", length=2**64 - 1), "more than 100,000,000 bytes"),
    "a length beyond the end": (file_of(b"{}", length=90_000_000), "its header exceeds the file"),
    "a list": (file_of(b"[]"), "its header does not start with {"),
    "text after the header": (file_of(b"{}{}"), "text after the value at byte 2"),
    "an unterminated string": (file_of(b'{"x'), "an unterminated string at byte 3"),
    "not UTF-8": (file_of(b'{"\xc0\x80": 1}'), "bytes that are not UTF-8 at byte 2"),
    "half a surrogate": (file_of(b'{"\\ud800": 1}'), "an incomplete surrogate pair"),
    "an escape that is none": (file_of(b'{"\\x41": 1}'), "an unknown escape"),
    "a control character": (file_of(b'{"a\nb": 1}'), "a control character in a string"),
    "levels": (file_of(b'{"x":' + b"[" * 100_000), "more than 64 levels"),
    "values": (file_of(b'{"x":[' + b"0," * 4_000_001 + b"0]}"), "more than 4,000,000 values"),
    "a name twice": (file_of(b'{"x": 1, "x": 2}'), "the name 'x' occurs twice"),
    "a number that is none": (file_of(b'{"x": 01}'), "expected '}'"),
    "not a number": (file_of(b'{"x": NaN}'), "expected a value"),
    "an integer of more than 64 bits": (
        file_of(b'{"x": 9223372036854775808}'),
        "an integer of more than 64 bits",
    ),
    "no entry": (file_of({"x": 3}), "'x': expected an object"),
    "a field too much": (file_of({"x": {**X, "file": "/etc/passwd"}}, DATA), "and nothing else"),
    "metadata that is no text": (file_of({"__metadata__": {"a": 1}, "x": X}, DATA), "expected a string"),
    "an unknown dtype": (file_of({"x": tensor("F33", [3, 8], 0, 96)}, DATA), "'F33' is not supported"),
    "a negative size": (file_of({"x": tensor("F32", [-3, -8], 0, 96)}, DATA), "a negative size"),
    "a size that is no integer": (
        file_of({"x": tensor("F32", [3.0, 8], 0, 96)}, DATA),
        "expected an integer",
    ),
    "an overflow": (file_of({"x": tensor("F32", [2**62, 8], 0, 0)}), "more bytes than 63 bits can count"),
    "many dimensions": (file_of({"x": tensor("F32", [1] * 65, 0, 4)}, bytes(4)), "more than 64 dimensions"),
    "offsets the wrong way": (
        file_of({"x": tensor("F32", [3, 8], 96, 0)}, DATA),
        "not a pair of begin and end",
    ),
    "an end beyond 63 bits": (file_of({"x": tensor("F32", [3, 8], 0, 2**63 - 1)}, DATA), "not a pair"),
    "fewer bytes than the shape": (
        file_of({"x": tensor("F32", [3, 9], 0, 96)}, DATA),
        "does not fit the 96 bytes",
    ),
    "truncated": (file_of({"x": X}, DATA[1:]), "'x' exceeds the file"),
    "bytes left over": (file_of({"x": X}, DATA + b"1"), "there are bytes after the last tensor"),
    "an overlap": (
        file_of({"x": X, "y": tensor("F32", [3, 8], 0, 96)}, DATA),
        "'y' overlaps the previous tensor",
    ),
    "a hole": (file_of({"x": tensor("F32", [3, 8], 4, 100)}, DATA + bytes(4)), "'x' leaves a hole before it"),
}


def npy(
    header: str, data: bytes = DATA, *, start: bytes = b"\x93NUMPY\x01\x00", length: int | None = None
) -> bytes:
    text = header.encode() + b"\n"
    return start + struct.pack("<H", len(text) if length is None else length) + text + data


ARRAY = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 8), }"
HOSTILE_ARRAYS = {
    "empty": (b"", "too short for an npy file"),
    "another file": (npy(ARRAY, start=b"\x93NUMPX\x01\x00"), "it is not an npy file"),
    "another version": (npy(ARRAY, start=b"\x93NUMPY\x04\x00"), "its version 4 is not supported"),
    "a header beyond the end": (npy(ARRAY, length=65535), "its header exceeds the file"),
    "a huge header": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + DATA, "more than 1,000,000 bytes"),
    "objects": (npy(ARRAY.replace("<f4", "|O")), "the dtype '|O' is not supported"),
    "big-endian numbers": (npy(ARRAY.replace("<f4", ">f4")), "its numbers are big-endian"),
    "code": (npy("{'descr': '<f4', 'fortran_order': exit(), 'shape': (3, 8), }"), "expected False"),
    "a negative size": (npy(ARRAY.replace("3", "-3")), "expected a size"),
    "a size beyond 63 bits": (npy(ARRAY.replace("3", "9" * 30)), "expected a size"),
    "an overflow": (npy(ARRAY.replace("3", "2305843009213693952")), "more bytes than 63 bits can count"),
    "a field twice": (npy("{'descr': '<f4', 'descr': '<f4', }"), "the unexpected field 'descr'"),
    "a field missing": (npy("{'descr': '<f4', 'shape': (3, 8), }"), "its header is damaged"),
    "text after the header": (npy(ARRAY + "x"), "its header is damaged"),
    "truncated": (npy(ARRAY, DATA[1:]), "float32[3, 8] takes 96 bytes, but the file has 95"),
    "bytes left over": (npy(ARRAY, DATA + b"1"), "float32[3, 8] takes 96 bytes, but the file has 97"),
}


class TestHostileFiles:
    @pytest.mark.parametrize("case", HOSTILE)
    def test_safetensors_are_refused(self, case, run, tmp_path):
        content, message = HOSTILE[case]
        path = tmp_path / "in.safetensors"
        path.write_bytes(content)

        refusal = run.refusal("--inputs", path)

        assert refusal.startswith(f"{path} is rejected: ")
        assert message in refusal

    @pytest.mark.parametrize("case", HOSTILE_ARRAYS)
    def test_arrays_are_refused(self, case, run, tmp_path):
        content, message = HOSTILE_ARRAYS[case]
        path = tmp_path / "x.npy"
        path.write_bytes(content)

        refusal = run.refusal("--inputs", f"x={path}")

        assert refusal.startswith(f"{path} is rejected: ")
        assert message in refusal

    def test_weights_are_read_as_carefully_as_inputs(self, run, tmp_path):
        safetensors.save_file(mlp().inputs, tmp_path / "in.safetensors")
        weights = tmp_path / "weights.safetensors"
        weights.write_bytes(HOSTILE["an overlap"][0])

        refusal = run.refusal("--inputs", tmp_path / "in.safetensors", weights=weights)

        assert "'y' overlaps the previous tensor" in refusal

    def test_a_name_cannot_forge_a_line(self, run, tmp_path):
        path = tmp_path / "in.safetensors"
        path.write_bytes(file_of({"x\0\nerror: \x1b[31m\u009b31m\u2028\u202enone": X}, DATA))

        assert "'x??error: ?[31m?31m??none'" in run.refusal("--inputs", path)

    def test_a_name_in_any_script_is_read(self, run, tmp_path):
        path = tmp_path / "in.safetensors"
        path.write_bytes(file_of(b'{"\\u00fc\\ud83d\\ude00\xc3\xbc":' + json.dumps(X).encode() + b"}", DATA))

        assert run.refusal("--inputs", path).startswith("the program has no input 'ü😀ü'")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is not a compiled package"),
            (b"PK\x03\x04 and no more", "cannot be read: "),
        ],
        ids=["empty", "truncated"],
    )
    def test_what_is_no_package_is_refused(self, content, message, run, tmp_path):
        package = tmp_path / "model.pt2"
        package.write_bytes(content)

        refusal = Runner(run.program, package).refusal()

        assert refusal.startswith(f"{package} {message}")

    def test_an_archive_that_is_not_compiled_is_refused(self, run, tmp_path):
        save_bound(mlp(), tmp_path / "model.pt2")

        refusal = Runner(run.program, tmp_path / "model.pt2").refusal()

        assert str(tmp_path / "model.pt2") in refusal
