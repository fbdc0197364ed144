"""`fakexport emulate`: a script runs as `python` runs it, and the devices are there."""

import subprocess
import sys

import pytest

from fakexport.cli import main

SHOWS_ITSELF = """
import pickle, sys
class Own: pass
print(__name__, sys.modules["__main__"].__dict__ is globals(), type(pickle.loads(pickle.dumps(Own()))) is Own)
print(__file__, __package__, sys.argv, sys.path[0])
import neighbour
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else None)
"""
RAISES = """
def inner():
    raise ValueError("of the script")

def outer():
    try:
        inner()
    except ValueError as error:
        raise RuntimeError("again") from error

outer()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with scripts in a folder and in a package."""
    for place in (tmp_path / "scripts", tmp_path / "package"):
        place.mkdir()
        (place / "shows.py").write_text(SHOWS_ITSELF)
        (place / "raises.py").write_text(RAISES)
        (place / "broken.py").write_text("x = (\n")
        (place / "leaves.py").write_text("import sys\nsys.exit('in words')\n")
        (place / "neighbour.py").write_text("")
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "runnable").mkdir()
    (tmp_path / "runnable" / "__main__.py").write_text("print('runs', __package__)\n")
    (tmp_path / "needy.py").write_text("import absent_module\n")
    monkeypatch.chdir(tmp_path)
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("neighbour", "package", "runnable")
    ]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["scripts/shows.py"],
        ["./scripts/../scripts/shows.py", "3", "--flag", "-m"],
        ["-m", "package.shows", "5", "--help"],
        ["-m", "runnable"],
        ["scripts/raises.py"],
        ["-m", "package.raises"],
        ["scripts/broken.py"],
        ["scripts/leaves.py"],
        ["needy.py"],
        ["-m", "needy"],
    ],
    ids=" ".join,
)
def test_a_script_does_what_it_does_under_python(arguments, folder, capfd):
    expected = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    before = sys.modules["__main__"], sys.argv, list(sys.path)

    code = main(["emulate", "H100", *arguments])

    out, err = capfd.readouterr()
    assert (code, out, without_runpy(err)) == (
        expected.returncode,
        expected.stdout,
        without_runpy(expected.stderr),
    )
    assert (sys.modules["__main__"], sys.argv, list(sys.path)) == before


def without_runpy(text: str) -> str:
    """A traceback without the frames through which `python -m` itself runs."""
    lines = text.splitlines()
    return "\n".join(
        line for line in lines if "<frozen runpy>" not in line and "<frozen importlib" not in line
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["H10", "scripts/shows.py"], "error: unknown device 'H10': did you mean H100"),
        (["H100", "absent.py"], "absent.py: No such file or directory\n"),
        (["H100", "scripts"], "scripts: Is a directory\n"),
        (["H100", "-m", "absent"], "error: No module named absent\n"),
        (["H100", "-m", "package.absent"], "error: No module named package.absent\n"),
        (["H100", "-m", "package"], "'package' is a package and cannot be directly executed\n"),
        (["H100", "-m", "../package"], "error: Relative module names not supported\n"),
        (["H100", "-m"], "TOPOLOGY must be followed by a script, or by -m and a module"),
        (
            ["H100", "--fake", "scripts/shows.py"],
            "TOPOLOGY must be followed by a script, or by -m and a module",
        ),
        (["H100"], "error: Missing argument"),
    ],
)
def test_a_bad_call_is_one_line_and_exit_code_2(arguments, line, folder, capsys):
    code = main(["emulate", *arguments])

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert line in err
    assert err.count("\n") == 1


def test_the_devices_are_there_and_gone_afterwards(folder, capsys):
    import torch

    (folder / "asks.py").write_text(
        "import torch\nprint(torch.cuda.get_device_name(1), torch.cuda.device_count())\n"
    )

    code = main(["emulate", "2xT4", "asks.py"])

    assert (code, capsys.readouterr().out) == (0, "Tesla T4 2\n")
    assert not torch.cuda.is_available()


def test_with_fake_a_script_of_real_tensors_runs(folder, capsys):
    (folder / "real.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 3).cuda()\n"
        "program = torch.export.export(model, (torch.ones(4, 2).to('cuda:0'),))\n"
        "print([str(w.device) for w in program.state_dict.values()])\n"
    )

    assert main(["emulate", "--fake", "H100", "real.py"]) == 0
    assert capsys.readouterr().out == "['cuda:0', 'cuda:0']\n"


def test_an_interrupt_ends_the_command(folder, capsys):
    (folder / "waits.py").write_text("raise KeyboardInterrupt\n")

    assert main(["emulate", "H100", "waits.py"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
