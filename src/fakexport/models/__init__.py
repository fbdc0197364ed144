"""Models: parse the text that names a model, find its code and settings, and derive its example inputs."""

from .dynamic_dims import Bounds, DynamicDim, DynamicDims, parse_dynamic
from .libraries import (
    FORMS,
    LIBRARIES,
    PACKAGES,
    import_library,
    import_loaded_libraries,
    installed_version,
    library_of,
    named_path,
    packages_of,
)
