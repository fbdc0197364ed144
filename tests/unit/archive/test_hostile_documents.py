"""Documents that somebody bent: always an `DocumentError` in one line, and nothing is run or imported."""

from __future__ import annotations

import copy
import json
import sys
import time
import tracemalloc
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakexport.archive.codec.program import program_from_json, program_to_json
from fakexport.archive.codec.program_outline import outline
from fakexport.files.documents.document_error import DocumentError
from tests.unit.archive.programs import branches, every_kind, flexible

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def documents():
    programs = (every_kind(is_dynamic=True), branches(), flexible())
    return [json.loads(json.dumps(program_to_json(program))) for program in programs]


def read(document: Any) -> Any:
    return program_from_json(document)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [place for key, entry in value.items() for place in places(entry, (*path, key))]
    if isinstance(value, list):
        return found + [place for i, entry in enumerate(value) for place in places(entry, (*path, i))]
    return found


def bent(document: Any, path: tuple[Any, ...], change: Any) -> Any:
    document = copy.deepcopy(document)
    owner = document
    for step in path[:-1]:
        owner = owner[step]
    if change == "delete":
        del owner[path[-1]]
    elif isinstance(change, Renamed):
        if isinstance(owner, dict):
            owner[change.name] = owner.pop(path[-1])
    elif change == "double" and isinstance(owner, list):
        owner.append(copy.deepcopy(owner[path[-1]]))
    else:
        owner[path[-1]] = change
    return document


@dataclass(frozen=True)
class Renamed:
    """The change that calls a key otherwise."""

    name: str


OTHER_VALUES = [
    None, True, False, 0, -1, 3, 2**62, 2**63, 2**200, 1.5, float("inf"), "", "x", "__import__('os')",
    "x" * 5000, "a\r\nb",
    "torch.ops.aten.add.Tensor", "torch.ops.os.system.default", "_operator.getitem", "os.system",
    [], [[]], {}, {"as_int": 1}, {"as_none": True}, {"as_tensor": {"name": "x"}}, {"as_string": "x"},
    {"as_expr": {"expr_str": "Symbol('s9', integer=True)", "hint": None}}, {"name": "x"}, "delete", "double",
    Renamed("x"), Renamed(""), Renamed("a\n\x1b[2J\u202e"), Renamed("\ud800"), Renamed("x" * 5000),
]  # fmt: skip


SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@settings(SETTINGS, max_examples=100)
@given(data=st.data())
def test_a_bent_document_is_read_or_refused(documents, data):
    assert_read_or_refused(documents, data)


def assert_read_or_refused(documents, data):
    document = documents[data.draw(st.integers(0, 2))]
    path = data.draw(st.sampled_from(places(document)))
    document = bent(document, path, data.draw(st.sampled_from(OTHER_VALUES)))
    loaded = set(sys.modules)
    message = ""
    try:
        read(document)
    except DocumentError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 2000
    assert set(sys.modules) == loaded


def node_of(document: Any, part: str) -> Any:
    return next(node for node in document["graph_module"]["graph"]["nodes"] if part in node["target"])


def refused(documents: Any, change: Any, number: int = 0) -> str:
    document = copy.deepcopy(documents[number])
    change(document)
    with pytest.raises(DocumentError) as caught:
        read(document)
    return str(caught.value)


def test_an_error_says_where(documents):
    def change(document):
        node_of(document, "cat")["inputs"][0]["arg"] = {"as_tensors": [{"name": 3}]}

    index = documents[0]["graph_module"]["graph"]["nodes"].index(node_of(documents[0], "cat"))
    message = refused(documents, change)

    place = f"graph_module.graph.nodes[{index}].inputs[0].arg.as_tensors[0].name"
    assert message == f"{place}: expected a string, got int"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("torch.ops.my_library.boom.default", "import the operator library `my_library`"),
        ("torch.ops.aten.no_such.default", "this torch version does not have it"),
        ("torch.ops.higher_order.aoti_call_delegate", "unsupported higher-order operator"),
        ("torch.hub.load", "is not an operator"),
        ("torch.load", "is not an operator"),
        ("torch.classes.load_library", "is not an operator"),
        ("torch.ops.load_library", "is not an operator"),
        ("_operator.methodcaller", "is not an operator"),
        ("math.factorial", "is not an operator"),
        ("#extension:op", "is not an operator"),
        ("builtins.eval", "is not an operator"),
        ("torch.ops.aten.__class__.default", "torch version does not have it"),
    ],
)
def test_only_operators_of_a_program_are_called(documents, target, reason):
    assert reason in refused(documents, lambda document: node_of(document, "cat").update(target=target))


@pytest.mark.parametrize(
    "name", ["a b", "x): import os #", "x\n", "torch", "", "1x", "class", "é", "x" * 2000, "self"]
)
def test_a_name_that_would_be_code_is_refused(documents, name):
    def change(document):
        node_of(document, "cat")["name"] = name
        node_of(document, "cat")["outputs"] = [{"as_tensor": {"name": name}}]
        values = document["graph_module"]["graph"]["tensor_values"]
        values[name] = values["cat"]

    refused(documents, change)


def test_a_keyword_that_would_be_code_is_refused(documents):
    def change(document):
        call = document["graph_module"]["module_call_graph"][0]["signature"]
        call["in_spec"] = call["in_spec"].replace(r"[\"extra\"]", r"[\"extra=__import__(1)\"]")

    assert "not a valid name for a value" in refused(documents, change)


@pytest.mark.parametrize(
    ("kind", "context"),
    [
        ("collections.namedtuple", '"os"'),
        ("collections.defaultdict", '{"default_factory_module": "os", "default_factory_name": "abort"}'),
        ("transformers.cache_utils.DynamicCache", "null"),
        ("builtins.dict", '[{"__enum__": true, "fqn": "this:that", "name": "x"}]'),
        ("builtins.dict", "[1, 1]"),
    ],
)
def test_a_container_that_needs_code_is_refused(documents, kind, context):
    def change(document):
        leaf = {"type": None, "context": None, "children_spec": []}
        text = json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])
        document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = text

    refused(documents, change)


def test_a_condition_that_would_be_code_is_refused(documents):
    message = refused(documents, lambda document: document["guards_code"].append("__import__('os').abort()"))

    assert message.startswith("guards_code[")


def test_a_line_break_in_metadata_that_would_end_a_comment_is_refused(documents):
    def change(document):
        node_of(document, "cat")["metadata"]["stack_trace"] = 'File "x", line 1, in f\n  x\rimport os'

    assert "control character" in refused(documents, change)


@pytest.mark.parametrize("kind", ["as_string_to_argument", "as_tuple"])
def test_a_deep_document_is_refused_in_time(documents, kind):
    def change(document):
        argument: Any = {"as_none": True}
        for _ in range(900):
            argument = {kind: [argument] if kind == "as_tuple" else {"x": argument}}
        node_of(document, "cat")["inputs"][1]["arg"] = argument

    start = time.perf_counter()
    assert "too deep" in refused(documents, change)
    assert time.perf_counter() - start < 5


def test_a_graph_within_itself_without_end_is_refused(documents):
    def change(document):
        graph = document["graph_module"]["graph"]
        inner = graph
        for _ in range(40):
            argument = {"as_graph": {"name": "g", "graph": inner}}
            call = {"target": "torch.ops.higher_order.wrap", "metadata": {}, "outputs": [{"as_none": True}]}
            call |= {"inputs": [{"name": "", "arg": argument, "kind": 1}], "name": "w"}
            empty = {
                "inputs": [],
                "outputs": [],
                "tensor_values": {},
                "sym_int_values": {},
                "sym_bool_values": {},
            }
            inner = {**empty, "nodes": [call]}
        document["graph_module"]["graph"] = inner

    assert "levels deep" in refused(documents, change)


def test_an_operator_in_a_graph_within_a_tuple_is_not_hidden(documents):
    def change(document):
        block_mask = node_of(document, "flex_attention")["inputs"][4]["arg"]["as_tuple"]
        graph = block_mask[-1]["as_graph"]["graph"]
        graph["nodes"][0]["target"] = "torch.ops.aten.from_file.default"

    assert "aten.from_file.default" in refused(documents, change, 2)
    document = copy.deepcopy(documents[2])
    change(document)
    assert list(outline(document).refused_operators) == ["aten.from_file.default"]


@pytest.mark.parametrize("field", ["sizes", "strides", "storage_offset"])
def test_a_symbol_that_no_value_brings_may_stand_in_an_offset_alone(documents, field):
    def change(document):
        values = document["graph_module"]["graph"]["tensor_values"]
        tensor = [value for value in values.values() if value["sizes"]][-1]
        document["range_constraints"]["u77"] = {"min_val": 1, "max_val": None}
        tensor["storage_offset"] = number = shape_number("Add(Symbol('u77', integer=True), Integer(1))")
        if field != "storage_offset":
            tensor[field][0] = number

    if field == "storage_offset":
        changed = copy.deepcopy(documents[2])
        change(changed)
        assert read(changed).graph.nodes
    else:
        assert "no value defines the symbol u77" in refused(documents, change, 2)


def shape_number(text: str) -> Any:
    return {"as_expr": {"expr_str": text, "hint": None}}


def test_another_schema_version_is_named(documents):
    message = refused(documents, lambda document: document["schema_version"].update(major=7))

    assert message.startswith("schema_version: the program has schema version 7.")


@pytest.mark.parametrize("document", [None, [], 3, "x", {}, {"graph_module": {}}])
def test_what_is_no_program_is_refused(document):
    with pytest.raises(DocumentError):
        read(document)


def metadata_of_all(key: str, value: str) -> Any:
    """The change that writes one text into the metadata of every node."""

    def change(document: Any) -> None:
        for node in document["graph_module"]["graph"]["nodes"]:
            node["metadata"][key] = value

    return change


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (
            "custom",
            "[" + "[]," * 300_000 + "[]]",
            "the custom metadata could need more than 67,108,864 bytes",
        ),
        ("source_fn_stack", ";".join(["a,b"] * 240_000), "more than 1,000,000 modules and functions"),
        ("torch_fn", ";".join(["ab"] * 320_000), "more than 1,000,000 modules and functions"),
        ("nn_module_stack", ";".join(["a,b,c"] * 160_000), "more than 1,000,000 modules and functions"),
    ],
)
def test_texts_in_metadata_that_become_many_values_are_refused(documents, key, value, reason):
    tracemalloc.start()
    try:
        assert reason in refused(documents, metadata_of_all(key, value))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 400 << 20


def test_the_custom_metadata_of_a_program_is_bounded_as_well(documents):
    def change(document):
        document["graph_module"]["metadata"]["custom"] = "[" + "[]," * 330_000 + "[]]"
        metadata_of_all("custom", "[" + "[]," * 100_000 + "[]]")(document)

    assert "the custom metadata could need more than" in refused(documents, change)


def test_more_conditions_than_any_program_has_are_refused(documents):
    message = refused(documents, lambda document: document.update(guards_code=["1 >= 0"] * 300_000))

    assert message == "guards_code: a list of 300000 entries; the limit is 20000"
