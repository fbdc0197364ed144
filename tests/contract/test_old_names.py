"""Arguments under their old names: they work, with a warning at the caller's line."""

import warnings

import pytest
import torch
from torch import nn

import fakexport as fe


def linear():
    return nn.Linear(4, 2), (torch.zeros(3, 4),)


@pytest.fixture(scope="module")
def on_gpu():
    return fe.export(linear, target="H100")


def device_of(program):
    return str(program.state_dict["weight"].device)


def test_check_takes_targets(tmp_path):
    with pytest.warns(DeprecationWarning, match=r"^check\(\): targets= is called target= now") as caught:
        report = fe.check(linear, targets=["cpu", "T4"])  # type: ignore[call-arg]

    assert [verdict.target.topology for verdict in report.verdicts] == ["cpu", "T4"]
    assert caught[0].filename == __file__


def test_export_takes_a_topology():
    with pytest.warns(DeprecationWarning, match=r"^export\(\): topology= is called target= now"):
        program = fe.export(linear, topology="H100")  # type: ignore[call-overload]

    assert device_of(program) == "cuda:0"


@pytest.mark.parametrize(
    ("arguments", "options", "advice"),
    [
        ((), {"device_map": {"cuda:0": "cpu"}}, "a map of devices is given as devices="),
        ((), {"device_map": "cuda:0=cpu"}, "a map of devices is given as devices="),
        (({"": "cpu"},), {}, "a map of modules is given as device_map="),
        (({"cuda:0": "cpu"},), {"topology": "cpu"}, "topology= is called target= now"),
    ],
)
def test_retarget_takes_either_map_as_the_other(on_gpu, arguments, options, advice):
    with pytest.warns(DeprecationWarning, match=advice) as caught:
        moved = fe.retarget(on_gpu, *arguments, **options)

    assert device_of(moved) == "cpu"
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (({"cuda:0": "cpu"},), {}),
        (("cpu",), {}),
        ((), {"devices": "cuda:0=cpu"}),
        ((), {"device_map": "cpu"}),
        ((), {"device_map": {"": "cpu"}}),
    ],
)
def test_the_names_of_today_do_not_warn(on_gpu, arguments, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved = fe.retarget(on_gpu, *arguments, **options)

    assert device_of(moved) == "cpu"


def test_a_name_and_its_old_name_are_refused(on_gpu):
    with pytest.raises(TypeError, match="got both target= and topology=, its old name"):
        fe.export(linear, target="H100", topology="H100")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="either devices, device to device, or device_map"):
        fe.retarget(on_gpu, "cpu", device_map="cpu")
    with pytest.raises(TypeError, match="either devices, device to device, or device_map"):
        fe.retarget(on_gpu)
