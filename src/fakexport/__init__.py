"""Will this model export to the program that my target devices need, and can I ship that program?

Importing this package does not import torch: a public name is fetched from its room on first use.
"""

import importlib
from typing import TYPE_CHECKING

from fakexport._version import __version__ as __version__

if TYPE_CHECKING:
    from fakexport.archive import (
        Bundle,
        Manifest,
        WeightsLeftBehind,
        bind,
        load,
        load_bundle,
        save,
        save_bundle,
        verify_weights,
    )
    from fakexport.benchmark import bench
    from fakexport.capture import ModelNotBuilt, PartialProgram, TransformLost, UnboundConstants, export
    from fakexport.checking import check
    from fakexport.comparison import compare
    from fakexport.container import ArchiveError
    from fakexport.deploy import (
        Artifact,
        CompiledFile,
        CompileFailure,
        DeployError,
        LoadedProgram,
        UnsuitableInputs,
        compile,
        open_program,
        run,
    )
    from fakexport.devices import (
        DeviceProfile,
        NoVirtualDevices,
        ProfileError,
        Topology,
        device_profiles,
        emulate,
    )
    from fakexport.diagnostics import Diagnostic
    from fakexport.error import FakexportError, InvalidType, InvalidValue
    from fakexport.fake import (
        Built,
        MaterializeError,
        SubclassNotKept,
        UnreplayableRead,
        build,
        deferred_init,
        fake_mode,
        is_deferred,
        is_fake,
        materialize_module,
        materialize_tensor,
        meta_like,
        remember_value,
        value_of,
    )
    from fakexport.files import FileWriteError
    from fakexport.program import (
        DeviceListing,
        ModuleSummary,
        ProgramDifference,
        ProgramSummary,
        RetargetError,
        RetargetWarning,
        Transfer,
        UnboundProgram,
        diff,
        inspect_devices,
        retarget,
        transfers,
    )
    from fakexport.program import summary_of as summary
    from fakexport.python_source import PythonSource, PythonSourceError, source, write_source
    from fakexport.report import BenchReport, Comparison, Progress, Report, Verdict
    from fakexport.sources import SourceError
    from fakexport.weights import (
        BindError,
        Checkpoint,
        CheckpointError,
        WeightFinding,
        WeightsReport,
        WeightsWarning,
        open_checkpoint,
    )

__all__ = [
    "ArchiveError",
    "Artifact",
    "BenchReport",
    "BindError",
    "Built",
    "Bundle",
    "Checkpoint",
    "CheckpointError",
    "Comparison",
    "CompileFailure",
    "CompiledFile",
    "DeployError",
    "DeviceListing",
    "DeviceProfile",
    "Diagnostic",
    "FakexportError",
    "FileWriteError",
    "InvalidType",
    "InvalidValue",
    "LoadedProgram",
    "Manifest",
    "MaterializeError",
    "ModelNotBuilt",
    "ModuleSummary",
    "NoVirtualDevices",
    "PartialProgram",
    "ProfileError",
    "ProgramDifference",
    "ProgramSummary",
    "Progress",
    "PythonSource",
    "PythonSourceError",
    "Report",
    "RetargetError",
    "RetargetWarning",
    "SourceError",
    "SubclassNotKept",
    "Topology",
    "Transfer",
    "TransformLost",
    "UnboundConstants",
    "UnboundProgram",
    "UnreplayableRead",
    "UnsuitableInputs",
    "Verdict",
    "WeightFinding",
    "WeightsLeftBehind",
    "WeightsReport",
    "WeightsWarning",
    "bench",
    "bind",
    "build",
    "check",
    "compare",
    "compile",
    "deferred_init",
    "device_profiles",
    "diff",
    "emulate",
    "export",
    "fake_mode",
    "inspect_devices",
    "is_deferred",
    "is_fake",
    "load",
    "load_bundle",
    "materialize_module",
    "materialize_tensor",
    "meta_like",
    "open_checkpoint",
    "open_program",
    "remember_value",
    "retarget",
    "run",
    "save",
    "save_bundle",
    "source",
    "summary",
    "transfers",
    "value_of",
    "verify_weights",
    "write_source",
]

# The names that each room has; a test compares them with the imports above.
_ROOMS = {
    "archive": """
        Bundle Manifest WeightsLeftBehind bind load load_bundle save save_bundle verify_weights
    """,
    "benchmark": "bench",
    "capture": "ModelNotBuilt PartialProgram TransformLost UnboundConstants export",
    "checking": "check",
    "comparison": "compare",
    "container": "ArchiveError",
    "deploy": """
        Artifact CompileFailure CompiledFile DeployError LoadedProgram UnsuitableInputs compile
        open_program run
    """,
    "devices": "DeviceProfile NoVirtualDevices ProfileError Topology device_profiles emulate",
    "diagnostics": "Diagnostic",
    "error": "FakexportError InvalidType InvalidValue",
    "fake": """
        Built MaterializeError SubclassNotKept UnreplayableRead build deferred_init fake_mode
        is_deferred is_fake materialize_module materialize_tensor meta_like remember_value value_of
    """,
    "files": "FileWriteError",
    "program": """
        DeviceListing ModuleSummary ProgramDifference ProgramSummary RetargetError RetargetWarning
        Transfer UnboundProgram diff inspect_devices retarget transfers summary
    """,
    "python_source": "PythonSource PythonSourceError source write_source",
    "report": "BenchReport Comparison Progress Report Verdict",
    "sources": "SourceError",
    "weights": """
        BindError Checkpoint CheckpointError WeightFinding WeightsReport WeightsWarning open_checkpoint
    """,
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}
_RENAMED = {"summary": "summary_of"}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        room = importlib.import_module(f"{__name__}.{_HOMES[name]}")
        value = getattr(room, _RENAMED.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
