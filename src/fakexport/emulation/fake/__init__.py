"""Fake models: fake mode, construction, placement, and materialization."""

from fakexport.emulation.history import DataReadError, constant_value, set_constant_value

from .build import FakeModel, build
from .cached_functions import forget_cached_fakes
from .checkpoint_reads import DTYPES
from .deferred import deferred_init, is_deferred
from .materialize import MaterializeError, materialize_module, materialize_tensor
from .mode import fake_mode, is_fake, meta_like
from .module_tensors import Held, held_tensors
from .placement import DeviceMap, check_paths, covering_entry, read_pairs
from .subclasses import UnsupportedSubclassError, check_initialized, check_input, unregistered_wrapper
from .transfers import Transfers, devices_below, install_transfers
