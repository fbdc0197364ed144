"""A detector of transformers, with the objects above a threshold as its output.

    fakexport check examples/detection.py:detector --dynamic auto

The number of objects depends on the image, so the sizes of the outputs are data-dependent: they contain
an unbacked symbol, which `nonzero` creates.
"""

import torch
from torch import nn


class Detections(nn.Module):
    """The detections in a batch of images.

    Args:
        detector: Returns `logits` and `pred_boxes`, as the DETR family of transformers does.
        has_background: Whether the last class is "no object" (DETR, YOLOS). Otherwise each class has a score
            of its own (RT-DETR, Deformable DETR).
    """

    def __init__(self, detector: nn.Module, *, has_background: bool) -> None:
        super().__init__()
        self.detector = detector
        self.has_background = has_background

    def forward(self, pixel_values: torch.Tensor, threshold: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.detector(pixel_values)
        logits = found.logits
        scores = logits.softmax(-1)[..., :-1] if self.has_background else logits.sigmoid()
        scores, labels = scores.max(-1)
        image, query = (scores > threshold).nonzero(as_tuple=True)
        middle, size = found.pred_boxes[image, query].split(2, dim=-1)
        return {
            "image": image,
            "label": labels[image, query],
            "score": scores[image, query],
            "box": torch.cat([middle - size / 2, middle + size / 2], dim=-1),
        }


def detector() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A small YOLOS with random weights, and example inputs."""
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = YolosConfig(image_size=[32, 32], patch_size=8, num_detection_tokens=8, **sizes)
    model = YolosForObjectDetection(config).eval()
    return Detections(model, has_background=True), (torch.zeros(2, 3, 32, 32), torch.tensor(0.5))
