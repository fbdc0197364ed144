"""Import this module to do what a process does once: lazy imports, and the first export and check.

Processes forked afterwards start warm, which saves each of them a second.
"""

import torch

import fakexport as fe


def _model() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return torch.nn.Linear(1, 1), (torch.zeros(2, 1),)


fe.export(_model, dynamic_shapes="auto")
fe.check(_model)
