"""Architectures that compute lengths from buffers: exported with the values of these, as eager computes."""

import pytest
import torch

import fakexport as fe
from tests.architectures import ARCHITECTURES

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

_BY_NAME = {str(architecture): architecture for architecture in ARCHITECTURES}


@pytest.mark.parametrize("topology", ["cpu", "H100"])
@pytest.mark.parametrize("name", ["encodec", "mimi"])
def test_a_codec_exports_and_gives_the_values_of_eager(name, topology):
    architecture = _BY_NAME[name]
    torch.manual_seed(0)
    real = architecture.build().eval()
    sound = torch.randn(1, 1, 1003)

    program = fe.export(lambda: architecture.build().eval(), (sound,), target=topology)

    bound = fe.bind(program, dict(real.state_dict()), devices="cpu")
    with torch.no_grad():
        expected = real(sound)
        results = bound.module()(sound)
    compared = {key: value for key, value in results.items() if isinstance(value, torch.Tensor)}
    assert compared
    for key, value in compared.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5)
