"""The JSON report: what is written, what the JSON Schema says, and what docs/json.md says are one."""

import json
import re
from importlib import resources

import jsonschema
import pytest

from fakexport.report import SCHEMA, WEIGHTS_SCHEMA, to_dict, weights_to_dict
from fakexport.weights import WeightFinding, WeightsReport
from tests.contract.source_tree import ROOT
from tests.unit.report.sample_reports import full_report, report, verdict

CHECK_SCHEMA = json.loads((resources.files("fakexport.report") / "check.schema.json").read_text())
WEIGHTS = json.loads((resources.files("fakexport.report") / "weights.schema.json").read_text())
OBJECTS = {
    "report": CHECK_SCHEMA,
    **CHECK_SCHEMA["$defs"],
    "weights_report": WEIGHTS,
    **WEIGHTS["$defs"],
}
_SECTION = re.compile(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| .+ \|$", re.MULTILINE)


def documented() -> dict[str, list[tuple[str, str]]]:
    """Object name -> its fields in docs/json.md, each with the text of its type."""
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    return {name: _ROW.findall(body) for name, body in _SECTION.findall(text)}


def fields_of(schema: dict) -> list[tuple[str, str]]:
    return [(name, type_text(field)) for name, field in schema["properties"].items()]


def type_text(schema: dict) -> str:
    """A type as docs/json.md writes it: `list of string or null`."""
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    if "enum" in schema:
        values = ["null" if value is None else f'`"{value}"`' for value in schema["enum"]]
        return f"{', '.join(values[:-1])} or {values[-1]}"
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(map(type_text, schema["anyOf"]))
    match schema["type"]:
        case [kind, "null"]:
            return f"{type_text({**schema, 'type': kind})} or null"
        case "array":
            return f"list of {type_text(schema['items'])}"
        case "object":
            return f"object of {type_text(schema['additionalProperties'])}"
        case kind:
            return kind


def test_the_documents_speak_of_the_same_objects():
    assert documented().keys() == OBJECTS.keys()


@pytest.mark.parametrize("name", OBJECTS)
def test_the_docs_have_the_fields_of_the_schema_in_their_order(name):
    assert documented()[name] == fields_of(OBJECTS[name])


@pytest.mark.parametrize("name", OBJECTS)
def test_every_field_of_the_schema_is_required_and_no_other_allowed(name):
    schema = OBJECTS[name]

    assert schema["required"] == list(schema["properties"])
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("sample", [full_report(), report(), report(verdict(summary=None))])
def test_a_report_is_valid(sample):
    jsonschema.Draft202012Validator(CHECK_SCHEMA).validate(to_dict(sample))


def test_a_report_has_its_keys_in_the_order_of_the_docs():
    data = to_dict(full_report())

    assert list(data) == [name for name, _ in documented()["report"]]
    assert list(data["targets"][0]) == [name for name, _ in documented()["target"]]
    assert list(data["differences"][0]) == [name for name, _ in documented()["difference"]]


def test_a_weights_report_is_valid_and_in_the_order_of_the_docs():
    findings = (
        WeightFinding("FE702", ("a", "b"), "float32[2]", "float32[3]"),
        WeightFinding("FE704", ("c",)),
    )
    data = weights_to_dict(WeightsReport("model.py:factory", "checkpoint", 2, 3, 36, 0, findings))

    jsonschema.Draft202012Validator(WEIGHTS).validate(data)

    assert list(data) == [name for name, _ in documented()["weights_report"]]
    assert list(data["findings"][0]) == [name for name, _ in documented()["weight_finding"]]
    assert WEIGHTS["properties"]["schema"] == {"const": WEIGHTS_SCHEMA}


def test_the_version_in_the_schema_is_the_one_that_is_written():
    assert CHECK_SCHEMA["properties"]["schema"] == {"const": SCHEMA}
