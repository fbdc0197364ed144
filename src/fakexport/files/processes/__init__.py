"""Run code in child processes, which have limits and end when their parent ends. Does not import torch."""

from .forked_calls import IN_PROCESS, NoAnswer, RemoteTraceback, Send, run_forked
from .limited_process import Ended, Limits, NoWarmStart, WarmStart, run_limited
from .machine import machine_text, processor_text
from .parent import OWN_THREAD, end_with_parent
from .shared_process import SharedProcess, warn_of_shared_process
from .temporary_folder import TemporaryFolder, lasting_folder, use_temporary_folder
