"""`--changed-since`: which checks a change of the repository can have changed."""

import subprocess

import pytest

from fakexport.checking.sweep import changed_items, read_zoo
from fakexport.checking.sweep.changed_items import RevisionError

FILES = {
    "zoo.yaml": "models: [one.py:f, two.py:f, package.three:f, 'hf:config', 'hf:llama', timm:resnet50]",
    "one.py": "from package.layers import Layer\nfrom package import sizes",
    "two.py": "def f():\n    from package import three",
    "package/__init__.py": "",
    "package/layers.py": "from . import deep",
    "package/deep.py": "import torch",
    "package/sizes.py": "",
    "package/three.py": "import os, json.decoder",
    "config/config.json": "{}",
    "other/notes.md": "",
    "sizes.txt": "",
}
ONE, TWO, THREE, CONFIG = "one.py:f", "two.py:f", "package.three:f", "hf:config"


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    commit(folder, FILES)
    return folder


@pytest.fixture
def changed(repository):
    def sources(name, text):
        (repository / name).parent.mkdir(exist_ok=True)
        if text is None:
            (repository / name).unlink()
        else:
            (repository / name).write_text(text)
        return [item.source for item in changed_items(read_zoo(repository / "zoo.yaml"), "HEAD")]

    yield sources
    git(repository, "checkout", "-q", "-f", "HEAD", "--", ".")
    git(repository, "clean", "-q", "-f", "-d")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("one.py", "x = 1", [ONE]),
        ("package/layers.py", "x = 1", [ONE]),
        ("package/deep.py", "x = 1", [ONE]),
        ("package/sizes.py", "x = 1", [ONE]),
        ("package/three.py", "x = 1", [TWO, THREE]),
        ("package/__init__.py", "x = 1", [ONE, TWO, THREE]),
        ("package/weights.bin", "x", [ONE, TWO, THREE]),
        ("package/new.py", "x = 1", []),
        ("package/deep.py", None, [ONE, TWO, THREE]),
        ("two.py", None, [ONE, TWO, THREE]),
        ("package/three.py", None, [ONE, TWO, THREE]),
        ("config/config.json", "{ }", [CONFIG, ONE, TWO]),
        ("sizes.txt", "x", [ONE, TWO]),
        ("zoo.yaml", "models: [one.py:f, two.py:g]", [ONE, "two.py:g"]),
    ],
)
def test_what_a_change_can_change(changed, name, text, expected):
    assert sorted(changed(name, text)) == sorted(expected)


def test_nothing_changed(repository):
    assert changed_items(read_zoo(repository / "zoo.yaml"), "HEAD") == ()


def test_git_says_why_it_cannot_tell(repository, tmp_path):
    (tmp_path / "zoo.yaml").write_text(FILES["zoo.yaml"])

    with pytest.raises(RevisionError, match="no revision 'absent'"):
        changed_items(read_zoo(repository / "zoo.yaml"), "absent")
    with pytest.raises(RevisionError, match="not a git repository"):
        changed_items(read_zoo(tmp_path / "zoo.yaml"), "HEAD")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pipe/vae/config.json", ["diffusers:pipe/vae/encoder"]),
        ("pipe/model_index.json", ["diffusers:pipe/unet", "diffusers:pipe/vae/encoder"]),
        ("pipe/unet/config.json", ["diffusers:pipe/unet"]),
        ("pipe/README.md", []),
    ],
)
def test_a_component_of_a_pipeline_changes_with_its_config_and_its_pipeline(name, expected, tmp_path):
    """`pipe/vae/encoder` is not a path: the encoder is half of the model in `pipe/vae`."""
    names = ("pipe/model_index.json", "pipe/vae/config.json", "pipe/unet/config.json", "pipe/README.md")
    sources = "'diffusers:pipe/unet', 'diffusers:pipe/vae/encoder', diffusers:UNet2DConditionModel"
    commit(tmp_path, {**dict.fromkeys(names, "{}"), "zoo.yaml": f"models: [{sources}]"})
    (tmp_path / name).write_text("changed")

    found = changed_items(read_zoo(tmp_path / "zoo.yaml"), "HEAD")

    assert [item.source for item in found] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("maps/x.json", ["hf:a"]),
        ("lib/ops.py", ["hf:b"]),
        ("lib/kernels.py", ["hf:b"]),
        ("lib/table.json", ["hf:b"]),
        ("mylib/ops.py", ["hf:c"]),
        ("mylib/kernels.py", ["hf:c"]),
        ("mylib/__init__.py", ["hf:c"]),
        ("native/ops.so", ["hf:d"]),
        ("other/README.md", []),
    ],
)
def test_a_check_changes_with_its_device_map_and_the_imports_of_its_libraries(name, expected, tmp_path):
    models = """models:
      - {source: 'hf:a', device-map: maps/x.json}
      - {source: 'hf:b', device-map: balanced, libraries: lib/ops.py}
      - {source: 'hf:c', libraries: mylib.ops}
      - {source: 'hf:d', libraries: [native/ops.so, transformers.integrations.moe]}"""
    files = dict.fromkeys(("maps/x.json", "lib/table.json", "native/ops.so", "other/README.md"), "")
    files |= {"lib/ops.py": "import kernels", "lib/kernels.py": ""}
    files |= {"mylib/__init__.py": "", "mylib/ops.py": "from . import kernels", "mylib/kernels.py": ""}
    commit(tmp_path, {**files, "zoo.yaml": models})
    (tmp_path / name).write_text("# changed")

    found = changed_items(read_zoo(tmp_path / "zoo.yaml"), "HEAD")

    assert [item.source for item in found] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("own/layers.py", ["hf:own/config.json", "hf:own"]),
        ("own/config.json", ["hf:own/config.json", "hf:own", "hf:own/config.json"]),
        ("notes.md", []),
    ],
)
def test_a_check_that_runs_the_code_of_a_folder_changes_with_its_files(name, expected, tmp_path):
    models = """models:
      - {source: hf:own/config.json, trust-remote-code: true}
      - hf:own
      - hf:own/config.json"""
    files = dict.fromkeys(("own/layers.py", "own/config.json", "notes.md"), "")
    commit(tmp_path, {**files, "zoo.yaml": models})
    (tmp_path / name).write_text("# changed")

    found = changed_items(read_zoo(tmp_path / "zoo.yaml"), "HEAD")

    assert [item.source for item in found] == expected
