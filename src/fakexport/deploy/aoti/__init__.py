"""AOTInductor: a program compiled to native code."""

from .compiling import compile_aoti
from .host import check_devices, on_target
from .opened_package import AotiArtifact, open_aoti
from .planned_buffers import planned_buffers, why_unplanned
