"""Will this model export to the program that my target devices need, and can I ship that program?

Importing this package does not import torch: a public name is imported from its package on first use.
"""

import importlib
import threading
from typing import TYPE_CHECKING

from fakexport._lazy_face import of_module
from fakexport._version import __version__ as __version__

if TYPE_CHECKING:
    from fakexport.archive import Bundle as Bundle
    from fakexport.archive import Manifest as Manifest
    from fakexport.archive import WeightsDroppedWarning as WeightsDroppedWarning
    from fakexport.archive import bind as bind
    from fakexport.archive import load as load
    from fakexport.archive import load_bundle as load_bundle
    from fakexport.archive import save as save
    from fakexport.archive import save_bundle as save_bundle
    from fakexport.archive import verify_weights as verify_weights
    from fakexport.archive.weights import BindError as BindError
    from fakexport.archive.weights import BuffersReport as BuffersReport
    from fakexport.archive.weights import Checkpoint as Checkpoint
    from fakexport.archive.weights import CheckpointError as CheckpointError
    from fakexport.archive.weights import UncheckedBuffer as UncheckedBuffer
    from fakexport.archive.weights import WeightFinding as WeightFinding
    from fakexport.archive.weights import WeightsReport as WeightsReport
    from fakexport.archive.weights import WeightsWarning as WeightsWarning
    from fakexport.archive.weights import WrongBuffer as WrongBuffer
    from fakexport.archive.weights import open_checkpoint as open_checkpoint
    from fakexport.archive.weights import verify_buffers as verify_buffers
    from fakexport.checking import check as check
    from fakexport.deploy import Artifact as Artifact
    from fakexport.deploy import CompiledFile as CompiledFile
    from fakexport.deploy import CompileFailure as CompileFailure
    from fakexport.deploy import DeployError as DeployError
    from fakexport.deploy import Generated as Generated
    from fakexport.deploy import Generator as Generator
    from fakexport.deploy import InputMismatchError as InputMismatchError
    from fakexport.deploy import LoadedProgram as LoadedProgram
    from fakexport.deploy import Sampling as Sampling
    from fakexport.deploy import adapter_inputs as adapter_inputs
    from fakexport.deploy import compile as compile
    from fakexport.deploy import generate as generate
    from fakexport.deploy import open_program as open_program
    from fakexport.deploy import run as run
    from fakexport.deploy import runtime_verdict as runtime_verdict
    from fakexport.deploy.benchmark import bench as bench
    from fakexport.deploy.comparison import compare as compare
    from fakexport.emulation.devices import DeviceProfile as DeviceProfile
    from fakexport.emulation.devices import EmulationUnavailableError as EmulationUnavailableError
    from fakexport.emulation.devices import ProfileError as ProfileError
    from fakexport.emulation.devices import Topology as Topology
    from fakexport.emulation.devices import device_profiles as device_profiles
    from fakexport.emulation.devices import emulate as emulate
    from fakexport.emulation.fake import DataReadError as DataReadError
    from fakexport.emulation.fake import FakeModel as FakeModel
    from fakexport.emulation.fake import MaterializeError as MaterializeError
    from fakexport.emulation.fake import UnsupportedSubclassError as UnsupportedSubclassError
    from fakexport.emulation.fake import build as build
    from fakexport.emulation.fake import constant_value as constant_value
    from fakexport.emulation.fake import deferred_init as deferred_init
    from fakexport.emulation.fake import fake_mode as fake_mode
    from fakexport.emulation.fake import is_deferred as is_deferred
    from fakexport.emulation.fake import is_fake as is_fake
    from fakexport.emulation.fake import materialize_module as materialize_module
    from fakexport.emulation.fake import materialize_tensor as materialize_tensor
    from fakexport.emulation.fake import meta_like as meta_like
    from fakexport.emulation.fake import set_constant_value as set_constant_value
    from fakexport.error import FakexportError as FakexportError
    from fakexport.error import InvalidType as InvalidType
    from fakexport.error import InvalidValue as InvalidValue
    from fakexport.exporting.capture import FunctorchError as FunctorchError
    from fakexport.exporting.capture import LostWriteError as LostWriteError
    from fakexport.exporting.capture import ModelNotBuilt as ModelNotBuilt
    from fakexport.exporting.capture import PartialExportWarning as PartialExportWarning
    from fakexport.exporting.capture import UnboundConstants as UnboundConstants
    from fakexport.exporting.capture import components as components
    from fakexport.exporting.capture import export as export
    from fakexport.exporting.interface import ProgramDifference as ProgramDifference
    from fakexport.exporting.interface import Transfer as Transfer
    from fakexport.exporting.program import DeviceListing as DeviceListing
    from fakexport.exporting.program import ModuleSummary as ModuleSummary
    from fakexport.exporting.program import ProgramSummary as ProgramSummary
    from fakexport.exporting.program import RetargetError as RetargetError
    from fakexport.exporting.program import RetargetWarning as RetargetWarning
    from fakexport.exporting.program import WeightsNotBoundError as WeightsNotBoundError
    from fakexport.exporting.program import diff as diff
    from fakexport.exporting.program import inspect_devices as inspect_devices
    from fakexport.exporting.program import retarget as retarget
    from fakexport.exporting.program import summary_of
    from fakexport.exporting.program import transfers as transfers
    from fakexport.exporting.program import without_checks as without_checks
    from fakexport.exporting.python_source import PythonSource as PythonSource
    from fakexport.exporting.python_source import PythonSourceError as PythonSourceError
    from fakexport.exporting.python_source import to_python as to_python
    from fakexport.exporting.python_source import write_source as write_source
    from fakexport.exporting.stages import StageError as StageError
    from fakexport.files import FileWriteError as FileWriteError
    from fakexport.files.container import ArchiveError as ArchiveError
    from fakexport.files.processes import SharedProcess as SharedProcess
    from fakexport.models.sources import SourceError as SourceError
    from fakexport.planning import PlanError as PlanError
    from fakexport.planning import plan as plan
    from fakexport.planning import split as split
    from fakexport.report import BenchReport as BenchReport
    from fakexport.report import Comparison as Comparison
    from fakexport.report import PlanReport as PlanReport
    from fakexport.report import Progress as Progress
    from fakexport.report import Report as Report
    from fakexport.report import RuntimeVerdict as RuntimeVerdict
    from fakexport.report import Verdict as Verdict
    from fakexport.rules.diagnostics import Diagnostic as Diagnostic

    summary = summary_of

# The public names of each top-level package; a test compares them with the imports above.
_ROOMS = {
    "archive": """
        Bundle Manifest WeightsDroppedWarning bind load load_bundle save save_bundle verify_weights
    """,
    "deploy.benchmark": "bench",
    "exporting.capture": """
        ModelNotBuilt PartialExportWarning LostWriteError FunctorchError UnboundConstants components export
    """,
    "checking": "check",
    "deploy.comparison": "compare",
    "files.container": "ArchiveError",
    "deploy": """
        Artifact CompileFailure CompiledFile DeployError Generated Generator LoadedProgram Sampling
        InputMismatchError adapter_inputs compile generate open_program run runtime_verdict
    """,
    "emulation.devices": """
        DeviceProfile EmulationUnavailableError ProfileError Topology device_profiles emulate
    """,
    "rules.diagnostics": "Diagnostic",
    "error": "FakexportError InvalidType InvalidValue",
    "emulation.fake": """
        FakeModel MaterializeError UnsupportedSubclassError DataReadError build deferred_init fake_mode
        is_deferred is_fake materialize_module materialize_tensor meta_like set_constant_value constant_value
    """,
    "files": "FileWriteError",
    "planning": "PlanError plan split",
    "files.processes": "SharedProcess",
    "exporting.interface": "ProgramDifference Transfer",
    "exporting.program": """
        DeviceListing ModuleSummary ProgramSummary RetargetError RetargetWarning
        WeightsNotBoundError diff inspect_devices retarget transfers summary
        without_checks
    """,
    "exporting.stages": "StageError",
    "exporting.python_source": "PythonSource PythonSourceError to_python write_source",
    "report": "BenchReport Comparison PlanReport Progress Report RuntimeVerdict Verdict",
    "models.sources": "SourceError",
    "archive.weights": """
        BindError BuffersReport Checkpoint CheckpointError UncheckedBuffer WeightFinding WeightsReport
        WeightsWarning WrongBuffer open_checkpoint verify_buffers
    """,
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}
__all__ = sorted(_HOMES)
_importing = threading.RLock()
_RENAMED = {"summary": "summary_of"}


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept misspelled names

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _importing:  # A second thread would otherwise see half-initialized modules.
            value = of_module(f"{__name__}.{_HOMES[name]}", _RENAMED.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
