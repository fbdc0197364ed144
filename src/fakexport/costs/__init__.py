"""What one call of a program computes, reads and sends, and the time that no device can stay below.

`program_costs` reads a program once, `CostsAt` evaluates it at sizes, `bounds` divides by a device's rates.
"""

from fakexport.costs.costs_at import Bound, CostsAt, DeviceCost, bounds
from fakexport.costs.program_costs import ProgramCosts, program_costs
