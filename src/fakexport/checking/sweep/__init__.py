"""Check many models, each in its own process; compare and display the results. Does not import torch."""

from .changed_items import changed_items
from .comparison import answers_of, compare_runs
from .ray_tasks import ray_cluster, ray_records
from .results import collect_results, results_text
from .results_page import results_document
from .run_file import STATUSES, RunFile, SweepRecord, read_run
from .sweep import Sweep, Tally, run_sweep
from .zoo_file import SweepItem, read_zoo
