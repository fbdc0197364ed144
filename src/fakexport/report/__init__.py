"""What a command found: values, text, JSON, pages, SARIF, Markdown and annotations. Imports no torch."""

from fakexport.report.archive_difference_text import render_archive_difference
from fakexport.report.archive_json import archive_to_dict
from fakexport.report.archive_text import render_archive
from fakexport.report.as_json import (
    archive_difference_to_dict,
    bench_to_dict,
    comparison_to_dict,
    json_text,
    plan_to_dict,
    to_dict,
    weights_to_dict,
)
from fakexport.report.bench_chart import ChartFormat, render_bench_chart
from fakexport.report.bench_report import BenchFailure, BenchMeasures, BenchReport, BenchRow, BenchStep
from fakexport.report.bench_text import render_bench
from fakexport.report.comparison import Comparison, ModuleComparison, OutputComparison, Place, TensorError
from fakexport.report.comparison_text import render_comparison
from fakexport.report.device_listing import render_device, render_devices
from fakexport.report.device_literals import render_device_literals, render_diagnostics
from fakexport.report.difference_listing import difference_items
from fakexport.report.markdown import render_markdown
from fakexport.report.missing_package import missing_package
from fakexport.report.modules import render_modules
from fakexport.report.page import (
    Cell,
    Code,
    Column,
    Document,
    Paragraph,
    Part,
    Row,
    Section,
    Table,
    Tone,
    archive_difference_document,
    check_document,
    plan_document,
    program_difference_document,
    project_document,
    render_in_notebook,
    render_page,
)
from fakexport.report.plan_chart import render_plan_chart
from fakexport.report.plan_report import (
    Greatest,
    Interval,
    Machine,
    PlannedDevice,
    PlannedOverhead,
    PlannedPeak,
    PlannedPoint,
    PlannedStep,
    PlannedTensor,
    PlanReport,
)
from fakexport.report.plan_text import render_plan
from fakexport.report.plan_trace import plan_trace
from fakexport.report.planned_costs import PlannedBound, PlannedCosts, PlannedDeviceCost, PlannedModule
from fakexport.report.progress import BlockCount, Progress, Step
from fakexport.report.project_report import ProjectReport, project_summary_line, project_to_dict
from fakexport.report.quantity import bytes_text
from fakexport.report.rank_summary import RankGroup, RankSummary
from fakexport.report.rule_page import explain, explain_all, render_rules
from fakexport.report.sarif import render_sarif
from fakexport.report.saved_programs import SavedPrograms, archive_of
from fakexport.report.spread import Spread, duration_text, latency_text
from fakexport.report.text import render_github, render_report
from fakexport.report.verdict import Report, Stage, TargetDifference, TargetSpec, Timings, Verdict
from fakexport.report.weights_text import render_weights
