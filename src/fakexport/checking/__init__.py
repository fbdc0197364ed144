"""The main job, `fakexport check`: the one room that knows every step of it."""

from fakexport.checking.answers import Wanted
from fakexport.checking.check_call import CheckCall
from fakexport.checking.conductor import check, inspect, report_on
from fakexport.checking.isolation import bundled
