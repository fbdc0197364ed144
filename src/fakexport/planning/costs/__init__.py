"""Count FLOPs, bytes read and bytes sent of one program call, and derive lower bounds of its run time.

`program_costs` reads a program once. `CostsAt` evaluates the costs at chosen sizes, and `planned_costs`
divides them by the rates of the devices.
"""

from fakexport.planning.costs.costs_at import CostsAt, fastest_rate, planned_costs, planned_modules
from fakexport.planning.costs.program_costs import ProgramCosts, program_costs
