"""The plan of training: sizes, classes of memory, what is assumed, and what is refused."""

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.planning import PlanError
from fakexport.report import render_plan

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
    assert device.activations == WEIGHTS  # What `_foreach_sqrt` returns.
    assert device.peak.node == "optimizer"


def test_sgd_keeps_nothing():
    assert device_of(factory, optimizer="sgd").optimizer == 0


def test_the_sizes_are_those_that_are_asked_for():
    report = fe.plan(factory, target="H100", workload="train", batch=(8, 16), context=256)

    assert [(point.batch, point.context) for point in report.points] == [(8, 256), (16, 256)]
    small, large = (point.devices[0] for point in report.points)
    logits = 8 * 256 * VOCABULARY * 4
    assert small.peak.node == "backward"
    assert large.activations - small.activations > 2 * logits


def test_a_layer_that_is_frozen_has_neither_gradient_nor_state():
    def frozen():
        model, inputs = factory()
        model.embed.requires_grad_(False)
        return model, inputs

    device = device_of(frozen)

    assert (device.weights, device.gradients, device.optimizer) == (WEIGHTS, WEIGHTS // 2, WEIGHTS)


def test_tied_weights_count_once():
    def tied():
        model, inputs = factory()
        model.head.weight = model.embed.weight
        return model, inputs

    device = device_of(tied)

    assert (device.weights, device.gradients, device.optimizer) == (WEIGHTS // 2, WEIGHTS // 2, WEIGHTS)


def test_a_model_over_two_devices_is_trained_on_both():
    (point,) = fe.plan(
        factory, target="2xH100", workload="train", device_map={"embed": "cuda:0", "head": "cuda:1"}
    ).points

    assert [device.optimizer for device in point.devices] == [WEIGHTS, WEIGHTS]


def test_a_model_in_eval_mode_is_planned_in_training_mode():
    def model():
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval(), (torch.zeros(4, 8),)

    report = fe.plan(model, target="H100", workload="train")

    assert "the model is in eval mode: it is planned in training mode" in report.assumptions


def test_the_text_names_the_optimizer_the_phase_and_the_loss():
    text = render_plan(fe.plan(factory, target="H100", workload="train", optimizer="adam"), width=200)

    assert "peak of two steps with Adam" in text
    assert "aten._foreach_sqrt.default (optimizer)" in text
    assert "the mean of the squares of its outputs" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maximum": ["batch"]}, "need a program: they do not apply"),
        ({"by_module": True}, "need a program: they do not apply"),
        ({"checkpointing": True}, "has no activation_checkpointing_enable"),
        ({"autocast": "float32"}, "write bfloat16 or float16"),
        ({"sizes": ["x.1=3"]}, "the model has no such input dimension: input_ids.0, input_ids.1"),
    ],
)
def test_bad_usage_is_one_line(options, words):
    with pytest.raises(ValueError, match=words) as error:
        fe.plan(factory, target="H100", workload="train", **options)

    assert "\n" not in str(error.value)


def test_eager_mode_keeps_what_frames_hold():
    class Kept(nn.Module):
        def forward(self, x):
            first = x + 1
            second = first * 2
            return second.exp() + 1

    def kept():
        return Kept(), (torch.zeros(1024, 256),)

    eager, program = (fe.plan(kept, target="H100", eager=is_eager) for is_eager in (True, False))

    assert (eager.execution, program.execution) == ("eager mode", "the program's module()")
    assert [report.points[0].devices[0].activations // 2**20 for report in (eager, program)] == [4, 2]


@pytest.mark.parametrize("options", [{"workload": "decode"}, {"maximum": ["batch"]}])
def test_eager_mode_has_no_program(options):
    with pytest.raises(ValueError, match="--eager"):
        fe.plan(factory, target="H100", eager=True, **options)


def test_options_of_training_need_training():
    with pytest.raises(ValueError, match="apply to --workload train"):
        fe.plan(factory, optimizer="sgd")


def test_a_model_that_branches_on_data_is_not_planned():
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(PlanError, match=r"--workload train: .* does not run on fake tensors"):
        device_of(lambda: (Branching(4, 4), (torch.zeros(2, 4),)))
