"""Models without data: fake mode, construction, placement, and giving a model its data later."""

# Documented under `fakexport.fake`, which is where users look for them.
from fakexport.history import UnreplayableRead, remember_value, value_of

from .build import Built, build
from .cached_functions import forget_cached_fakes
from .checkpoint_reads import DTYPES
from .deferred import deferred_init, is_deferred
from .materialize import MaterializeError, materialize_module, materialize_tensor
from .mode import fake_mode, is_fake, meta_like
from .module_tensors import Held, held_tensors
from .placement import DeviceMap, covering_entry
from .subclasses import SubclassNotKept, check_initialized, check_input, unregistered_wrapper
from .transfers import install_transfers
