"""Models without data: fake tensors, construction, the record of how each tensor was made, and placement."""

from .build import Built, build
from .deferred import deferred_init, is_deferred
from .materialize import MaterializeError, materialize_module, materialize_tensor
from .mode import fake_mode, is_fake, meta_like
from .place import place
from .placement import DeviceMap, Placement
from .provenance import Dependence, DependenceKind, Provenance
from .recording import Recording
from .replay import UnreplayableRead
from .subclasses import SubclassNotKept, check_input, unregistered_wrapper
from .transfers import Transfers, install_transfers
from .values import hand_on_value, remember_value, value_of, withhold_value

__all__ = [
    "Built",
    "Dependence",
    "DependenceKind",
    "DeviceMap",
    "MaterializeError",
    "Placement",
    "Provenance",
    "Recording",
    "SubclassNotKept",
    "Transfers",
    "UnreplayableRead",
    "build",
    "check_input",
    "deferred_init",
    "fake_mode",
    "hand_on_value",
    "install_transfers",
    "is_deferred",
    "is_fake",
    "materialize_module",
    "materialize_tensor",
    "meta_like",
    "place",
    "remember_value",
    "unregistered_wrapper",
    "value_of",
    "withhold_value",
]
