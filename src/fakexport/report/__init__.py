"""Results of commands and their renderings: text, JSON, HTML, SARIF, Markdown. Imports no torch."""

from fakexport.report.archive_text import render_archive
from fakexport.report.as_json import json_text, to_dict
from fakexport.report.bench_report import (
    BenchFailure,
    BenchMeasures,
    BenchReport,
    BenchRow,
    BenchStep,
    render_bench,
)
from fakexport.report.charts import plan_trace, render_bench_chart, render_plan_chart
from fakexport.report.comparison import (
    Comparison,
    ModuleComparison,
    OutputComparison,
    Place,
    TensorError,
    render_comparison,
)
from fakexport.report.device_listing import render_device, render_devices
from fakexport.report.difference_listing import difference_items, render_archive_difference
from fakexport.report.markdown import render_markdown
from fakexport.report.missing_package import missing_package
from fakexport.report.modules import render_modules
from fakexport.report.page.check_page import archive_difference_document, check_document, project_document
from fakexport.report.page.document import (
    Cell,
    Code,
    Document,
    Finding,
    Findings,
    Fixing,
    Paragraph,
    Part,
    Row,
    Section,
    Table,
    Tone,
)
from fakexport.report.page.findings import explanations
from fakexport.report.page.plan_page import plan_document
from fakexport.report.page.rendering import render_page
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
from fakexport.report.planned_costs import Bound, DeviceCost, PlannedCosts, PlannedModule
from fakexport.report.quantity import Spread, bytes_text, duration_text, latency_text
from fakexport.report.rank_summary import RankGroup, RankSummary
from fakexport.report.rule_page import explain, explain_all, render_rules
from fakexport.report.runtime_verdict import RESULT_TEXTS, Fallback, RuntimeResult, RuntimeVerdict
from fakexport.report.sarif import render_sarif
from fakexport.report.saved_programs import SavedPrograms, loaded_archive, merged_archive
from fakexport.report.stage_summary import StageInput, StagesSummary, StageSummary
from fakexport.report.table import layout
from fakexport.report.text import render_github, render_report, render_weights
from fakexport.report.transfer_listing import render_device_literals, render_diagnostics
from fakexport.report.verdict import (
    BlockCount,
    Progress,
    ProjectReport,
    Report,
    Stage,
    Step,
    TargetDifference,
    TargetSpec,
    Timings,
    Verdict,
    project_summary_line,
)
