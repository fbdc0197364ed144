"""Measure the cost of diagnosis, for a model that exports and for a model that does not.

Uses a fake Llama-3.1-405B on 8 emulated H100s, in bfloat16, with `--dynamic auto`. One process times the
capture and the diagnosis of its program, and then torch's own trace without and with the hooks of the
exploration. Then a data-dependent branch is added to the first layer, and the failing capture and the
exploration of further problems are timed. The original program must have no errors. The exploration must find
the branch and reach the end of the model. Times are processor time, because other programs may run.

    python -m benchmarks.diagnosis_time [--config examples/configs/llama-3.1-8b.json]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

CONFIG = "examples/configs/llama-3.1-405b.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Times the diagnosis against the capture.")
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    config, rounds = options.config, options.rounds
    import torch

    from fakexport._torch.tracing.operator_faults import TraceFinished, ended_after_trace
    from fakexport.emulation.devices import Topology, emulate
    from fakexport.emulation.fake import DeviceMap
    from fakexport.exporting.capture import Request, capture, prepare
    from fakexport.exporting.capture.assumed_answers import AssumedAnswers
    from fakexport.exporting.capture.capture import torch_shapes, traced
    from fakexport.exporting.capture.dynamic_dims import varying_inputs
    from fakexport.exporting.capture.example_run import ExampleRun
    from fakexport.exporting.capture.exploration import explore
    from fakexport.exporting.program import summarise
    from fakexport.report.diagnose import diagnose_failure, diagnose_program

    request = Request(source=f"hf:{config}", dynamic_shapes="auto").read()
    topology = Topology.parse("8xH100")
    with emulate(topology):
        placement = DeviceMap.parse("balanced")
        prepared = prepare(request, topology, device_map=placement, dtype=torch.bfloat16)
        model, tracing, dynamic = prepared.built.module, prepared.tracing, request.dynamic
        arguments = (prepared.inputs.args, prepared.inputs.kwargs)

        def hooked_trace() -> Any:
            return explore(prepared, ExampleRun(), may_visit_rows=True)

        def bare_trace() -> None:
            given = {
                "shapes": torch_shapes(varying_inputs(model, *arguments, None), dynamic),
                "read_constants": {},
                "answers": AssumedAnswers((), bare_trace.__code__),
            }
            try:
                with ended_after_trace():
                    traced(model, *arguments, strict=False, tracing=tracing(), **given)
            except TraceFinished:
                return

        with prepared.transfers():
            capture_s, captured = timed(lambda: capture(model, *arguments, dynamic=dynamic, tracing=tracing))
            if captured.program is None:
                raise SystemExit(str(captured.failure))
            program = captured.program
            summary_s, summary = timed(lambda: summarise(program))
            diagnose_s, findings = timed(lambda: diagnose_program(captured, summary, dynamic))
            traces = [(timed(bare_trace)[0], timed(hooked_trace)[0]) for _ in range(rounds)]
            branch_on_data(model)
            failed_s, failed = timed(lambda: capture(model, *arguments, dynamic=dynamic, tracing=tracing))
            explore_s, found = timed(hooked_trace)
    if failed.failure is None or not found.is_complete:
        raise SystemExit("the exploration did not come to the end of the model")
    codes = [diagnostic.code for diagnostic in diagnose_failure(failed.failure, found)]
    # 405 billion parameters do not fit into 8 H100s; this is only a warning.
    errors = [diagnostic for diagnostic in findings.diagnostics if diagnostic.severity == "error"]
    if errors or codes != ["FE201"]:
        raise SystemExit(f"wrong diagnostics: {errors}, {codes}")
    print(f"{config}, {len(program.graph.nodes)} nodes; {capture_s:.1f} s to capture it")
    rows = {
        "summary of the program": summary_s,
        "diagnosis of the program": diagnose_s,
        "bare trace": min(bare for bare, _ in traces),
        "capture that fails at once": failed_s,
        "exploration to the end": explore_s,
    }
    for name, seconds in rows.items():
        print(f"  {name:27} {seconds:6.2f} s  {seconds / capture_s:.3f} of the capture")
    ratios = sorted(hooked / bare for bare, hooked in traces)
    print(f"  hooks: {statistics.median(ratios):.2f} of a bare trace ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return 0


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor time of a function in seconds, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def branch_on_data(model: Any) -> None:
    """Add a data-dependent branch to the first layer norm that does not change its result."""
    norm = model.get_submodule("model.layers.0.input_layernorm")
    stock = norm.forward

    def forward(hidden_states: Any) -> Any:
        if hidden_states.sum() > 0:
            hidden_states = hidden_states * 1
        return stock(hidden_states)

    norm.forward = forward


if __name__ == "__main__":
    sys.exit(main())
