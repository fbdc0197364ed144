"""Example inputs in an archive, without which stock torch does not check conditions on inputs."""

from __future__ import annotations

import io

import torch
from torch.export import ExportedProgram

from fakexport.program import stand_in_inputs, unbound_names


def sample_inputs_record(program: ExportedProgram) -> bytes:
    """Return the record of a program with weights: zeros of one element each, in plain containers.

    It is a pickle, for `torch.export.load` alone, which reads it without running code (`weights_only`);
    fakexport never reads it. It contains no values of the real example inputs. Empty for a program
    without weights, which stock torch cannot run.
    """
    if unbound_names(program):
        return b""
    content = io.BytesIO()
    torch.save(stand_in_inputs(program, device="cpu"), content)
    return content.getvalue()
