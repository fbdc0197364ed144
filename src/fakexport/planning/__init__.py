"""Will it fit: from a model or an archive to bytes per device at the sizes that are asked for."""

from fakexport.planning.plan import plan
from fakexport.planning.source_programs import PlanError
