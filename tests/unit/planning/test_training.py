"""The plan of training: sizes, classes of memory, what is assumed, and what is refused."""

import json

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.planning import PlanError
from fakexport.planning.memory.storage import KINDS
from fakexport.report import plan_trace, render_plan, render_plan_chart
from fakexport.report.charts import COLORS

WIDTH, VOCABULARY = 256, 4096
WEIGHTS = 2 * VOCABULARY * WIDTH * 4


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        return self.head(self.embed(input_ids))


def factory():
    return Head(), (torch.zeros(2, 16, dtype=torch.long),)


def device_of(source, **options):
    (point,) = fe.plan(source, target="H100", workload="train", **options).points
    return point.devices[0]


def test_weights_have_gradients_and_two_states_each():
    device = device_of(factory)

    assert (device.weights, device.gradients, device.optimizer) == (WEIGHTS, WEIGHTS, 2 * WEIGHTS)
    assert (device.activations, device.temporaries) == (0, WEIGHTS)  # What `_foreach_sqrt` returns.
    assert device.peak.node == "optimizer"


def test_the_sizes_are_those_that_are_asked_for():
    report = fe.plan(factory, target="H100", workload="train", batch=(8, 16), context=256)

    assert [(point.batch, point.context) for point in report.points] == [(8, 256), (16, 256)]
    small, large = (point.devices[0] for point in report.points)
    logits = 8 * 256 * VOCABULARY * 4
    assert small.peak.node == "backward"
    grown = [getattr(large, kind) - getattr(small, kind) for kind in ("activations", "temporaries")]
    assert min(grown) >= logits  # The logits, which are kept, and their gradients, which are not.


def test_a_model_over_two_devices_is_trained_on_both():
    (point,) = fe.plan(
        factory, target="2xH100", workload="train", device_map={"embed": "cuda:0", "head": "cuda:1"}
    ).points

    assert [device.optimizer for device in point.devices] == [WEIGHTS, WEIGHTS]


def test_a_model_in_eval_mode_is_planned_in_training_mode():
    def model():
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval(), (torch.zeros(4, 8),)

    report = fe.plan(model, target="H100", workload="train")

    assert "the model is in eval mode, but the plan is for training mode" in report.assumptions


def test_the_text_names_the_optimizer_the_phase_and_the_loss():
    text = render_plan(fe.plan(factory, target="H100", workload="train", optimizer="adam"), width=200)

    assert "peak of two steps with Adam" in text
    assert "aten._foreach_sqrt.default (optimizer)" in text
    assert "the mean square of its outputs" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maximum": ["batch"]}, "do not apply to --workload train"),
        ({"by_module": True}, "do not apply to --workload train"),
        ({"bounds": ["u0=4"]}, "do not apply to --workload train"),
        ({"eager": True}, "--eager does not apply to --workload train"),
        ({"checkpointing": True}, "has no activation_checkpointing_enable"),
        ({"autocast": "float32"}, "write bfloat16 or float16"),
        ({"sizes": ["x.1=3"]}, "the model has no such input dimension; it has input_ids.0, input_ids.1"),
    ],
)
def test_bad_usage_is_one_line(options, words):
    with pytest.raises(ValueError, match=words) as error:
        fe.plan(factory, target="H100", workload="train", **options)

    assert "\n" not in str(error.value)


class Kept(nn.Module):
    def forward(self, x):
        first = x + 1
        second = first * 2
        return second.exp() + 1


def kept():
    return Kept(), (torch.zeros(1024, 256),)


def test_eager_mode_keeps_what_frames_hold_and_is_next_to_the_program():
    report = fe.plan(kept, target="H100", eager=True, timeline=True)

    (point,) = report.points
    (program,), (eager,) = point.devices, point.eager
    assert [device.activations // 2**20 for device in (program, eager)] == [2, 4]
    assert point.devices == fe.plan(kept, target="H100").points[0].devices
    assert report.execution == "the program's module() and eager mode"
    assert "peak of the program's module() and of eager mode" in render_plan(report, width=200)
    held = {step.is_eager: 0 for step in report.timeline}
    for step in report.timeline:
        held[step.is_eager] = max(held[step.is_eager], sum(step.bytes_by_kind.values()))
    assert held == {False: program.tensor_bytes, True: eager.tensor_bytes}


def test_the_timelines_of_both_have_panels_and_counters_of_their_own():
    pytest.importorskip("matplotlib")
    report = fe.plan(kept, target="H100", eager=True, timeline=True)

    named = [event["args"] for event in json.loads(plan_trace(report))["traceEvents"] if event["ph"] == "M"]
    drawn = render_plan_chart(report, format_="svg").decode()

    assert named == [{"name": "cuda:0"}, {"name": "cuda:0 in eager mode"}]
    assert "cuda:0 H100-80GB: 3.0 MiB of tensors" in drawn
    assert "cuda:0 H100-80GB in eager mode: 5.0 MiB of tensors" in drawn


def test_each_kind_of_storage_has_a_color_in_charts():
    assert set(COLORS) == set(KINDS)


def test_eager_mode_is_alone_where_there_is_no_program():
    class Graphless(nn.Module):
        def forward(self, x):
            torch._dynamo.graph_break()
            if torch.compiler.is_exporting():
                raise RuntimeError("not exported")
            return x + 1

    report = fe.plan(lambda: (Graphless(), (torch.zeros(1024, 256),)), target="H100", eager=True)

    (point,) = report.points
    assert (point.devices, len(point.eager), report.execution) == ((), 1, "eager mode")
    assert any(text.startswith("the program: ") for text in report.left_out)
    assert "peak of cuda:0 in eager mode: aten.add.Tensor" in render_plan(report, width=200)


def test_eager_mode_takes_sizes_that_the_program_does_not():
    report = fe.plan(kept, target="H100", eager=True, batch=(1, 4))

    assert [(point.batch, len(point.devices), len(point.eager)) for point in report.points] == [
        (1, 0, 1),
        (4, 1, 1),
    ]
    assert any("x.0 = 1 is outside the range that the program accepts" in text for text in report.left_out)


def test_a_placement_has_room_for_eager_mode_too():
    pytest.importorskip("accelerate")
    report = fe.plan(kept, target="H100", eager=True, device_map="auto")

    assert report.device_map == "auto"
    assert [len(report.points[0].devices), len(report.points[0].eager)] == [1, 1]


@pytest.mark.parametrize("options", [{"workload": "decode"}, {"maximum": ["batch"]}, {"smallest": True}])
def test_what_eager_mode_does_not_answer_is_refused(options):
    with pytest.raises(ValueError, match=r"not apply to --|--eager does not apply to"):
        fe.plan(factory, target="H100", eager=True, **options)


def test_options_of_training_need_training():
    with pytest.raises(ValueError, match="apply only to --workload train"):
        fe.plan(factory, optimizer="sgd")


def test_a_model_that_branches_on_data_is_not_planned():
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(PlanError, match=r"--workload train: .* does not run on fake tensors"):
        device_of(lambda: (Branching(4, 4), (torch.zeros(2, 4),)))
