"""Will this model export to the program that my target devices need, and can I ship that program?

Importing this package does not import torch: a public name is fetched from its room on first use.
"""

import importlib
import threading
from typing import TYPE_CHECKING

from fakexport._version import __version__ as __version__

if TYPE_CHECKING:
    from fakexport.archive import Bundle as Bundle
    from fakexport.archive import Manifest as Manifest
    from fakexport.archive import WeightsLeftBehind as WeightsLeftBehind
    from fakexport.archive import bind as bind
    from fakexport.archive import load as load
    from fakexport.archive import load_bundle as load_bundle
    from fakexport.archive import save as save
    from fakexport.archive import save_bundle as save_bundle
    from fakexport.archive import verify_weights as verify_weights
    from fakexport.benchmark import bench as bench
    from fakexport.capture import ModelNotBuilt as ModelNotBuilt
    from fakexport.capture import PartialProgram as PartialProgram
    from fakexport.capture import TransformLost as TransformLost
    from fakexport.capture import UnboundConstants as UnboundConstants
    from fakexport.capture import WriteLost as WriteLost
    from fakexport.capture import components as components
    from fakexport.capture import export as export
    from fakexport.checking import check as check
    from fakexport.comparison import compare as compare
    from fakexport.container import ArchiveError as ArchiveError
    from fakexport.deploy import Artifact as Artifact
    from fakexport.deploy import CompiledFile as CompiledFile
    from fakexport.deploy import CompileFailure as CompileFailure
    from fakexport.deploy import DeployError as DeployError
    from fakexport.deploy import Generated as Generated
    from fakexport.deploy import Generator as Generator
    from fakexport.deploy import LoadedProgram as LoadedProgram
    from fakexport.deploy import Sampling as Sampling
    from fakexport.deploy import UnsuitableInputs as UnsuitableInputs
    from fakexport.deploy import adapter_inputs as adapter_inputs
    from fakexport.deploy import compile as compile
    from fakexport.deploy import generate as generate
    from fakexport.deploy import open_program as open_program
    from fakexport.deploy import run as run
    from fakexport.devices import DeviceProfile as DeviceProfile
    from fakexport.devices import NoVirtualDevices as NoVirtualDevices
    from fakexport.devices import ProfileError as ProfileError
    from fakexport.devices import Topology as Topology
    from fakexport.devices import device_profiles as device_profiles
    from fakexport.devices import emulate as emulate
    from fakexport.diagnostics import Diagnostic as Diagnostic
    from fakexport.error import FakexportError as FakexportError
    from fakexport.error import InvalidType as InvalidType
    from fakexport.error import InvalidValue as InvalidValue
    from fakexport.fake import Built as Built
    from fakexport.fake import MaterializeError as MaterializeError
    from fakexport.fake import SubclassNotKept as SubclassNotKept
    from fakexport.fake import UnreplayableRead as UnreplayableRead
    from fakexport.fake import build as build
    from fakexport.fake import deferred_init as deferred_init
    from fakexport.fake import fake_mode as fake_mode
    from fakexport.fake import is_deferred as is_deferred
    from fakexport.fake import is_fake as is_fake
    from fakexport.fake import materialize_module as materialize_module
    from fakexport.fake import materialize_tensor as materialize_tensor
    from fakexport.fake import meta_like as meta_like
    from fakexport.fake import remember_value as remember_value
    from fakexport.fake import value_of as value_of
    from fakexport.files import FileWriteError as FileWriteError
    from fakexport.planning import PlanError as PlanError
    from fakexport.planning import plan as plan
    from fakexport.processes import SharedProcess as SharedProcess
    from fakexport.program import DeviceListing as DeviceListing
    from fakexport.program import ModuleSummary as ModuleSummary
    from fakexport.program import ProgramDifference as ProgramDifference
    from fakexport.program import ProgramSummary as ProgramSummary
    from fakexport.program import RetargetError as RetargetError
    from fakexport.program import RetargetWarning as RetargetWarning
    from fakexport.program import Transfer as Transfer
    from fakexport.program import UnboundProgram as UnboundProgram
    from fakexport.program import diff as diff
    from fakexport.program import inspect_devices as inspect_devices
    from fakexport.program import retarget as retarget
    from fakexport.program import summary_of
    from fakexport.program import transfers as transfers
    from fakexport.program import without_checks as without_checks
    from fakexport.python_source import PythonSource as PythonSource
    from fakexport.python_source import PythonSourceError as PythonSourceError
    from fakexport.python_source import source as source
    from fakexport.python_source import write_source as write_source
    from fakexport.report import BenchReport as BenchReport
    from fakexport.report import Comparison as Comparison
    from fakexport.report import PlanReport as PlanReport
    from fakexport.report import Progress as Progress
    from fakexport.report import Report as Report
    from fakexport.report import Verdict as Verdict
    from fakexport.sources import SourceError as SourceError
    from fakexport.weights import BindError as BindError
    from fakexport.weights import BuffersReport as BuffersReport
    from fakexport.weights import Checkpoint as Checkpoint
    from fakexport.weights import CheckpointError as CheckpointError
    from fakexport.weights import UncheckedBuffer as UncheckedBuffer
    from fakexport.weights import WeightFinding as WeightFinding
    from fakexport.weights import WeightsReport as WeightsReport
    from fakexport.weights import WeightsWarning as WeightsWarning
    from fakexport.weights import WrongBuffer as WrongBuffer
    from fakexport.weights import open_checkpoint as open_checkpoint
    from fakexport.weights import verify_buffers as verify_buffers

    summary = summary_of

# The names that each room has; a test compares them with the imports above.
_ROOMS = {
    "archive": """
        Bundle Manifest WeightsLeftBehind bind load load_bundle save save_bundle verify_weights
    """,
    "benchmark": "bench",
    "capture": """
        ModelNotBuilt PartialProgram WriteLost TransformLost UnboundConstants components export
    """,
    "checking": "check",
    "comparison": "compare",
    "container": "ArchiveError",
    "deploy": """
        Artifact CompileFailure CompiledFile DeployError Generated Generator LoadedProgram Sampling
        UnsuitableInputs adapter_inputs compile generate open_program run
    """,
    "devices": "DeviceProfile NoVirtualDevices ProfileError Topology device_profiles emulate",
    "diagnostics": "Diagnostic",
    "error": "FakexportError InvalidType InvalidValue",
    "fake": """
        Built MaterializeError SubclassNotKept UnreplayableRead build deferred_init fake_mode
        is_deferred is_fake materialize_module materialize_tensor meta_like remember_value value_of
    """,
    "files": "FileWriteError",
    "planning": "PlanError plan",
    "processes": "SharedProcess",
    "program": """
        DeviceListing ModuleSummary ProgramDifference ProgramSummary RetargetError RetargetWarning
        Transfer UnboundProgram diff inspect_devices retarget transfers summary
        without_checks
    """,
    "python_source": "PythonSource PythonSourceError source write_source",
    "report": "BenchReport Comparison PlanReport Progress Report Verdict",
    "sources": "SourceError",
    "weights": """
        BindError BuffersReport Checkpoint CheckpointError UncheckedBuffer WeightFinding WeightsReport
        WeightsWarning WrongBuffer open_checkpoint verify_buffers
    """,
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}
__all__ = sorted(_HOMES)
_importing = threading.RLock()
_RENAMED = {"summary": "summary_of"}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _importing:  # Two threads that import torch's packages at the same time get unfinished ones.
            room = importlib.import_module(f"{__name__}.{_HOMES[name]}")
            value = getattr(room, _RENAMED.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
