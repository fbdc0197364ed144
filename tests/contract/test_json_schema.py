"""The documents: docs/json.md and the JSON Schema are those of the classes, and what is written is valid."""

import json
from importlib import resources

import jsonschema
import pytest
import torch

from fakexport.archive import describe, diff_archives, save, save_bundle
from fakexport.archive.weights import WeightFinding, WeightsReport
from fakexport.checking.sweep import collect_results, results_text
from fakexport.report import Comparison, OutputComparison, Place, ProjectReport, TensorError, to_dict
from fakexport.report.as_json import SCHEMAS
from tests.known_facts import with_facts
from tests.unit.archive.bundles import PREFIXES, fakes
from tests.unit.archive.test_save_and_load import exported, factory
from tests.unit.checking.sweep.test_results import run
from tests.unit.report.sample_bench import sample_bench
from tests.unit.report.sample_plan import sample_plan
from tests.unit.report.sample_reports import full_report, report, verdict
from tools.json_documents import DOCUMENTS, PAGE, page, schema_text

WRITTEN = (resources.files("fakexport.report") / "documents.schema.json").read_text()
SCHEMA = json.loads(WRITTEN)


def validate(data: dict, name: str) -> None:
    """Validate a document, and the order of its keys, against the object of this name."""
    one = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    jsonschema.Draft202012Validator(one).validate(data)
    assert data["schema"] == SCHEMAS[name]
    assert list(data) == SCHEMA["$defs"][name]["required"]


def test_the_docs_and_the_schema_are_up_to_date():
    text = PAGE.read_text(encoding="utf-8")

    assert page(text) == text, "regenerate it: make rules"
    assert schema_text() == WRITTEN, "regenerate it: make rules"


def test_every_document_is_described():
    assert sorted(SCHEMAS) == sorted(kind.__name__ for kind in DOCUMENTS)


def test_the_schema_is_one_of_every_document_and_of_nothing_else():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    data = to_dict(report())

    jsonschema.Draft202012Validator(SCHEMA).validate(data)

    data["targets"][0]["is_exportable"] = "yes"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(data)


@pytest.mark.parametrize("sample", [full_report(), report(), report(verdict(summary=None))])
def test_a_report_is_valid(sample):
    validate(to_dict(sample), "Report")


def test_the_reports_of_a_project_are_valid():
    data = to_dict(ProjectReport((full_report(), report()), {"absent.py:f": "no such file"}))

    validate(data, "ProjectReport")
    assert data["reports"] == [to_dict(full_report()), to_dict(report())]


def test_the_results_of_a_sweep_are_valid():
    runs = [("old", run(a="fails", b="exports")), ("new", run(b="refused"))]

    validate(json.loads(results_text(collect_results(runs))), "SweepReport")


def test_a_weights_report_is_valid():
    findings = (
        WeightFinding("FE702", ("a", "b"), "float32[2]", "float32[3]"),
        WeightFinding("FE704", ("c",)),
    )

    validate(to_dict(WeightsReport("model.py:factory", "checkpoint", 2, 3, 36, 0, findings)), "WeightsReport")


@pytest.mark.parametrize(("sample", "name"), [(sample_plan(), "PlanReport"), (sample_bench(), "BenchReport")])
def test_a_plan_and_a_benchmark_are_valid(sample, name):
    validate(to_dict(sample), name)


def test_a_comparison_with_eager_mode_is_valid():
    error = TensorError(False, float("inf"), 0.5, None, 1e-3)
    place = Place("add", "aten.add.Tensor", "aten.add.Tensor", "", "", None, error)

    data = to_dict(Comparison(3, 0, (), (OutputComparison("out", error),), None, place))

    validate(data, "Comparison")
    assert data["first_divergence"]["error"]["difference"] == "inf"


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A weight-less archive for a device, one of torch, a bound one, and a bundle."""
    folder = tmp_path_factory.mktemp("archives")
    save(with_facts(exported("H100"), topology="H100", skipped_checks=["something"]), folder / "device.pt2")
    program = torch.export.export(factory(), (torch.arange(5),))
    program.example_inputs = None
    torch.export.save(program, folder / "stock.pt2")
    save(program, folder / "bound.pt2")
    save_bundle(fakes(), folder / "bundle.pt2", prefixes=PREFIXES)
    return folder


@pytest.mark.parametrize("name", ["device.pt2", "stock.pt2", "bound.pt2", "bundle.pt2"])
def test_a_description_is_valid(name, archives):
    validate(to_dict(describe(archives / name)), "ArchiveDescription")


def test_a_comparison_of_archives_is_valid(archives):
    data = to_dict(diff_archives(archives / "device.pt2", archives / "stock.pt2"))

    validate(data, "ArchiveDifference")
    assert data["weights"]
    assert data["facts"]
