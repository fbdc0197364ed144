"""The plan of a model: which sizes it is for, what fits, and what is refused."""

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.report import render_plan

GIB = 2**30


class Head(nn.Module):
    """An embedding and a large product: the peak is the product, whose size is known."""

    def __init__(self, width=1024, vocabulary=65536):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, dtype=torch.bfloat16)
        self.head = nn.Linear(width, vocabulary, bias=False, dtype=torch.bfloat16)

    def forward(self, input_ids):
        return self.head(self.embed(input_ids))


def factory():
    return Head(), (torch.zeros(2, 16, dtype=torch.long),)


@pytest.fixture(scope="module")
def program():
    return fe.export(factory, target="H100", dynamic_shapes="auto")


def device_at(program, **sizes):
    (point,) = fe.plan(program, **sizes).points
    (device,) = point.devices
    return device


def test_the_bytes_are_those_of_the_tensors_at_sizes_that_were_not_traced(program):
    device = device_at(program, batch=8, context=4096)

    tokens = 8 * 4096
    assert device.weights == 2 * 65536 * 1024 * 2
    assert device.inputs == tokens * 8
    assert device.activations == tokens * 65536 * 2 + tokens * 1024 * 2
    assert device.peak.operator == "aten.linear.default"
    assert device.peak.module_path == "head"
    assert device.peak.line.startswith("test_plan.py:")


def test_a_model_is_planned_as_its_program(program):
    ours = fe.plan(factory, target="H100", batch=8, context=4096)

    assert ours.points[0].devices == fe.plan(program, batch=8, context=4096).points[0].devices
    assert (ours.workload, ours.subject) == ("forward", "factory")


def test_an_archive_is_planned_as_its_program(program, tmp_path):
    path = tmp_path / "model.pt2"
    fe.save(program, path)

    report = fe.plan(str(path), batch=8, context=4096)

    (device,) = report.points[0].devices
    assert device.total == device_at(program, batch=8, context=4096).total
    assert device.peak.line == device_at(program).peak.line.replace(
        "test_plan", "tests/unit/planning/test_plan"
    )
    assert report.target == "H100-80GB"


def test_one_sequence_and_one_token_more_are_told(program):
    (point,) = fe.plan(program, batch=8, context=4096).points

    assert point.growth["batch"] == 4096 * (8 + 1024 * 2 + 65536 * 2)
    assert point.growth["context"] == 8 * (8 + 1024 * 2 + 65536 * 2)


def test_the_timeline_has_the_peak_and_ends_with_what_is_returned(program):
    report = fe.plan(program, batch=8, context=4096, timeline=True)

    held = [sum(step.bytes_by_kind.values()) for step in report.timeline]
    assert max(held) == report.points[0].devices[0].tensor_bytes
    assert [step.peak.node for step in report.timeline] == ["embedding", "linear"]
    assert fe.plan(program).timeline == ()


def test_a_call_costs_what_its_products_and_weights_cost(program):
    (point,) = fe.plan(program, batch=8, context=4096).points

    tokens = 8 * 4096
    (cost,) = point.costs.devices
    assert cost.flops == cost.least_flops["bfloat16"] == 2 * tokens * 1024 * 65536
    assert cost.read_bytes == 65536 * 1024 * 2
    assert cost.written_bytes == tokens * 65536 * 2
    assert point.costs.least_seconds == cost.flops / 989.4e12
    assert point.costs.most_tokens_per_second == pytest.approx(tokens / point.costs.least_seconds)


def test_the_bound_names_its_reason(program):
    report = fe.plan(program, batch=8, context=4096)

    text = " ".join(render_plan(report).split())
    assert "cannot be faster than 4.44 ms per call: cuda:0 computes 4.398 TFLOP in bfloat16" in text


def test_a_decode_step_of_few_tokens_is_bound_by_memory(program):
    (point,) = fe.plan(program, batch=2, context=16).points

    device, bound = point.costs.limit
    assert (device.name, bound.limit) == ("cuda:0", "memory")


def test_devices_without_rates_have_no_bound():
    report = fe.plan(lambda: (nn.Linear(8, 8), (torch.zeros(2, 8),)))

    assert report.points[0].costs.least_seconds is None
    assert (
        "256 FLOP per call; no bound on the time of a call: the profile of cpu specifies no FLOP/s or B/s"
        in render_plan(report)
    )


def test_equal_modules_are_one_row_and_all_of_them_are_counted():
    def factory():
        layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3))
        model = nn.Sequential(*layers, nn.Linear(8, 4))
        return model, (torch.zeros(2, 8),)

    report = fe.plan(factory, target="H100", by_module=True)

    flops = 2 * 2 * 8 * 16
    assert [(m.path, m.depth, m.count, m.flops) for m in report.modules] == [
        ("", 0, 1, 3 * 2 * flops + flops // 4),
        ("0-2", 1, 3, 3 * 2 * flops),
        ("0-2.0", 2, 3, 3 * flops),
        ("0-2.2", 2, 3, 3 * flops),
        ("3", 1, 1, flops // 4),
    ]
    whole, *_ = report.modules
    assert whole.read_bytes == 4 * (3 * (2 * 8 * 16 + 16 + 8) + 8 * 4 + 4 + 2 * 8)
    assert fe.plan(factory, target="H100").modules == ()


def test_the_autocast_of_the_caller_is_not_that_of_the_program(program):
    expected = device_at(program, batch=8, context=64)

    with fe.emulate("H100"), torch.autocast("cuda", dtype=torch.float16):
        assert device_at(program, batch=8, context=64) == expected


def test_a_batch_that_is_too_large_does_not_fit(program):
    report = fe.plan(program, batch=256, context=8192)

    assert report.points[0].fit == "does not fit"
    assert "does not fit: cuda:0 lacks" in render_plan(report)


def test_the_greatest_batch_fits_and_the_next_one_does_not(program):
    (found,) = fe.plan(program, batch=2, context=4096, maximum=["batch"]).greatest

    def fit(batch):
        return fe.plan(program, batch=batch, context=4096).points[0].fit

    assert fit(found.size) in ("fits", "may not fit")
    assert fit(found.size + 1) == "does not fit"
    assert fit(found.fits_surely) == "fits"
    assert fit(found.fits_surely + 1) != "fits"
    assert (found.limit, found.device) == ("memory", "cuda:0")


def test_the_greatest_size_may_be_the_most_that_the_program_accepts():
    small = fe.export(factory, target="H100", dynamic_shapes=["input_ids.0=2..64"])

    (found,) = fe.plan(small, maximum=["batch"]).greatest

    assert (found.size, found.limit, found.device) == (64, "range", None)


def test_a_model_that_never_fits_has_no_greatest_batch():
    def large():
        return Head(width=524288), (torch.zeros(2, 16, dtype=torch.long),)

    (found,) = fe.plan(large, target="H100", maximum=["batch"]).greatest

    assert found.size is None
    assert found.device == "cuda:0"


def test_the_smallest_machine_is_the_least_number_of_devices_that_is_enough():
    class Wide(nn.Sequential):
        """16 layers of 4 GiB: they fit on one device of 80 GB, and not on one of 48."""

        def __init__(self):
            super().__init__(*(nn.Linear(32768, 32768, bias=False) for _ in range(16)))

    def wide():
        return Wide(), (torch.zeros(2, 32768),)

    found = {machine.profile: machine for machine in fe.plan(wide, target="H100", smallest=True).machines}

    assert (found["H100-80GB"].count, found["H100-80GB"].device_map) == (1, None)
    assert (found["A100-40GB"].count, found["A100-40GB"].device_map) == (2, "balanced")
    assert found["T4"].count == 8  # Of 4, each would hold 16 GiB of weights, more than a T4 has.
    (with_two,) = fe.plan(wide, target="2xA100-40GB", device_map="balanced").points
    assert found["A100-40GB"].headroom == min((d.headroom for d in with_two.devices), key=lambda h: h.lower)


def test_two_devices_have_each_their_own_share_and_a_transfer_counts_on_both():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(1024, 4096, bias=False)
            self.second = nn.Linear(4096, 1024, bias=False)

        def forward(self, x):
            return self.second(self.first(x))

    def two():
        return Two(), (torch.zeros(64, 1024),)

    report = fe.plan(two, target="2xH100", device_map="first=cuda:0,second=cuda:1")

    first, second = report.points[0].devices
    assert first.weights == second.weights == 4096 * 1024 * 4
    assert first.activations == 64 * 4096 * 4
    assert second.activations == 64 * (4096 + 1024) * 4


def test_the_memory_of_the_host_is_not_assumed():
    report = fe.plan(factory)

    assert report.points[0].fit == "unknown"
    with pytest.raises(fe.InvalidValue, match="--max batch: the memory size of cpu is not known"):
        fe.plan(factory, maximum=["batch"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "--batch 0: give a number of 1 or more"),
        ({"maximum": ["size"]}, "--max size: write batch or context"),
        ({"method": "decode"}, "--method applies to archives"),
        ({"workload": "decode"}, "--workload decode supports hf: sources"),
        ({"target": "2xNoSuch"}, "NoSuch"),
        ({"batch": 1}, "input_ids.0 = 1 is outside the range that the program accepts"),
    ],
)
def test_bad_usage_is_one_line(options, words):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        fe.plan(factory, **options)

    assert words in str(refused.value)


class Scaled(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else torch.cat([x, x])


def test_a_condition_is_assumed():
    line = Scaled.forward.__code__.co_firstlineno + 1
    sizes = [
        fe.plan(lambda: (Scaled(), (torch.zeros(2, 1024),)), assume=[f"test_plan.py:{line}={answer}"])
        for answer in ("true", "False")
    ]

    assert [f"test_plan.py:{line} is assumed" in report.assumptions[-1] for report in sizes] == [True, True]
    without, with_copy = (report.points[0].devices[0].tensor_bytes for report in sizes)
    assert with_copy - without > 2 * 1024 * 4
    with pytest.raises(fe.InvalidValue, match="--assume does not apply"):
        fe.plan(lambda: (Scaled(), (torch.zeros(2, 1024),)), assume=[f"test_plan.py:{line}=1"], eager=True)


def test_options_of_models_are_refused_for_programs(program):
    with pytest.raises(fe.InvalidValue, match="apply to models, not to programs"):
        fe.plan(program, assume=["model.py:1=True"])
    with pytest.raises(fe.InvalidValue, match="apply to models, not to programs"):
        fe.plan(program, dtype="float16")
    with pytest.raises(fe.InvalidValue, match="--method applies to archives, not to programs"):
        fe.plan(program, method="decode")


def test_a_program_is_not_planned_for_devices_that_the_target_lacks():
    two = fe.export(lambda: (nn.Linear(4, 4), (torch.zeros(2, 4),)), target="2xH100", device_map="cuda:1")

    with pytest.raises(fe.InvalidValue, match="has no device 'cuda:1'"):
        fe.plan(two, target="H100")


def test_a_model_that_does_not_export_is_an_error_that_names_the_command():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    def branches():
        return Branches(), (torch.zeros(2, 4),)

    with pytest.raises(
        fe.PlanError, match=r"does not export for H100: .*`fakexport check` with the same source"
    ):
        fe.plan(branches, target="H100")


MOVING = """
import os
import torch
from torch import nn

def factory():
    os.chdir("/")
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (torch.zeros(3, 4),)
"""


def test_a_device_map_is_read_once_although_the_model_changes_the_folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MOVING)
    (tmp_path / "map.json").write_text('{"0": "cuda:0", "": "cuda:1"}')
    monkeypatch.chdir(tmp_path)

    report = fe.plan("model.py:factory", target="2xH100", device_map="map.json", batch=(2, 4), eager=True)

    assert report.device_map == "map.json"
    assert [[d.weights for d in point.eager] for point in report.points] == [[80, 80], [80, 80]]
