"""AOTInductor: compile a program to native code."""

from .compiling import compile_aoti, compile_ranges
from .faults import failure_of
from .graph import example_arguments, graph_of
from .host import absent_gpu, device_type, each_target, on_target
from .opened_package import AotiArtifact, open_aoti
from .stand_ins import with_own_weights, with_stand_ins
