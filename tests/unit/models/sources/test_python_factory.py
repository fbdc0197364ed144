"""Factories in a Python file or package."""

import importlib.metadata
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from fakexport.models.sources import SourceError, resolve


@pytest.fixture
def write(tmp_path):
    """Writes a Python file and returns its path."""

    def write_file(text: str, name: str = "model.py", folder: str = "") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write_file


def message_of(spec: str) -> str:
    with pytest.raises(SourceError) as caught:
        resolve(spec).prepare()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_factory_may_return_a_module_with_its_inputs(write):
    path = write(
        """
        import torch

        def factory():
            return torch.nn.Linear(3, 4), (torch.ones(2, 3),), {}
        """
    )

    module, args, kwargs = resolve(f"{path}:factory").factory()

    assert module(*args, **kwargs).shape == (2, 4)


def test_a_module_class_is_a_factory(write):
    path = write(
        """
        from torch import nn

        class Outer:
            class Net(nn.Module):
                pass
        """
    )

    source = resolve(f"{path}:Outer.Net")
    module = source.factory()

    assert isinstance(module, nn.Module)
    assert module.training
    assert source.factory() is not module


def test_a_package_is_named_with_dots():
    module = resolve("torch.nn:Identity").factory()

    assert isinstance(module, nn.Identity)


def test_the_files_beside_it_are_importable_and_the_path_is_left_alone(write):
    write("width = 7", name="beside_it.py")
    write("depth = 3", name="beside_it_too.py")
    path = write(
        """
        from torch import nn
        from beside_it import width

        def factory():
            from beside_it_too import depth
            return nn.Linear(width, depth)
        """
    )
    before = list(sys.path)

    module = resolve(f"{path}:factory").factory()

    assert module.weight.shape == (3, 7)
    assert sys.path == before


def test_two_sources_may_have_neighbours_of_one_name(write):
    text = """
        from torch import nn
        from my_sizes import width

        def factory():
            return nn.Linear(width, 1)
        """
    for folder, width in (("one", 1), ("two", 2)):
        write(f"width = {width}", name="my_sizes.py", folder=folder)
    paths = [write(text, folder=folder) for folder in ("one", "two")]

    widths = [resolve(f"{path}:factory").factory().in_features for path in paths]

    assert widths == [1, 2]


def test_what_an_earlier_source_brought_along_from_elsewhere_stays(write):
    first = write("from torch import nn\nimport mine\ndef factory(): return nn.Identity()", folder="one")
    write("", name="mine.py", folder="one")
    resolve(f"{first}:factory").prepare()
    mine = sys.modules["mine"]

    resolve(f"{write('def factory(): pass', folder='two')}:factory").prepare()

    assert sys.modules["mine"] is mine


def test_a_module_that_was_put_in_the_place_of_one_stays(write, monkeypatch):
    text = "from torch import nn\nimport our_sizes\ndef factory(): return nn.Linear(our_sizes.width, 1)"
    for folder in ("one", "two"):
        write("width = 1", name="our_sizes.py", folder=folder)
    resolve(f"{write(text, folder='one')}:factory").prepare()
    own = ModuleType("our_sizes")
    own.width = 5
    monkeypatch.setitem(sys.modules, "our_sizes", own)

    module = resolve(f"{write(text, folder='two')}:factory").factory()

    assert module.in_features == 5
    assert sys.modules["our_sizes"] is own


def test_the_class_names_of_a_file_do_not_depend_on_its_place(write):
    text = "from torch import nn\nclass Net(nn.Module): pass"
    paths = [write(text, folder=folder) for folder in ("here", "there")]

    names = {type(resolve(f"{path}:Net").factory()).__module__ for path in paths}

    assert len(names) == 1


def test_a_missing_file_is_named_with_the_nearest(write):
    path = write("", name="captioning.py")

    message = message_of(f"{path.parent}/captoning.py:factory")

    assert message == f"no such file: {path.parent}/captoning.py: did you mean captioning.py?"
    assert message_of("no/such/folder/x.py:factory") == "no such file: no/such/folder/x.py"


@pytest.mark.parametrize(
    ("text", "attribute", "start", "end"),
    [
        ("def hybrid(): ...\ndef encoder(): ...", "encodr", " has no 'encodr'", ": did you mean encoder?"),
        (
            "import torch\ndef cpu(): ...\ndef gpu(): ...\ndef _no(): ...",
            "f",
            " has no 'f'",
            "it has cpu, gpu",
        ),
        ("size = 3", "size", ":size is not a factory", ": int is not callable"),
        (
            "import json\nsettings = json.loads('{')",
            "f",
            " cannot be imported: JSONDecodeError: Expecting property name",
            "at line 2: settings = json.loads('{')",
        ),
        ("x = 1\ndef factory(:\n", "f", " cannot be imported: SyntaxError: invalid syntax", "at line 2"),
        ("raise SystemExit(3)", "f", " cannot be imported: SystemExit: 3 at line 1", ""),
    ],
)
def test_a_file_without_a_factory_is_named_with_the_fault(write, text, attribute, start, end):
    path = write(text)

    message = message_of(f"{path}:{attribute}")

    assert message.startswith(f"{path}{start}")
    assert message.endswith(end)


def test_an_unknown_package_is_named():
    message = message_of("no_such_package.inner:factory")

    assert message.startswith("no module named 'no_such_package'; a source is path/to/file.py:FACTORY | ")


def test_a_known_package_that_is_missing_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio", None)  # As if it were not installed.

    message = message_of("torchaudio:wav2vec2_base")

    installed = importlib.metadata.version("torch")
    assert message.startswith("no module named 'torchaudio': run `")
    assert f" -m pip install torch=={installed} torchaudio" in message


def test_a_package_that_raises_on_import_is_named(write, monkeypatch):
    monkeypatch.chdir(write("import not_installed_anywhere", name="broken_package.py").parent)

    message = message_of("broken_package:factory")

    assert message == (
        "broken_package cannot be imported: ModuleNotFoundError: No module named 'not_installed_anywhere'"
    )


def test_a_module_of_the_working_directory_is_importable(write, monkeypatch):
    path = write("from torch import nn\ndef factory(): return nn.Linear(1, 1)", name="my_own_model.py")
    monkeypatch.chdir(path.parent)

    module = resolve("my_own_model:factory").factory()

    assert isinstance(module, nn.Linear)


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        ("3", "int"),
        ("None", "NoneType"),
        ("(torch.nn.Identity(), torch.ones(1))", "(Identity, Tensor)"),
        ("(torch.ones(1), torch.nn.Identity())", "(Tensor, Identity)"),
        ("()", "()"),
    ],
)
def test_a_factory_that_returns_no_module_is_an_error(write, made, shape):
    path = write(f"import torch\ndef factory(): return {made}")
    source = resolve(f"{path}:factory")

    with pytest.raises(SourceError) as caught:
        source.factory()

    assert str(caught.value) == (
        f"{path}:factory returned {shape}, not a module, (module, args) or (module, args, kwargs)"
    )


def test_an_exception_of_the_factory_is_the_callers(write):
    path = write("def factory(): raise KeyError('mine')")
    source = resolve(f"{path}:factory")

    with pytest.raises(KeyError, match="mine"):
        source.factory()


def test_a_factory_without_inputs_asks_for_them(write):
    path = write("from torch import nn\ndef factory(): return nn.Linear(1, 1)")
    source = resolve(f"{path}:factory")

    with pytest.raises(SourceError, match=r"returned no inputs: return \(module, args\), or pass --input"):
        source.example_inputs(source.factory(), "cpu", None)


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("def make(width, *rest, depth=1, **others): ...", "width"),
        ("def make(*, width, depth): ...", "width, depth"),
        ("from torch.nn import Linear as make", "in_features, out_features"),
    ],
)
def test_a_factory_that_needs_arguments_is_a_bad_call(tmp_path, code, needed):
    (tmp_path / "model.py").write_text(code)

    with pytest.raises(SourceError) as caught:
        resolve(f"{tmp_path}/model.py:make").prepare()

    assert str(caught.value) == (
        f"{tmp_path}/model.py:make requires arguments ({needed}), but a factory is called without any: "
        "write a function that passes them"
    )


def test_a_callable_that_needs_arguments_is_a_bad_call():
    with pytest.raises(SourceError, match=r"^<lambda> requires arguments \(width\), but a factory"):
        resolve(lambda width: nn.Linear(width, 2))


def test_a_module_that_is_missing_is_answered_with_what_makes_it_importable(tmp_path):
    (tmp_path / "known.py").write_text("import skimage")
    (tmp_path / "own.py").write_text("import layers_of_my_own")

    with pytest.raises(SourceError) as known:
        resolve(f"{tmp_path}/known.py:make").prepare()
    with pytest.raises(SourceError) as own:
        resolve(f"{tmp_path}/own.py:make").prepare()

    assert str(known.value).endswith(f"; run `{sys.executable} -m pip install scikit-image`")
    assert "pip" not in str(own.value)
    assert str(own.value).endswith("if it is your own file, put its folder on PYTHONPATH")
