"""`[tool.fakexport]` of a `pyproject.toml`: what is read, what is refused, and what `check` makes of it."""

import html
import json

import pytest

from fakexport.cli import main, project_file
from fakexport.files import open_regular
from fakexport.models.sources import SourceError
from fakexport.report import render_github, render_report
from fakexport.report.as_json import to_dict
from fakexport.rules.diagnostics import Diagnostic
from tests.unit.cli.checked import install_check
from tests.unit.report.sample_reports import report

TABLE = """
[tool.fakexport]
sources = [
    "models/mlp.py:mlp",
    {source = "hf:llama", target = ["8xH100"], device-map = "balanced", use-cache = false},
]
target = ["cpu", "H100"]
dtype = "bfloat16"
device-map = "maps/two.json"
inputs = ["x=float32[2,3]"]
dynamic = ["auto"]
strict = true
use-cache = true
assume = "a.py:3=False"
"""
OF_THE_TABLE = {
    "target": ["cpu", "H100"],
    "device_map": "maps/two.json",
    "dtype": "bfloat16",
    "inputs": ["x=float32[2,3]"],
    "dynamic_shapes": ["auto"],
    "strict": True,
    "use_cache": True,
    "trust_remote_code": False,
    "workload": "forward",
    "max_cache_len": None,
    "cache_form": "inputs",
    "component": None,
    "adapter": None,
    "adapter_mode": "separate",
    "parallel": None,
    "assume": ["a.py:3=False"],
    "on_progress": None,
}
OF_LLAMA = {**OF_THE_TABLE, "target": ["8xH100"], "device_map": "balanced", "use_cache": False}
ERROR = Diagnostic("FE502", "error", "tensors on different devices")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder with a `pyproject.toml`, which is the working directory."""
    folder = tmp_path / "repository"
    (folder / "models").mkdir(parents=True)
    (folder / "maps").mkdir()
    (folder / "maps" / "two.json").write_text("{}")
    (folder / "models" / "mlp.py").write_text("")
    (folder / "pyproject.toml").write_text(TABLE)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def asked(monkeypatch):
    """What `check` was called with, call by call."""
    calls = []

    def check(source, **options):
        calls.append((source, options))
        return report(source=source)

    install_check(monkeypatch, check)
    return calls


@pytest.mark.parametrize("below", [".", "models"])
def test_without_a_source_every_listed_one_is_checked_with_its_options(
    below, repository, asked, monkeypatch, capsys
):
    monkeypatch.chdir(repository / below)

    code = main(["check", "--no-progress"])

    assert code == 0
    assert asked == [("models/mlp.py:mlp", OF_THE_TABLE), ("hf:llama", OF_LLAMA)]
    texts = [render_report(report(source=source)) for source in ("models/mlp.py:mlp", "hf:llama")]
    assert capsys.readouterr() == ("\n".join([*texts, "2 sources: 2 clean\n"]), "")


def test_the_command_line_comes_first(repository, asked):
    options = "--target T4 --dtype float16 --dynamic x.0=2..4 --no-strict --device-map cpu --no-use-cache"

    main(["check", "--no-progress", *options.split(), "--input", "x=float32[1,1]"])

    given = {
        **OF_THE_TABLE,
        "target": ["T4"],
        "device_map": "cpu",
        "dtype": "float16",
        "inputs": ["x=float32[1,1]"],
        "dynamic_shapes": ["x.0=2..4"],
        "strict": False,
        "use_cache": False,
        "trust_remote_code": False,
    }
    assert [options for _, options in asked] == [given, given]


@pytest.mark.parametrize("source", [(), ("other.py:f",)])
def test_the_file_is_read_once_in_a_command(source, repository, asked, monkeypatch):
    read = []
    monkeypatch.setattr(project_file, "open_regular", lambda path: read.append(path) or open_regular(path))

    main(["check", "--no-progress", *source])
    assert read == [repository / "pyproject.toml"]

    main(["check", "--no-progress", *source])
    assert len(read) == 2
    assert asked


@pytest.mark.parametrize(
    ("below", "source", "options"),
    [
        (".", "other.py:f", OF_THE_TABLE),
        (".", "hf:llama", OF_LLAMA),
        ("models", "hf:llama", OF_LLAMA),
        ("models", "mlp.py:mlp", {**OF_THE_TABLE, "device_map": "../maps/two.json"}),
        ("models", "models/mlp.py:mlp", {**OF_THE_TABLE, "device_map": "../maps/two.json"}),
    ],
)
def test_a_given_source_takes_the_options_of_the_table(
    below, source, options, repository, asked, monkeypatch
):
    monkeypatch.chdir(repository / below)

    main(["check", source, "--no-progress"])

    assert asked == [(source, options)]


def test_a_given_source_is_the_listed_one_of_the_same_file_and_no_namesake(repository, asked, monkeypatch):
    own = '[tool.fakexport]\nsources = [{source = "mlp.py:mlp", target = ["T4"]}]\n'
    (repository / "pyproject.toml").write_text(own)
    (repository / "mlp.py").write_text("")
    monkeypatch.chdir(repository / "models")

    main(["check", "../mlp.py:mlp", "--no-progress"])
    main(["check", "mlp.py:mlp", "--no-progress"])

    assert [options["target"] for _, options in asked] == [["T4"], ["cpu"]]


def test_a_table_above_one_without_is_found(repository, asked, monkeypatch):
    (repository / "models" / "pyproject.toml").write_text("[tool.other]\nfakexport = 1\n")
    monkeypatch.chdir(repository / "models")

    main(["check", "--no-progress"])

    assert [source for source, _ in asked] == ["models/mlp.py:mlp", "hf:llama"]


def test_a_pyproject_without_the_table_changes_nothing(repository, asked):
    (repository / "pyproject.toml").write_text("[tool.other\n")

    main(["check", "m:f", "--no-progress"])

    ((_, options),) = asked
    assert (options["target"], options["strict"]) == (["cpu"], False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("fakexport = ", "not TOML: Invalid value"),
        ("[tool]\nfakexport = 3", "tool.fakexport: expected an object, got int"),
        ("[tool.fakexport]\ntargt = ['cpu']", "tool.fakexport.targt: unknown key: did you mean 'target'?"),
        (
            "[tool.fakexport]\ninput = 'x=int64[1]'",
            "tool.fakexport.input: unknown key: did you mean 'inputs'?",
        ),
        (
            "[tool.fakexport]\nlibrary = 'a.py'",
            "tool.fakexport.library: unknown key: did you mean 'libraries'?",
        ),
        ("[tool.fakexport]\nxyz = 1", "tool.fakexport.xyz: unknown key: expected one of "),
        ("[tool.fakexport]\ntarget = 3", "tool.fakexport.target: expected a string or a list, got int"),
        ("[tool.fakexport]\ntarget = ['cpu', 3]", "tool.fakexport.target[1]: expected a string, got int"),
        ("[tool.fakexport]\nstrict = 'yes'", "tool.fakexport.strict: expected true or false, got str"),
        (
            "[tool.fakexport]\nsources = [3]",
            "tool.fakexport.sources[0]: expected a string or a table, got int",
        ),
        ("[tool.fakexport]\nsources = [{}]", "tool.fakexport.sources[0].source: this field is missing"),
        (
            "[tool.fakexport]\nsources = [{source = 'm:f', device_map = 'cpu'}]",
            "tool.fakexport.sources[0].device_map: unknown key: did you mean 'device-map'?",
        ),
    ],
)
@pytest.mark.parametrize("source", [[], ["m:f"]])
def test_a_bad_table_is_one_line_that_names_file_and_key(content, said, source, repository, asked, capsys):
    (repository / "pyproject.toml").write_text(content)

    code = main(["check", *source, "--no-progress"])

    out, err = capsys.readouterr()
    assert (code, out, asked) == (2, "", [])
    assert err.startswith(f"error: {repository / 'pyproject.toml'}: {said}")
    assert err.count("\n") == 1


def test_a_table_without_sources_needs_one_on_the_command_line(repository, asked, capsys):
    (repository / "pyproject.toml").write_text("[tool.fakexport]\ntarget = ['H100']\n")

    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith("error: no SOURCE given")
    assert main(["check", "m:f", "--no-progress"]) == 0


def one_of_each(source, **_):
    if source == "refused":
        raise SourceError("no such file")
    if source == "leaves":
        raise SystemExit(3)
    return report(source=source, diagnostics=(ERROR,) if source == "found" else ())


def listed(repository, *sources):
    (repository / "pyproject.toml").write_text(f"[tool.fakexport]\nsources = {list(sources)}\n")


@pytest.mark.parametrize(
    ("sources", "code", "summary"),
    [
        (["clean"], 0, "1 source: 1 clean"),
        (["found", "clean"], 1, "2 sources: 1 clean, 1 with findings"),
        (["refused", "found", "clean"], 2, "3 sources: 1 clean, 1 with findings, 1 not checked"),
        (["clean", "leaves"], 2, "2 sources: 1 clean, 1 not checked"),
    ],
)
def test_the_exit_code_is_the_worst_and_every_other_source_has_its_report(
    sources, code, summary, repository, monkeypatch, capsys
):
    install_check(monkeypatch, one_of_each)
    listed(repository, *sources)

    assert main(["check", "--no-progress"]) == code

    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == summary
    assert all(f"{source}\n" in out for source in sources if source in ("clean", "found"))
    assert err.count("\n") == len({"refused", "leaves"} & {*sources})


def test_the_json_is_one_document_with_the_reports_as_they_are_alone(repository, monkeypatch, capsys):
    install_check(monkeypatch, one_of_each)
    listed(repository, "found", "refused", "clean")

    code = main(["check", "--no-progress", "--format", "json"])

    out, err = capsys.readouterr()
    found = json.loads(out)
    assert code == 2
    assert err == "error: refused: no such file\n"
    assert (found["schema"], found["is_clean"]) == ("fakexport.check-project/1", False)
    assert found["reports"] == [to_dict(one_of_each("found")), to_dict(one_of_each("clean"))]
    assert found["refused"] == {"refused": "no such file"}


def test_annotations_come_one_after_another(repository, monkeypatch, capsys):
    install_check(monkeypatch, one_of_each)
    listed(repository, "found", "clean")

    main(["check", "--no-progress", "--format", "github"])

    said = render_github(one_of_each("found")) + render_github(one_of_each("clean"))
    assert capsys.readouterr().out == f"{said}2 sources: 1 clean, 1 with findings\n"


def test_a_fault_of_our_own_ends_the_command(repository, monkeypatch, capsys):
    def check(*_, **__):
        raise RuntimeError("oops")

    install_check(monkeypatch, check)

    assert main(["check", "--no-progress"]) == 2
    assert "FE001" in capsys.readouterr().err


def test_a_library_is_loaded_in_the_process_of_each_source(repository, asked):
    (repository / "ops.py").write_text("from pathlib import Path\nPath('runs').open('a').write('x')\n")
    listed(repository, "clean", "found")
    with (repository / "pyproject.toml").open("a") as file:
        file.write("libraries = ['ops.py']\n")

    main(["check", "--no-progress"])

    assert (repository / "runs").read_text() == "xx"


def test_files_of_one_name_in_two_folders_are_two_models(tmp_path, monkeypatch, capsys):
    for folder, width in (("a", 3), ("b", 7)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "layers.py").write_text(f"WIDTH = {width}\n")
        (tmp_path / folder / "model.py").write_text(
            "import torch\nfrom layers import WIDTH\n"
            "def factory():\n    return torch.nn.Linear(WIDTH, 1), (torch.zeros(1, WIDTH),)\n"
        )
    sources = '["a/model.py:factory", "b/model.py:factory"]'
    (tmp_path / "pyproject.toml").write_text(f"[tool.fakexport]\nsources = {sources}\n")
    monkeypatch.chdir(tmp_path)

    assert main(["check", "--format", "json"]) == 0

    reports = json.loads(capsys.readouterr().out)["reports"]
    assert [found["targets"][0]["summary"]["parameters"]["elements"] for found in reports] == [4, 8]


@pytest.mark.parametrize("wanted", ["json", "sarif", "markdown"])
def test_the_reports_of_all_sources_are_one_document(wanted, repository, asked, capsys, monkeypatch):
    monkeypatch.chdir(repository / "models")

    code = main(["check", "--no-progress", "--format", wanted, "--write", f"{wanted}=all"])

    out, _ = capsys.readouterr()
    assert code == 0
    assert (repository / "models" / "all").read_text() == out
    assert "models/mlp.py:mlp" in html.unescape(out)
    assert "hf:llama" in html.unescape(out)
    if wanted != "markdown":
        json.loads(out)


def exported(monkeypatch, *arguments):
    """What `export` asks of the check that it is."""
    asked = {}

    def check(source, **options):
        asked.update(options)
        return report()

    install_check(monkeypatch, check)
    main(["export", *arguments, "-o", "out.pt2", "--no-progress"])
    return asked


def test_an_export_has_the_options_that_its_source_is_checked_with(repository, monkeypatch):
    asked = exported(monkeypatch, "hf:llama")

    assert asked == OF_LLAMA


def test_an_export_for_one_of_several_targets_must_say_which(repository, monkeypatch, capsys):
    options = ["models/mlp.py:mlp", "--dtype", "float16"]

    assert exported(monkeypatch, *options) == {}
    line = "error: [tool.fakexport] lists 2 targets, but export takes one: choose it with --target\n"
    assert capsys.readouterr().err == line

    asked = exported(monkeypatch, *options, "--target", "H100")
    assert asked == {**OF_THE_TABLE, "dtype": "float16", "target": ["H100"]}


def test_the_target_of_an_export_comes_first(repository, monkeypatch):
    assert exported(monkeypatch, "hf:llama", "--target", "H200")["target"] == ["H200"]


@pytest.fixture
def linear(repository):
    """A small model for which the file has options."""
    (repository / "models" / "mlp.py").write_text(
        "import torch\ndef mlp():\n    return torch.nn.Linear(4, 2), (torch.zeros(1, 4),)\n"
    )
    (repository / "pyproject.toml").write_text("[tool.fakexport]\ntarget = 'H100'\ndtype = 'bfloat16'\n")
    return "models/mlp.py:mlp"


@pytest.mark.parametrize(
    ("more", "options"), [("", ()), ("assume = 'a.py:3=False'\n", ("--workload", "train"))]
)
def test_a_plan_has_the_options_that_its_source_is_checked_with(more, options, linear, repository, capsys):
    with (repository / "pyproject.toml").open("a") as file:
        file.write(more)

    assert main(["plan", linear, "--format", "json", "--no-progress", *options]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["dtype"]) == ("H100-80GB", "bfloat16")


def test_an_inspection_has_the_options_that_its_source_is_checked_with(linear, capsys):
    assert main(["inspect", linear]) == 0

    out = capsys.readouterr().out
    assert "cuda:0" in out
    assert "20 B" in out


@pytest.mark.parametrize("command", ["plan", "inspect"])
def test_a_command_for_one_of_several_targets_must_say_which(command, repository, capsys):
    assert main([command, "models/mlp.py:mlp"]) == 2

    line = f"error: [tool.fakexport] lists 2 targets, but {command} takes one: choose it with --target\n"
    assert capsys.readouterr().err == line
