"""`fakexport check` from its arguments to its streams; the check itself is stood in for."""

import json
import logging
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakexport.cli import main, progress_display
from fakexport.report import (
    BlockCount,
    Progress,
    ProjectReport,
    json_text,
    render_github,
    render_markdown,
    render_report,
    render_sarif,
    to_dict,
)
from fakexport.rules.diagnostics import Diagnostic
from tests.unit.cli.checked import install_check
from tests.unit.report.sample_reports import full_report, report

WARNING = Diagnostic("FE503", "warning", "the weights need more memory")
ERROR = Diagnostic("FE502", "error", "tensors on different devices")


@pytest.fixture
def asked(monkeypatch):
    """What `check` was called with."""
    calls = {}

    def check(source, **options):
        calls.update(options, source=source)
        return report()

    install_check(monkeypatch, check)
    return calls


def test_the_defaults(asked):
    code = main(["check", "model.py:factory", "--no-progress"])

    assert code == 0
    assert asked == {
        "source": "model.py:factory",
        "target": ["cpu"],
        "device_map": None,
        "dtype": None,
        "inputs": [],
        "dynamic_shapes": None,
        "strict": False,
        "use_cache": False,
        "trust_remote_code": False,
        "workload": "forward",
        "max_cache_len": None,
        "cache_form": "inputs",
        "component": None,
        "adapter": None,
        "adapter_mode": "separate",
        "parallel": None,
        "assume": (),
        "on_progress": None,
    }


def test_every_option_reaches_the_check(asked):
    options = (
        "--target cpu --target 8xH100 --device-map balanced --dtype bfloat16",
        "--workload decode --max-cache-len 64 --cache-form buffers --component vision",
        "--assume a.py:3=True --assume b.py:4=False",
        "--adapter fr=lora --adapter-mode inputs",
        "--input x=float32[2,3] --input y=int64[2] --dynamic x.0=1..64 --dynamic auto",
        "--strict --use-cache --trust-remote-code --no-progress --debug",
    )

    code = main(["check", "m:f", *" ".join(options).split(" ")])

    assert code == 0
    assert asked == {
        "source": "m:f",
        "target": ["cpu", "8xH100"],
        "device_map": "balanced",
        "dtype": "bfloat16",
        "inputs": ["x=float32[2,3]", "y=int64[2]"],
        "dynamic_shapes": ["x.0=1..64", "auto"],
        "strict": True,
        "use_cache": True,
        "trust_remote_code": True,
        "workload": "decode",
        "max_cache_len": 64,
        "cache_form": "buffers",
        "component": "vision",
        "adapter": "fr=lora",
        "adapter_mode": "inputs",
        "parallel": None,
        "assume": ["a.py:3=True", "b.py:4=False"],
        "on_progress": None,
    }


@pytest.mark.parametrize("command", ["check", "export -o out.pt2", "bench"])
def test_a_dimension_that_cannot_be_read_is_refused_before_anything_is_imported(command, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "fakexport.exporting.capture", None)
    name, *options = command.split()

    assert main([name, "absent.py:f", *options, "--dynamic", "static"]) == 2

    assert "invalid dynamic dimension 'static': write NAME.DIM=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (report(), 0),
        (report(diagnostics=(WARNING,)), 0),
        (report(diagnostics=(WARNING, ERROR)), 1),
        (full_report(), 1),
    ],
    ids=["clean", "a warning", "an error", "a target that fails"],
)
def test_the_exit_code_tells_clean_from_findings(monkeypatch, found, code):
    install_check(monkeypatch, lambda *_, **__: found)

    assert main(["check", "m:f"]) == code


@pytest.mark.parametrize(
    ("options", "render"),
    [
        ([], render_report),
        (["--format", "text"], render_report),
        (["--format", "json"], lambda report: json_text(to_dict(report))),
        (["--format", "github"], render_github),
        (["--format", "sarif"], lambda report: render_sarif(ProjectReport((report,), {}), root=Path.cwd())),
        (["--format", "markdown"], lambda report: render_markdown(ProjectReport((report,), {}))),
    ],
)
def test_stdout_has_the_report_and_nothing_else(monkeypatch, capsys, options, render):
    install_check(monkeypatch, lambda *_, **__: full_report())

    main(["check", "m:f", "--no-progress", *options])

    assert capsys.readouterr() == (render(full_report()), "")


def test_a_check_writes_the_report_to_files_too(monkeypatch, capsys, tmp_path):
    calls = []
    install_check(monkeypatch, lambda *_, **__: calls.append(1) or full_report())
    asked = {name: tmp_path / f"report.{name}" for name in ("json", "text", "github", "sarif", "markdown")}
    writes = [part for name, file in asked.items() for part in ("--write", f"{name}={file}")]

    code = main(["check", "m:f", "--no-progress", *writes])

    assert (code, calls, capsys.readouterr().out) == (1, [1], render_report(full_report()))
    for name, file in asked.items():
        main(["check", "m:f", "--no-progress", "--format", name])
        assert file.read_text() == capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sarif", "--write takes FORMAT=FILE"),
        ("pdf=x", "unknown format 'pdf'; choose one of text, json, github, sarif, markdown"),
        ("json=absent/x.json", "/absent does not exist; see `fakexport check --help`"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_check(asked, capsys, given, said):
    assert main(["check", "m:f", "--no-progress", "--write", given]) == 2

    out, err = capsys.readouterr()
    assert (out, asked, err.count("\n")) == ("", {}, 1)
    assert said in err


def test_what_a_model_prints_goes_to_stderr(monkeypatch, capsys):
    def check(source, **options):
        print("hello from the model")
        return report()

    install_check(monkeypatch, check)

    main(["check", "m:f", "--format", "json", "--no-progress"])

    out, err = capsys.readouterr()
    assert json.loads(out)["source"] == "model.py:factory"
    assert err == "hello from the model\n"


def test_what_torch_prints_goes_nowhere(monkeypatch, capsys):
    def check(source, **options):
        of_torch = {"__name__": "torch.export._trace", "sys": sys}
        exec("print('the graph so far', file=sys.stderr)\nprint('and more')", of_torch)
        return report()

    install_check(monkeypatch, check)

    main(["check", "m:f", "--no-progress"])

    assert capsys.readouterr() == (render_report(report()), "")


def noisy_check(source, **options):
    warnings.warn("deprecated", UserWarning, stacklevel=1)
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("torch.noise")
    logger.addHandler(handler)
    try:
        logger.setLevel(logging.DEBUG)
        logger.error("triton not found")
    finally:
        logger.removeHandler(handler)
    return report()


def test_warnings_and_logs_of_libraries_go_nowhere(monkeypatch, capsys):
    install_check(monkeypatch, noisy_check)

    main(["check", "m:f", "--no-progress"])

    assert capsys.readouterr().err == ""


@pytest.mark.filterwarnings("default::UserWarning")
def test_debug_lets_them_through(monkeypatch, capsys):
    install_check(monkeypatch, noisy_check)

    with pytest.warns(UserWarning, match="deprecated"):
        main(["check", "m:f", "--no-progress", "--debug"])

    assert "triton not found" in capsys.readouterr().err


def test_logging_and_warnings_are_as_before_afterwards(monkeypatch):
    install_check(monkeypatch, noisy_check)
    filters, disabled = list(warnings.filters), logging.root.manager.disable

    main(["check", "m:f", "--no-progress"])

    assert (list(warnings.filters), logging.root.manager.disable) == (filters, disabled)


def checked_in_steps(source, *, on_progress, **options):
    on_progress(Progress(1, 2, "cpu", "build"))
    on_progress(Progress(2, 2, "H100", "trace"))
    on_progress(Progress(2, 2, "H100", "compare"))
    return report()


def test_a_pipe_gets_no_progress(monkeypatch, capsys):
    def check(source, *, on_progress, **options):
        assert on_progress is None
        return report()

    install_check(monkeypatch, check)

    main(["check", "m:f"])

    assert capsys.readouterr() == (render_report(report()), "")


def test_a_check_that_exceeds_its_timeout_says_where_it_was(monkeypatch, capsys):
    def check(source, *, on_progress, **options):
        blocks = BlockCount(3, 9, "model.layers.3.mlp")
        on_progress(Progress(2, 2, "H100", "trace", blocks=blocks))
        threading.Event().wait()

    install_check(monkeypatch, check)
    before = signal.getsignal(signal.SIGALRM)

    assert main(["check", "m:f", "--timeout", "0.2"]) == 124

    where = "[2/2] H100: trace, 3 of 9 blocks, model.layers.3.mlp"
    assert capsys.readouterr() == ("", f"error: stopped after 0.2 s: {where}\n")
    assert signal.getsignal(signal.SIGALRM) is before


def test_progress_on_a_terminal_is_one_line_that_goes_away(monkeypatch, capsys):
    install_check(monkeypatch, checked_in_steps)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress_display, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setenv("COLUMNS", "21")

    main(["check", "m:f"])

    assert capsys.readouterr().err == (
        "\r\x1b[K[1/2] cpu: build ...\r\x1b[K[2/2] H100: trace ..\r\x1b[K[2/2] compare target\r\x1b[K"
    )


def test_the_text_has_the_width_of_the_terminal(monkeypatch, capsys):
    install_check(monkeypatch, lambda *_, **__: full_report())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")

    main(["check", "m:f", "--no-progress"])

    assert capsys.readouterr().out == render_report(full_report(), width=60)


class Counted:
    """Blocks of a model, the next of which is traced whenever someone looks."""

    total = 3

    def __init__(self):
        self.looks = 0

    def __str__(self):
        return str(BlockCount(self.done, self.total))

    @property
    def done(self):
        self.looks += 1
        return min(self.looks - 1, self.total)


def test_the_line_moves_within_a_step_and_is_gone_before_the_report(monkeypatch, capsys):
    blocks = Counted()

    def check(source, *, on_progress, **options):
        on_progress(Progress(1, 1, "H100", "trace", blocks=blocks))
        while blocks.done < blocks.total:
            time.sleep(0.01)
        return report()

    install_check(monkeypatch, check)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    main(["check", "m:f"])

    first, *_, last = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert first == "[1/1] H100: trace, 0 of 3 blocks ..."
    assert last == ""
    assert not [thread for thread in threading.enumerate() if thread.name == "fakexport-progress"]
