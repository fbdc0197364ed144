"""Targets that are neither CPU nor CUDA."""

import pytest

import fakexport as fe

TYPES = {"PVC-1550": "xpu:0", "M2-Ultra": "mps:0"}


@pytest.mark.parametrize("target", TYPES)
def test_the_mlp_exports(target):
    report = fe.check("examples/mlp.py:factory", target=[target])

    (verdict,) = report.verdicts
    assert verdict.is_exportable
    assert verdict.summary.devices == (TYPES[target],)
