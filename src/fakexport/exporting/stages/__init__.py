"""Cut an exported program into the programs of pipeline stages."""

from .cut import cut, module_starts
from .errors import InseparableStages, StageError
