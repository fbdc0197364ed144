"""Reports made by hand, with every field in use somewhere."""

from __future__ import annotations

from dataclasses import replace

from fakexport.exporting.capture import Recovered, UnboundConstant
from fakexport.exporting.interface import (
    ConstantDifference,
    DeviceChange,
    NodeChange,
    NodeGroup,
    ProgramDifference,
    SignatureDifference,
    SymbolRange,
    Transfer,
    ValueSummary,
)
from fakexport.exporting.interface.program_difference import OperatorDifference, RangeDifference
from fakexport.exporting.program import ProgramSummary
from fakexport.exporting.program.summary import TensorTotals
from fakexport.report import Report, TargetDifference, TargetSpec, Timings, Verdict
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, Span

VERSIONS = {"fakexport": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}
TIMINGS = Timings(
    build_s=0.041, capture_s=35.26, analyse_s=125.4, peak_rss_bytes=589_299_712, growth_bytes=1023
)
SPAN = Span("/venv/lib/site-packages/acme/model.py", 7, 9, 19, "forward", "stack_trace")

UNBOUND = UnboundConstant(
    "layers.0.scale",
    "parameter",
    "it is computed from the parameter layers.0.weight, which aten.amax.default reads",
    weight="layers.0.weight",
    operator="aten.amax.default",
    span=SPAN,
)
INCOMPLETE = Recovered(("inv_freq", "table"), 1_088, (UNBOUND,))

IDENTICAL = ProgramDifference(
    is_identical=True,
    is_identical_but_for_devices=True,
    node_count_a=9,
    node_count_b=9,
    operators=(),
    nodes_removed=(),
    nodes_added=(),
    nodes_rewired=(),
    is_reordered=False,
    changes=(),
    devices=(),
    transfers_removed=(),
    transfers_added=(),
    constants=(),
    signature=(),
    ranges=(),
)


def transfer(**changes: object) -> Transfer:
    made = Transfer(
        node="to",
        operator="aten.to.device",
        source="cpu",
        target="cuda:0",
        dtype="float32",
        shape=("s0", "20"),
        bytes=240,
        bytes_expression="80*s0",
        span=SPAN,
        module_path="fc2",
        graph="",
        index=4,
    )
    return replace(made, **changes)


def summary(**changes: object) -> ProgramSummary:
    made = ProgramSummary(
        node_count=9_275,
        call_count=2,
        operators={"aten.linear.default": 2},
        parameters=TensorTotals(4, 405_900_000_000, {"cpu": 880, "cuda:0": 840}),
        buffers=TensorTotals(1, 10, {"cuda:0": 40}),
        constants=TensorTotals(0, 0, {}),
        state=TensorTotals(0, 0, {}),
        inputs=(ValueSummary("x", "user_input", "x", "float32", ("s0", "10"), "cpu"),),
        outputs=(ValueSummary("flag", "user_output", "", "bool", value="True"),),
        range_constraints={"s0": SymbolRange(1, 64), "u0": SymbolRange(0, None)},
        devices=("cpu", "cuda:0"),
    )
    return replace(made, **changes)


def verdict(name: str = "cpu+H100", **changes: object) -> Verdict:
    made = Verdict(
        target=TargetSpec(name, "cpu+H100-80GB"),
        is_exportable=True,
        failed_stage=None,
        summary=summary(),
        transfers=(),
        timings=TIMINGS,
    )
    return replace(made, **changes)


def report(*verdicts: Verdict, **changes: object) -> Report:
    made = Report("model.py:factory", verdicts or (verdict(),), (), (), VERSIONS)
    return replace(made, **changes)


def everything_differs() -> ProgramDifference:
    group = NodeGroup("aten.bmm.default", "model.layers.*.mlp", SPAN, 64, "bmm")
    return replace(
        IDENTICAL,
        is_identical=False,
        is_identical_but_for_devices=False,
        node_count_b=12,
        operators=(OperatorDifference("aten.bmm.default", 64, 0),),
        nodes_removed=(group,),
        nodes_added=(NodeGroup("aten._grouped_mm.default", "", None, 1, "grouped_mm"),),
        nodes_rewired=(replace(group, count=2),),
        is_reordered=True,
        changes=(NodeChange(group, "dtype", "float32", "bfloat16"),),
        devices=(DeviceChange("cpu", "cuda:0", 14),),
        transfers_removed=(transfer(),),
        transfers_added=(transfer(bytes=None, span=None, module_path=""),),
        constants=(
            ConstantDifference("lifted_tensor_0", "value", "1", "2"),
            ConstantDifference("lifted_tensor_1", "presence", "", "float32[2]"),
        ),
        signature=(SignatureDifference("input", "parameter", "layers.*.weight", "dtype", "a", "b", 8),),
        ranges=(RangeDifference("s0", "1..64", ""),),
    )


def full_report() -> Report:
    """Three targets, the last of which fails; no key of the JSON format is left without a value."""
    hybrid = verdict(
        target=TargetSpec(
            "cpu+cuda",
            "cpu+H100-80GB",
            device_map="fc1=cpu,fc2=cuda:0",
            dtype="float32",
            assumptions=("'cuda' does not specify a GPU model: assuming H100-80GB",),
        ),
        transfers=(transfer(), transfer(node="to_1", span=None, bytes=None, module_path="", index=6)),
        notes=("fc1.weight is tied to fc2.weight",),
        recovered=INCOMPLETE,
    )
    other = verdict("H100", target=TargetSpec("H100", "H100-80GB"))
    failed = verdict(
        "T4", target=TargetSpec("T4", "T4"), is_exportable=False, failed_stage="capture", summary=None
    )
    finding = Diagnostic(
        "FE201",
        "error",
        "data-dependent branch: condition depends on tensor values",
        labels=(Label(Span("model.py", 7, 12, 19, "forward", "traceback"), "`x.sum()` has no value"),),
        notes=("torch says: Could not guard",),
        fix=Fix("use torch.where", command="sed -i model.py"),
        node="gt",
        module_path="fc1",
        count=2,
        targets=("T4",),
    )
    return report(
        hybrid,
        other,
        failed,
        differences=(TargetDifference("cpu+cuda", "H100", everything_differs()),),
        diagnostics=(finding, Diagnostic("FE503", "warning", "the weights need more memory")),
    )
