"""A plan with everything that a plan can have: two devices, of which one is too small."""

from fakexport.report import (
    Greatest,
    Interval,
    Machine,
    PlannedDevice,
    PlannedOverhead,
    PlannedPeak,
    PlannedPoint,
    PlannedTensor,
    PlanReport,
)

GIB = 2**30
CONTEXT = PlannedOverhead("CUDA context", Interval(GIB // 4, GIB // 2), False, "somewhere")


def sample_device(name="cuda:0", memory=80 * GIB, weights=60 * GIB, **fields):
    figures = {
        "constants": 0,
        "state": 2 * GIB,
        "gradients": 0,
        "optimizer": 0,
        "inputs": 4096,
        "activations": 9 * GIB,
        "temporaries": GIB,
        "state_after": 2 * GIB,
        "allocated_bytes": 72 * GIB,
        "overheads": (CONTEXT,),
        "peak": PlannedPeak("mul", "aten.mul.Tensor", "layers.3.mlp", "model.py:12"),
        "largest": (
            PlannedTensor("layers.*.w", 4, "weight", 8 * GIB, (1024, 1048576), "bfloat16", "layers.*", None),
            PlannedTensor("softmax[1]", 1, "temporary", GIB, None, "", "layers.3", "model.py:12"),
        ),
    }
    return PlannedDevice(name, "H100-80GB", memory, weights, **{**figures, **fields})


def sample_plan(*devices):
    point = PlannedPoint(4, 8192, {"x.2": 3}, devices or (sample_device(), sample_device("cuda:1", 72 * GIB)))
    return PlanReport(
        subject="model.py:factory",
        target="2xH100-80GB",
        device_map="balanced",
        workload="prefill",
        execution="the program's module()",
        dtype="bfloat16",
        points=(point,),
        greatest=(
            Greatest("batch", 5, 4, "memory", "cuda:1"),
            Greatest("context", None, None, "memory", "cuda:1"),
        ),
        machines=(
            Machine("H100-80GB", 2, "balanced", Interval(GIB, 2 * GIB)),
            Machine("T4", None, None, None),
        ),
        left_out=("custom.op: only the memory of its results is counted",),
        assumptions=("something was assumed",),
        versions={"torch": "2.13.0"},
    )
