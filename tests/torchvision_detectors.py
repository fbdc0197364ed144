"""Compare the program of a torchvision detector with eager mode, where it finds none, one and many objects.

    python -m tests.torchvision_detectors NAME [FOLDER]

FOLDER contains torchvision, if it is not installed. PyPI has only torchvision's builds for CUDA, which lack
their operators next to a torch for CPUs: NMS is computed in Python then. torchvision itself computes RoI
align in Python where it lacks the operator. Both are the same for the program and eager mode.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import fakexport as fe

_CLASSES = 91


def main() -> int:
    name, *folder = sys.argv[1:]
    sys.path[:0] = folder
    library = operators_in_python() if folder else None
    program = fe.export(f"torchvision:{name}", target="cpu")
    image = torch.rand(3, *sizes_of(program), generator=torch.Generator().manual_seed(1))
    model = built(name, image)
    for bias in biases(model, image):
        wanted, found = (each[0] for each in results(model, program, image, bias))
        print(len(wanted["scores"]), "objects")
        for key, value in wanted.items():
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-3)
    del library
    return 0


def operators_in_python() -> torch.library.Library:
    """Define the operators that importing torchvision needs."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", non_maximum_suppression, "CPU")
    import torchvision

    torchvision.ops.boxes._assert_has_ops = lambda: None
    return library


def non_maximum_suppression(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    left = scores.sort(stable=True, descending=True).indices
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        corner, other = boxes[best], boxes[left]
        sides = (torch.minimum(corner[2:], other[:, 2:]) - torch.maximum(corner[:2], other[:, :2])).clamp(
            min=0
        )
        shared = sides.prod(1)
        areas = (corner[2:] - corner[:2]).prod() + (other[:, 2:] - other[:, :2]).prod(1)
        left = left[shared / (areas - shared) <= threshold]
    return torch.stack(kept) if kept else left


def built(name: str, image: Tensor) -> nn.Module:
    """Return the model with scores far enough apart that rounding does not change their order."""
    from torchvision.models import get_model_builder

    torch.manual_seed(0)
    builder = get_model_builder(name)
    model = builder(
        **{key: None for key in inspect.signature(builder).parameters if key.startswith("weights")}
    )
    model.eval()
    hooks = [layer.register_forward_hook(spread) for layer in last_layers(model)]
    with torch.no_grad():
        model([image])
    for hook in hooks:
        hook.remove()
    return model


def spread(layer: Any, args: Any, computed: Tensor) -> Tensor:
    """Scale the weight so that the scores have a standard deviation of 4, and note their mean.

    A layer may be called for several resolutions: the first one decides.
    """
    if hasattr(layer, "mean_score"):
        return computed
    factor = 4 / computed.std()
    layer.weight.mul_(factor)
    layer.mean_score = computed.mean() * factor
    return computed * factor


def last_layers(model: nn.Module) -> list[Any]:
    """Return the layers that compute the scores of classes."""
    return [
        layer
        for name, layer in model.named_modules()
        if any(part in name for part in ("cls_score", "cls_logits", "classification_head.module_list"))
        and getattr(layer, "bias", None) is not None
        and len(layer.bias) % _CLASSES == 0
    ]


def set_bias(model: nn.Module, bias: float) -> None:
    """Add to the score of the background, or where a model has none, subtract from all scores."""
    with torch.no_grad():
        for layer in last_layers(model):
            classes = layer.bias.zero_().view(-1, _CLASSES)
            if has_background(model):
                classes[:, 0] = bias
            else:
                classes[:] = -bias - layer.mean_score


def has_background(model: Any) -> bool:
    return not hasattr(model, "head") or hasattr(model.head.classification_head, "module_list")


def biases(model: nn.Module, image: Tensor) -> list[float]:
    """Return biases that leave many objects, one, and none. One is left out if rounding decides on it."""
    # Without a background, scores above this would round to 1 for many boxes, and have no order.
    many, none = (-20.0 if has_background(model) else 0.0), 1e4
    low, high = many, 60.0
    for _ in range(12):
        bias = (low + high) / 2
        set_bias(model, bias)
        with torch.no_grad():
            count = len(model([image])[0]["scores"])
        if count == 1:
            return [many, bias, none]
        low, high = (bias, high) if count else (low, bias)
    return [many, none]


def results(model: nn.Module, program: Any, image: Tensor, bias: float) -> tuple[Any, Any]:
    """Return the results of eager mode and the program.

    torchvision chooses between two forms of NMS by the number of boxes. They order equal scores differently.
    Eager mode always uses the form that the program has.
    """
    from torchvision.ops import boxes

    set_bias(model, bias)
    bound = fe.bind(program, dict(model.state_dict()))
    form = mock.patch.object(boxes, "batched_nms", boxes._batched_nms_coordinate_trick)
    with torch.no_grad(), form:
        return model([image]), bound.module()([image])


def sizes_of(program: Any) -> tuple[int, ...]:
    (name,) = program.graph_signature.user_inputs
    (node,) = (node for node in program.graph.nodes if node.name == name)
    return tuple(node.meta["val"].shape[1:])


if __name__ == "__main__":
    raise SystemExit(main())
