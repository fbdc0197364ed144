"""The JSON report: what is written, what the JSON Schema says, and what docs/json.md says are one."""

import json
import re
from importlib import resources

import jsonschema
import pytest
import referencing
import torch

from fakexport.archive import describe, diff_archives, save, save_bundle
from fakexport.report import ProjectReport
from fakexport.report.archive_json import INSPECT_SCHEMA, archive_to_dict
from fakexport.report.as_json import (
    BENCH_SCHEMA,
    DIFF_SCHEMA,
    PLAN_SCHEMA,
    PROJECT_SCHEMA,
    SCHEMA,
    WEIGHTS_SCHEMA,
    archive_difference_to_dict,
    bench_to_dict,
    plan_to_dict,
    project_to_dict,
    to_dict,
    weights_to_dict,
)
from fakexport.sweep import collect_results, results_text
from fakexport.sweep.results import RESULTS_SCHEMA
from fakexport.weights import WeightFinding, WeightsReport
from tests.contract.source_tree import ROOT
from tests.known_facts import with_facts
from tests.unit.archive.bundles import PREFIXES, fakes
from tests.unit.archive.test_save_and_load import exported, factory
from tests.unit.report.sample_bench import sample_bench
from tests.unit.report.sample_plan import sample_plan
from tests.unit.report.sample_reports import full_report, report, verdict
from tests.unit.sweep.test_results import run

CHECK_SCHEMA = json.loads((resources.files("fakexport.report") / "check.schema.json").read_text())
WEIGHTS = json.loads((resources.files("fakexport.report") / "weights.schema.json").read_text())
INSPECT = json.loads((resources.files("fakexport.report") / "inspect.schema.json").read_text())
DIFF = json.loads((resources.files("fakexport.report") / "diff.schema.json").read_text())
PROJECT = json.loads((resources.files("fakexport.report") / "project.schema.json").read_text())
PLAN = json.loads((resources.files("fakexport.report") / "plan.schema.json").read_text())
BENCH = json.loads((resources.files("fakexport.report") / "bench.schema.json").read_text())
SWEEP = json.loads((resources.files("fakexport.sweep") / "sweep.schema.json").read_text())
OBJECTS = {
    "report": CHECK_SCHEMA,
    **CHECK_SCHEMA["$defs"],
    "weights_report": WEIGHTS,
    **WEIGHTS["$defs"],
    "archive": INSPECT,
    **INSPECT["$defs"],
    "archive_difference": DIFF,
    **DIFF["$defs"],
    "bench_report": BENCH,
    **BENCH["$defs"],
    "plan_report": PLAN,
    **PLAN["$defs"],
    "project_report": PROJECT,
    **PROJECT["$defs"],
    "sweep_report": SWEEP,
    **SWEEP["$defs"],
}
_SECTION = re.compile(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| .+ \|$", re.MULTILINE)


def validate(schema: dict, data: object) -> None:
    """Validate as a program does that has the files of the package next to each other."""
    registry = referencing.Registry().with_resource(
        "check.schema.json", referencing.Resource.from_contents(CHECK_SCHEMA)
    )
    jsonschema.Draft202012Validator(schema, registry=registry).validate(data)


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
    validate(CHECK_SCHEMA, to_dict(sample))


def test_a_report_has_its_keys_in_the_order_of_the_docs():
    data = to_dict(full_report())

    assert list(data) == [name for name, _ in documented()["report"]]
    assert list(data["targets"][0]) == [name for name, _ in documented()["target"]]
    assert list(data["differences"][0]) == [name for name, _ in documented()["difference"]]


def test_the_reports_of_a_project_are_valid_and_in_the_order_of_the_docs():
    data = project_to_dict(ProjectReport((full_report(), report()), {"absent.py:f": "no such file"}))

    validate(PROJECT, data)

    assert list(data) == [name for name, _ in documented()["project_report"]]
    assert list(data["refused"][0]) == [name for name, _ in documented()["refused_source"]]
    assert data["reports"] == [to_dict(full_report()), to_dict(report())]
    assert PROJECT["properties"]["schema"] == {"const": PROJECT_SCHEMA}


def test_the_results_of_a_sweep_are_valid_and_in_the_order_of_the_docs():
    runs = [("old", run(a="fails", b="exports")), ("new", run(b="refused"))]

    data = json.loads(results_text(collect_results(runs)))

    validate(SWEEP, data)
    assert data["schema"] == RESULTS_SCHEMA
    parts = [
        data,
        data["runs"][0],
        data["environments"][0],
        data["checks"][0],
        data["checks"][0]["results"][0],
    ]
    names = ["sweep_report", "sweep_run", "sweep_environment", "sweep_check", "sweep_result"]
    assert [list(part) for part in parts] == [[name for name, _ in documented()[each]] for each in names]


def test_a_weights_report_is_valid_and_in_the_order_of_the_docs():
    findings = (
        WeightFinding("FE702", ("a", "b"), "float32[2]", "float32[3]"),
        WeightFinding("FE704", ("c",)),
    )
    data = weights_to_dict(WeightsReport("model.py:factory", "checkpoint", 2, 3, 36, 0, findings))

    validate(WEIGHTS, data)

    assert list(data) == [name for name, _ in documented()["weights_report"]]
    assert list(data["findings"][0]) == [name for name, _ in documented()["weight_finding"]]
    assert WEIGHTS["properties"]["schema"] == {"const": WEIGHTS_SCHEMA}


def test_a_plan_is_valid_and_in_the_order_of_the_docs():
    data = plan_to_dict(sample_plan())

    validate(PLAN, data)

    assert list(data) == [name for name, _ in documented()["plan_report"]]
    point = data["points"][0]
    assert list(point) == [name for name, _ in documented()["planned_point"]]
    assert list(point["devices"][0]) == [name for name, _ in documented()["planned_device"]]
    assert PLAN["properties"]["schema"] == {"const": PLAN_SCHEMA}


def test_the_version_in_the_schema_is_the_one_that_is_written():
    assert CHECK_SCHEMA["properties"]["schema"] == {"const": SCHEMA}
    assert INSPECT["properties"]["schema"] == {"const": INSPECT_SCHEMA}
    assert DIFF["properties"]["schema"] == {"const": DIFF_SCHEMA}
    assert BENCH["properties"]["schema"] == {"const": BENCH_SCHEMA}


def test_what_several_formats_have_is_defined_in_one():
    schemas = (CHECK_SCHEMA, WEIGHTS, INSPECT, DIFF, PROJECT, PLAN, BENCH)

    names = [name for schema in schemas for name in schema.get("$defs", ())]

    assert sorted(set(names)) == sorted(names)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A weight-less archive for a device, one of torch, and a bound one."""
    folder = tmp_path_factory.mktemp("archives")
    save(with_facts(exported("H100"), topology="H100", skipped_checks=["something"]), folder / "device.pt2")
    program = torch.export.export(factory(), (torch.arange(5),))
    program.example_inputs = None
    torch.export.save(program, folder / "stock.pt2")
    save(program, folder / "bound.pt2")
    return folder


@pytest.mark.parametrize("name", ["device.pt2", "stock.pt2", "bound.pt2"])
def test_a_description_is_valid_and_in_the_order_of_the_docs(name, archives):
    data = archive_to_dict(describe(archives / name))

    validate(INSPECT, data)

    (about,) = data["methods"]
    parts = {"archive": data, "method": about, "outline": about["program"]}
    parts |= {"archive_weights": about["weights"], "archive_weight": about["weights"]["tensors"][0]}
    parts |= {"archive_constant": about["constants"][0]}
    for part, found in {**parts, "archive_record": data["records"][0]}.items():
        assert list(found) == [field for field, _ in documented()[part]]


def test_a_comparison_is_valid_and_in_the_order_of_the_docs(archives):
    data = archive_difference_to_dict(diff_archives(archives / "device.pt2", archives / "stock.pt2"))

    validate(DIFF, data)

    parts = {"archive_difference": data, "difference": data["program"]}
    parts |= {"weight_difference": data["weights"][0], "fact_difference": data["facts"][0]}
    for part, found in parts.items():
        assert list(found) == [field for field, _ in documented()[part]]


def test_a_description_of_a_bundle_is_valid_and_in_the_order_of_the_docs(tmp_path):
    save_bundle(fakes(), tmp_path / "bundle.pt2", prefixes=PREFIXES)
    data = archive_to_dict(describe(tmp_path / "bundle.pt2"))

    validate(INSPECT, data)

    parts = {"archive": data, "method": data["methods"][0], "method_weight": data["shared"][0][0]}
    parts |= {"prefix": data["methods"][0]["weights"]["prefix"]}
    for part, found in parts.items():
        assert list(found) == [field for field, _ in documented()[part]]


def test_a_benchmark_is_valid_and_in_the_order_of_the_docs():
    data = bench_to_dict(sample_bench())

    validate(BENCH, data)

    parts = {"bench_report": data, "bench_mode": data["modes"][0], "bench_measured": data["measured"]}
    parts |= {"bench_failure": data["modes"][1]["failures"][0]}
    parts |= {"bench_figures": (figures := data["measured"]["modes"][0]), "spread": figures["ratio"]}
    for part, found in parts.items():
        assert list(found) == [field for field, _ in documented()[part]]
