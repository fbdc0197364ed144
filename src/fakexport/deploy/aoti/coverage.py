"""Ask Inductor whether it takes a program that has no weights."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from torch.export import ExportedProgram

from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES
from fakexport.exporting.program import library_classes, library_operators, operator_name, walk

from ..artifact import DeployError
from ..composed_program import IN_PYTHON, composed
from ..coverage.covered import Covered, replacements
from ..signature import Signature
from ..unsupported import fallbacks_of
from .faults import refuse_sparse
from .gpu_compilation import compiled_for
from .graph import called_operators, input_orders
from .host import nvidia_gpu
from .stand_ins import weightless_archive, with_stand_ins


def cover_aoti(program: ExportedProgram) -> Covered:
    """Generate the code for a program without compiling it, which needs no C++ compiler."""
    rewrites = replacements(program, IN_PYTHON)
    program = composed(program, IN_PYTHON)
    refuse_sparse(program)
    Signature.of(program), input_orders(program)  # They raise for unsupported programs.
    foreign = (*library_operators(program), *library_classes(program))
    gpu = nvidia_gpu(program, None)
    if gpu is not None and foreign and not gpu.is_here:
        raise DeployError(gpu.refusal(foreign[0]))
    with tempfile.TemporaryDirectory(prefix="fakexport-aoti-", ignore_cleanup_errors=True) as folder:
        if gpu is None or foreign:
            called = called_operators(with_stand_ins(program), Path(folder))
        else:
            archive = weightless_archive(program)
            called = compiled_for(gpu.profile, archive, Path(folder, "gpu"), is_asked=True).called
    counts = Counter(called)
    own = [f"{name} ({n} x)" for name, n in counts.items() if name.partition(".")[0] in TORCH_NAMESPACES]
    notes = [f"calls torch's own kernels for {', '.join(own)}"] if own else []
    if gpu is not None:
        notes += ["the Triton kernels were generated, but not compiled"]
    outside = (
        (operator_name(visit.node), visit.node, "a library defines it, so the library must be loaded")
        for visit in walk(program)
        if operator_name(visit.node) in foreign
    )
    return Covered(rewrites, fallbacks_of(outside), "the kernel of the library that defines it", tuple(notes))
