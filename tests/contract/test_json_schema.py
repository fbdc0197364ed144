"""The documents: docs/json.md and the JSON Schema are those of the classes, and what is written is valid."""

import json
import tomllib
from contextlib import nullcontext
from importlib import resources

import jsonschema
import pytest
import torch
import typer

from fakexport.archive import describe, diff_archives, save, save_bundle
from fakexport.archive.manifest_json import MANIFEST as MANIFEST_RECORD
from fakexport.archive.manifest_json import encode_manifest
from fakexport.archive.weights import WeightFinding, WeightsReport
from fakexport.checking.sweep import collect_results, results_text
from fakexport.cli.app import app
from fakexport.cli.project_file import ProjectFileError, project_file_of
from fakexport.files.container import read_container
from fakexport.files.documents import (
    AdapterRecord,
    CallRecord,
    ParallelRecord,
    Parameter,
    Recipe,
    StageRecord,
    StateTensor,
    Step,
)
from fakexport.report import Comparison, OutputComparison, Place, ProjectReport, TensorError, to_dict
from fakexport.report.as_json import SCHEMAS
from tests.known_facts import with_facts
from tests.unit.archive.bundles import PREFIXES, fakes
from tests.unit.archive.described import manifest
from tests.unit.archive.test_save_and_load import exported, factory
from tests.unit.checking.sweep.test_results import run
from tests.unit.report.sample_bench import sample_bench
from tests.unit.report.sample_plan import sample_plan
from tests.unit.report.sample_reports import full_report, report, verdict
from tools.json_documents import DOCUMENTS, FORMAT_PAGE, PAGE, format_page, page, schemas

FOLDER = resources.files("fakexport.report")
SCHEMA, MANIFEST, PROJECT = (
    json.loads((FOLDER / f"{name}.schema.json").read_text()) for name in ("documents", "manifest", "project")
)


def validate(data: dict, name: str) -> None:
    """Validate a document, and the order of its keys, against the object of this name."""
    one = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    jsonschema.Draft202012Validator(one).validate(data)
    assert data["schema"] == SCHEMAS[name]
    assert list(data) == SCHEMA["$defs"][name]["required"]


def test_the_docs_and_the_schemas_are_up_to_date():
    text, about_format = (path.read_text(encoding="utf-8") for path in (PAGE, FORMAT_PAGE))

    assert page(text) == text, "regenerate it: make rules"
    assert format_page(about_format) == about_format, "regenerate it: make rules"
    for path, schema in schemas().items():
        assert path.read_text(encoding="utf-8") == schema, f"regenerate {path.name}: make rules"


@pytest.mark.parametrize("schema", [SCHEMA, MANIFEST, PROJECT], ids=lambda schema: schema["title"])
def test_a_schema_is_valid_and_named_like_its_file(schema):
    jsonschema.Draft202012Validator.check_schema(schema)

    name = schema["$id"].removeprefix("urn:fakexport:schema:")
    assert json.loads((FOLDER / f"{name}.schema.json").read_text()) == schema


@pytest.mark.parametrize(
    ("table", "is_valid"),
    [
        ('sources = ["model.py:factory"]\ntarget = "H100"', True),
        ('sources = [{source = "hf:llama", target = ["8xH100"], use-cache = true}]', True),
        ('profiles = "devices.toml"\ndynamic = ["auto"]\nassume = "a.py:3=False"', True),
        ("", True),
        ('sources = ["--help"]', False),
        ('sources = "model.py:factory"', False),
        ("strict = 1", False),
        ('taget = "H100"', False),
        ("use_cache = true", False),
        ('sources = [{target = "H100"}]', False),
        ('sources = [{source = "hf:llama", profiles = "devices.toml"}]', False),
    ],
)
def test_the_schema_of_a_project_accepts_what_fakexport_accepts(table, is_valid, tmp_path, monkeypatch):
    text = f"[project]\nname = 'mine'\n[tool.fakexport]\n{table}\n"
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.chdir(tmp_path)

    with nullcontext() if is_valid else pytest.raises(ProjectFileError):
        project_file_of(typer.Context(typer.main.get_command(app)))

    assert jsonschema.Draft202012Validator(PROJECT).is_valid(tomllib.loads(text)) == is_valid


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


@pytest.mark.parametrize("name", ["device.pt2", "bound.pt2", "bundle.pt2"])
def test_a_manifest_is_valid(name, archives):
    with read_container(archives / name) as container:
        data = json.loads(container.record(MANIFEST_RECORD))

    jsonschema.Draft202012Validator(MANIFEST).validate(data)

    data["methods"]["model" if name != "bundle.pt2" else "encode"]["tensors"][0]["colour"] = "red"
    assert not jsonschema.Draft202012Validator(MANIFEST).is_valid(data)


def test_the_schema_of_a_manifest_accepts_each_of_its_fields():
    state = (StateTensor("k", "k", "k"),)
    full = manifest(
        adapter=AdapterRecord("separate"),
        call=CallRecord(workload="decode", tokens="a", logits="b", prompt=None, state=state),
        computed={"lm_head.weight": None},
        parallel=ParallelRecord("tp=2", 0, 2),
        parameters=(Parameter("x", "any", (1.5,)),),
        prefix=("a", ""),
        recipes=(Recipe(("a",), (Step("transpose", (0,), (0, 1)),), (("lm_head.weight", 1),)),),
        stage=StageRecord(0, 2, "", ("out",)),
    )

    jsonschema.Draft202012Validator(MANIFEST).validate(json.loads(encode_manifest(full)))
