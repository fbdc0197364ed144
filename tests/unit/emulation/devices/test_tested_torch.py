"""One warning, in Python and on the command line, where torch is not one that fakexport is tested with."""

import warnings

import pytest
import torch

import fakexport as fe
from fakexport.cli import main
from fakexport.emulation.devices.emulation import UntestedTorch, warn_if_untested


@pytest.fixture
def as_torch(monkeypatch):
    def pretend(version):
        monkeypatch.setattr(torch, "__version__", version)
        warn_if_untested.cache_clear()

    yield pretend
    warn_if_untested.cache_clear()


@pytest.mark.parametrize("version", ["2.10.3", "2.99.0+cpu", "3.0.0a0+gitabc"])
def test_another_torch_is_named_once(as_torch, version):
    as_torch(version)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for target in ("cpu", "H100"):
            with fe.emulate(target):
                pass

    (warning,) = caught
    assert warning.category is UntestedTorch
    assert version in str(warning.message)
    assert "torch 2.11 to 2." in str(warning.message)


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.0+cu132"])
def test_a_tested_torch_is_not(as_torch, version):
    as_torch(version)

    with fe.emulate("H100"):
        pass


def test_a_check_of_two_targets_prints_it_once(as_torch, tmp_path, capsys):
    (tmp_path / "model.py").write_text(
        "import torch\nfactory = lambda: (torch.nn.Linear(2, 2), (torch.zeros(1, 2),))\n"
    )
    as_torch("2.99.0")

    code = main(["check", f"{tmp_path}/model.py:factory", "--target", "cpu", "--target", "H100"])

    assert code == 0
    assert capsys.readouterr().err.count("warning: fakexport") == 1
