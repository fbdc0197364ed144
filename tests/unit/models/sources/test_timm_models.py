"""`timm:` sources, with a stand-in for timm: it needs torchvision, which not every torch has a build of."""

import importlib.metadata
import sys
import types

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.models.sources import SourceError, how_to_install, resolve


class Classifier(nn.Module):
    """What `timm.create_model` returns: a module that knows the size of its input."""

    def __init__(self):
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 8, 16)}
        self.head = nn.Linear(8 * 16, 2)

    def forward(self, x):
        return self.head(x.flatten(2))


@pytest.fixture
def timm(monkeypatch):
    """A stand-in for timm with one model; keeps the arguments of `create_model`."""
    module = types.ModuleType("timm")
    module.calls = []
    module.list_models = lambda: ["resnet50", "resnet18"]
    module.is_model = lambda name: name.partition(".")[0] == "resnet50"
    module.create_model = lambda name, **options: module.calls.append((name, options)) or Classifier()
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


@pytest.mark.parametrize("name", ["resnet50", "resnet50.a1_in1k"])
def test_a_model_is_built_untrained_and_in_eval_mode(timm, name):
    source = resolve(f"timm:{name}")

    module = source.factory()

    assert source.kind == "timm"
    assert timm.calls == [(name, {"pretrained": False, "dtype": torch.float32})]
    assert not module.training


@pytest.mark.parametrize(("asked", "given"), [(None, torch.float64), (torch.bfloat16, torch.bfloat16)])
def test_the_input_has_the_models_own_size(timm, asked, given):
    source = resolve("timm:resnet50")
    module = source.factory().double()

    (image,) = source.example_inputs(module, "cpu", asked).args

    assert image.shape == (2, 3, 8, 16)
    assert image.dtype is given


@pytest.mark.parametrize(
    ("version", "installed", "said"),
    [(None, None, "unknown"), (None, "1.0.8", "1.0.8"), ("1.0.9", "1.0.8", "1.0.9")],
)
def test_a_report_names_the_version_of_the_library_if_it_has_one(timm, version, installed, said, monkeypatch):
    if version:
        timm.__version__ = version
    read = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: installed if name == "timm" else read(name)
    )

    report = fe.check("timm:resnet50", target="cpu")

    assert report.verdicts[0].is_exportable
    assert report.versions["timm"] == said


def test_an_unknown_model_is_answered_with_the_nearest(timm):
    with pytest.raises(SourceError, match=r"^timm has no model 'resnet5': did you mean resnet50"):
        resolve("timm:resnet5")


@pytest.mark.parametrize(
    ("version", "index"),
    [
        ("2.13.0+cpu", " --extra-index-url https://download.pytorch.org/whl/cpu"),
        ("2.13.0+cu130", " --extra-index-url https://download.pytorch.org/whl/cu130"),
        ("2.13.0", ""),
        ("2.13.0a0+1a2b3c4.nv26.4", ""),
    ],
)
def test_timm_missing_names_the_extra_and_the_torch_that_stays(monkeypatch, version, index):
    """Without the second, pip installs the newest torch: the newest torchvision needs it."""
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(importlib.metadata, "version", {"torch": version}.get)

    with pytest.raises(SourceError) as caught:
        resolve("timm:resnet50")

    command = f"pip install torch=={version} 'timm>=1.0.23'{index}"
    assert str(caught.value) == f"timm:resnet50 requires timm: {command}"


def test_a_package_of_one_torch_is_installed_without_another_torch(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", {"torch": "2.13.0+cpu"}.get)

    said = how_to_install(ModuleNotFoundError("No module named 'torchvision'", name="torchvision"))

    index = "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert said == f"run `{sys.executable} -m pip install torch==2.13.0+cpu torchvision {index}`"


def test_what_transformers_misses_is_named():
    from transformers.utils import requires_backends

    with pytest.raises(ImportError) as caught:
        requires_backends("DinatModel", ["natten"])

    assert (how_to_install(caught.value) or "").startswith("install natten for ")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("import torchvision_of_another_world", "torchvision_of_another_world is missing"),
        (
            "raise RuntimeError('operator torchvision::nms does not exist')",
            "RuntimeError: operator torchvision::nms",
        ),
    ],
)
def test_timm_that_does_not_import_says_why(monkeypatch, tmp_path, statement, reason):
    (tmp_path / "timm.py").write_text(statement)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)

    with pytest.raises(SourceError) as caught:
        resolve("timm:resnet50")

    assert str(caught.value).startswith("timm:resnet50: timm cannot be imported")
    assert reason in str(caught.value)
