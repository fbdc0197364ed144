"""Torch's pickle of an object is read as data: what is no state is refused, and nothing is called."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import zipfile

import pytest
import torch

from fakexport.archive.pickled_state import MOST_VALUES, StoredView, read_pickled_state
from fakexport.files.documents.document_error import DocumentError
from tests.torchbind import LIBRARY, queue

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")

CLASS = b"c__torch__.torch.classes.signal_ops\nPolynomial\n)\x81"


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    torch.ops.load_library(LIBRARY)


def pickled(value: object) -> bytes:
    with zipfile.ZipFile(io.BytesIO(torch._C._pickle_save(value))) as archive:
        return archive.read("archive/data.pkl")


def of_state(state: bytes) -> bytes:
    """The pickle of an object whose state is made by these steps."""
    return b"\x80\x02" + CLASS + state + b"b."


def refused(content: bytes) -> str:
    with pytest.raises(DocumentError) as caught:
        read_pickled_state(content)
    return str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        1,
        -5,
        2**31,
        -(2**40),
        2.5,
        1 - 2j,
        True,
        None,
        "text é",
        [1, 2],
        [1.5],
        [True, False],
        ["a", "b"],
        [[1], [2, 3]],
        {"k": 1, "l": 2},
        {1: 2.5},
        (1,),
        (1, "a"),
        (1, 2, 3),
        (1, 2, 3, 4),
        list(range(3000)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_torch_writes_is_read(value):
    content = pickled(value)
    state = content[2:-1]  # Without the protocol and the stop.

    found = read_pickled_state(of_state(state))

    assert found.class_name == "signal_ops::Polynomial"
    assert found.state == value
    assert type(found.state) is type(value)


def test_tensors_are_told_by_their_records():
    (_, first), (_, tensors) = read_pickled_state(pickled(queue(torch.ones(2, 3)))).state

    assert isinstance(first, StoredView)
    assert (tensors[0].shape, tensors[0].stride, tensors[0].offset) == ((2, 3), (3, 1), 0)
    assert (tensors[0].storage.dtype, tensors[0].storage.record) == ("FloatStorage", "1")


class Evil:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a pickle of protocol 2"),
        (b"\x80\x02.", "data after its end"),
        (b"\x80\x02N.", "not a pickled object of a C++ class"),
        (b"\x80\x03" + CLASS + b"Nb.", "not a pickle of protocol 2"),
        (b"\x80\x02" + CLASS + b".", "not a pickled object of a C++ class"),
        (of_state(b"N") + b"more", "data after its end"),
        (of_state(b"NN"), "sets the state of something that is not an object"),
        (of_state(b"N")[:-1], "has the opcode b'', which"),
        (of_state(b"S'x'\n"), "has the opcode b'S', which"),
        (of_state(b"J\x00"), "not a valid pickle"),
        (of_state(b"Nb" + b"N"), "sets the state of something that is not an object"),
        (of_state(b"cos\nsystem\n(X\x01\x00\x00\x00xtR"), "calls 'os.system', which"),
        (of_state(b"cbuiltins\neval\n(X\x01\x00\x00\x001tR"), "calls 'builtins.eval', which"),
        (of_state(b"cos\nsystem\n"), "has a value that the state of an object never contains"),
        (of_state(CLASS), "has a value that the state of an object never contains"),
        (b"\x80\x02cos\nsystem\n)\x81Nb.", "instantiates something that is not a C++ class"),
        (b"\x80\x02c__torch__.torch.classes.a-b\nC\n)\x81Nb.", "has an invalid class name"),
        (b"\x80\x02c__torch__.torch.classes.\nC\n)\x81Nb.", "has an invalid class name"),
        (of_state(b"(ios\nsystem\n"), "has the opcode b'i', which"),
        (of_state(b"\x8c\x02os\x8c\x06system\x93"), "has the opcode b'\\x8c', which"),
        (of_state(b"]NNs"), "has the opcode b's', which"),
        (of_state(b"Na"), "adds to a value that is not a list"),
        (of_state(b"](N"), "uses a value that does not exist"),
        (of_state(b"h\x07"), "not a valid pickle"),
        (of_state(b"}(]Nu"), "a key that is not a number or string"),
        (of_state(b"X\x00\x00\x00\x01x"), "not a valid pickle"),
        (of_state(b"X\x03\x00\x00\x00\xed\xa0\x80"), "not a valid pickle"),
        (of_state(b"N\x85" * 70), "sets the state of something that is not an object"),
        (of_state(b"N" + b"\x85" * 70), "nested more than"),
        (of_state(b"]q\x00h\x00a"), "nested more than"),
        (
            of_state(b"(X\x07\x00\x00\x00storageNX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"),
            "not a tensor storage",
        ),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, bytes) else "",
)
def test_what_is_no_state_is_refused(content, reason):
    assert reason in refused(content)


def storage(device: bytes = b"cpu", record: bytes = b"0") -> bytes:
    texts = b"".join(
        b"X" + struct.pack("<I", len(text)) + text if text is not None else b"ctorch\nFloatStorage\n"
        for text in (b"storage", None, record, device)
    )
    return b"(" + texts + b"K\x04tQ"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (storage(), "has a value that the state of an object never contains"),
        (storage(device=b"cuda:0"), "has a tensor on 'cuda:0'; only CPU tensors are supported"),
        (storage(record=b"../x"), "has a storage whose name is not a number"),
        (
            b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage() + b"K\x00)(K\x02t\x89}tR",
            "invalid sizes",
        ),
        (
            b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage() + b"J\xff\xff\xff\xff))\x89}tR",
            "invalid sizes",
        ),
    ],
)
def test_a_tensor_that_is_none_is_refused(steps, reason):
    assert reason in refused(of_state(steps))


def views(sizes: bytes, count: int) -> bytes:
    """Tensors in one storage with the sizes and strides that these steps leave at place 2 of the memo."""
    first = b"ctorch._utils\n_rebuild_tensor_v2\nq\x01(" + storage() + b"q\x00K\x00" + sizes
    return first + b"h\x02\x89}tR" + b"h\x01(h\x00K\x00h\x02h\x02\x89}tR" * count


@pytest.mark.parametrize(
    ("sizes", "count", "reason"),
    [
        (b"(" + b"K\x00" * 10_000 + b"tq\x02", 2_000, "more than 64 dimensions"),
        (b"(" + b"K\x00" * 64 + b"tq\x02", 20_000, "more than 10,000 tensors"),
        (b"](" + b"K\x00" * 10_000 + b"eq\x02", 2_000, "invalid sizes"),
    ],
    ids=["dimensions", "tensors", "list"],
)
def test_sizes_that_many_tensors_refer_to_take_no_memory(sizes, count, reason):
    content = of_state(b"(" + views(sizes, count) + b"t")
    tracemalloc.start()
    try:
        assert reason in refused(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 40 * len(content) + (4 << 20)


def test_a_list_that_holds_itself_many_times_is_not_counted_out():
    """Ten levels of a hundred references each are 100**10 values for whoever goes through them."""
    steps = b"]q\x00"
    for level in range(10):
        steps += b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 99 + b"eq" + bytes([level + 1])

    assert f"more than {MOST_VALUES:,} values" in refused(of_state(b"(" + steps + b"t"))


def test_a_large_place_in_the_memo_takes_no_memory():
    assert read_pickled_state(of_state(b"Nr\xff\xff\xff\xff")).state is None


def test_a_pickle_of_python_is_refused_and_does_not_run(capsys):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        refused(pickle.dumps(Evil(), protocol=protocol))

    assert capsys.readouterr().out == ""
