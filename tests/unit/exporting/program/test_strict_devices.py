"""Which tensors an operator takes together, against torch's own table of device checks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchgen
import yaml

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport.exporting.program.retargeting.strict_devices import INDEXED, MIXED, WITH_SCALARS, device_clash

aten = torch.ops.aten
NATIVE_FUNCTIONS = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"


@pytest.fixture(scope="module")
def tensors():
    with new_fake_mode():
        return {
            "gpu": torch.empty(4, 4, device="cuda:0"),
            "other_gpu": torch.empty(4, 4, device="cuda:1"),
            "cpu": torch.empty(4, 4),
            "cpu_number": torch.empty(()),
            "gpu_index": torch.zeros(2, dtype=torch.int64, device="cuda:0"),
            "other_gpu_index": torch.zeros(2, dtype=torch.int64, device="cuda:1"),
            "cpu_index": torch.zeros(2, dtype=torch.int64),
            "cpu_number_index": torch.zeros((), dtype=torch.int64),
        }


LEGAL = [
    (aten.add.Tensor, ["gpu", "cpu_number"]),
    (aten.add.Tensor, ["cpu_number", "gpu"]),
    (aten.copy_.default, ["gpu", "cpu"]),
    (aten.index.Tensor, ["gpu", ["cpu_index"]]),
    (aten.index.Tensor, ["gpu", ["gpu_index", "cpu_index"]]),
    (aten.index_put_.default, ["gpu", ["cpu_index"], "cpu_number"]),
    (aten.masked_fill.Tensor, ["gpu", "gpu", "cpu_number"]),
    (aten.view_as.default, ["gpu", "cpu"]),
    (aten.mm.default, ["gpu", "gpu"]),
]
ILLEGAL = [
    (aten.add.Tensor, ["gpu", "cpu"], "self on cuda:0, other on cpu"),
    (aten.add.Tensor, ["gpu", "other_gpu"], "self on cuda:0, other on cuda:1"),
    (aten.index.Tensor, ["cpu", ["gpu_index"]], "self on cpu, indices[0] on cuda:0"),
    (aten.index.Tensor, ["gpu", ["other_gpu_index"]], "self on cuda:0, indices[0] on cuda:1"),
    (aten.index_put_.default, ["gpu", ["cpu_index"], "cpu"], "self on cuda:0, values on cpu"),
    (aten.embedding.default, ["gpu", "cpu_number_index"], "weight on cuda:0, indices on cpu"),
    (aten.index_select.default, ["gpu", 0, "cpu_index"], "self on cuda:0, index on cpu"),
    (aten.cat.default, [["gpu", "cpu"]], "tensors[0] on cuda:0, tensors[1] on cpu"),
    (aten.convolution.default, ["gpu", "cpu"], "input on cuda:0, weight on cpu"),
    (aten.equal.default, ["gpu", "cpu_number"], "self on cuda:0, other on cpu"),
    (aten.masked_fill.Scalar, ["gpu", "cpu_number", 0.0], "self on cuda:0, mask on cpu"),
]


def values(names, tensors):
    return [
        values(name, tensors)
        if isinstance(name, list)
        else tensors.get(name, name)
        if isinstance(name, str)
        else name
        for name in names
    ]


@pytest.mark.parametrize(("operator", "names"), LEGAL, ids=lambda value: str(value))
def test_what_a_gpu_takes_is_legal(operator, names, tensors):
    assert device_clash(operator, values(names, tensors), {}) is None


@pytest.mark.parametrize(("operator", "names", "text"), ILLEGAL, ids=lambda value: str(value))
def test_what_a_gpu_refuses_is_named_by_argument(operator, names, text, tensors):
    assert device_clash(operator, values(names, tensors), {}) == f"{operator} gets {text}"


def test_an_operator_of_another_library_has_rules_of_its_own(tensors):
    torch.library.define("fakexport_tests::anywhere", "(Tensor a, Tensor b) -> Tensor")

    operator = torch.ops.fakexport_tests.anywhere.default

    assert device_clash(operator, [tensors["gpu"], tensors["cpu"]], {}) is None


@pytest.fixture(scope="module")
def functions():
    """torch's own description of its operators: name with overload -> entry."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(NATIVE_FUNCTIONS.read_text(), Loader=loader)
    return {entry["func"].partition("(")[0]: entry for entry in entries}


def checks_devices(entry, functions):
    """Whether the kernel that torch generates for a GPU compares the devices of its tensors first."""
    if entry.get("device_check") == "NoCheck" or entry.get("structured_inherits") == "TensorIteratorBase":
        return False
    delegate = entry.get("structured_delegate")
    if delegate is not None:
        return checks_devices(functions[delegate], functions)
    dispatch = entry.get("dispatch")
    return isinstance(dispatch, dict) and any("CUDA" in key.split(", ") for key in dispatch)


@pytest.mark.parametrize("name", sorted(MIXED | INDEXED | WITH_SCALARS))
def test_torch_checks_no_devices_where_we_allow_several(name, functions):
    overloads = [entry for key, entry in functions.items() if key.partition(".")[0] == name]

    takes_several = [entry for entry in overloads if entry["func"].partition("->")[0].count("Tensor") > 1]
    assert takes_several, f"torch has no operator {name} any more"
    checked = [e["func"] for e in takes_several if "out=" not in e["func"] and checks_devices(e, functions)]
    assert not [text for text in checked if not text.partition("(")[0].endswith("out")]


def test_torch_checks_no_devices_of_pointwise_operators_with_several_tensors(functions):
    checked = {
        name
        for name, entry in functions.items()
        if "pointwise" in str(entry.get("tags", ""))
        and "out" not in name
        and entry["func"].partition("->")[0].count("Tensor") > 1
        and checks_devices(entry, functions)
    }

    assert checked <= {"equal", "native_dropout_backward"}
