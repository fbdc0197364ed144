"""Compare memory estimates of other tools with real runs: `python -m benchmarks.plan_accuracy --peers`.

Models of published size, with random weights, run on the CPU in float32, in eager mode and as the program's
`module()`. The peak of each run, including weights and inputs, is compared with these estimates. `plan` is
compared with the run of `module()`, and the other estimates with the run in eager mode.

- `plan`: evaluated at all sizes from one export;
- `plan --eager`: runs on fake tensors at each size;
- `MemTracker`: `torch.distributed._tools.mem_tracker`, on a model with torch's own fake tensors;
- `accelerate`: the total size that `accelerate estimate-memory` prints, and the 20 % that its guide adds for
  inference (https://huggingface.co/docs/accelerate/usage_guides/model_size_estimator);
- `formula`: parameters plus 20 % for everything else (https://blog.eleuther.ai/transformer-math/); for models
  with a cache, also the size of the cache, computed from the numbers in `config.json`
  (https://kipp.ly/transformer-inference-arithmetic/, with key and value heads instead of heads).
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

WEIGHTS_AND_REST = 1.2
"""Memory of inference divided by the size of the weights, according to accelerate's guide and EleutherAI."""

ESTIMATES = ("plan", "plan --eager", "MemTracker", "accelerate", "formula")
TEXT = ((2, 128), (4, 256), (8, 256))
IMAGES = ((2, None), (4, None), (8, None))


@dataclass(frozen=True)
class Case:
    """A model of published size, and the sizes of its calls.

    Args:
        config: Settings in its `config.json` that differ from the defaults of transformers.
        workload: `forward`, or `prefill` for models that return a cache.
        sizes: Batch and context of each call.
    """

    config: Mapping[str, Any]
    workload: Any = "forward"
    sizes: Sequence[tuple[int, int | None]] = TEXT


CASES: Mapping[str, Case] = {
    "GPT-2": Case({"model_type": "gpt2"}, "prefill"),
    "SmolLM-135M": Case(
        {
            "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
        "prefill",
    ),
    "Gemma 3 270M": Case(
        {
            "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048,
            "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
            "sliding_window": 512,
        },
        "prefill",
    ),
    "Pythia-160M": Case(
        {
            "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 3072,
            "num_hidden_layers": 12, "num_attention_heads": 12,
        },
        "prefill",
    ),
    "OPT-125M": Case({"model_type": "opt"}, "prefill"),
    "BERT base": Case({"model_type": "bert"}),
    "DistilBERT": Case({"model_type": "distilbert"}),
    "ModernBERT base": Case({"model_type": "modernbert"}),
    "T5 small": Case({"model_type": "t5"}),
    "Whisper tiny": Case({"model_type": "whisper"}, sizes=IMAGES),
    "wav2vec2 base": Case({"model_type": "wav2vec2"}, sizes=IMAGES),
    "ViT base": Case({"model_type": "vit"}, sizes=IMAGES),
    "CLIP base": Case({"model_type": "clip"}, sizes=IMAGES),
    "ResNet-50": Case({"model_type": "resnet"}, sizes=IMAGES),
    "ConvNeXt tiny": Case({"model_type": "convnext"}, sizes=IMAGES),
}  # fmt: skip


def formula_bytes(config: Any, parameters: int, itemsize: int, tokens: int | None) -> float:
    """Return the bytes that the formula estimates.

    Args:
        config: The model's transformers config.
        parameters: Number of parameters, with tied parameters counted once.
        itemsize: Bytes per number.
        tokens: Number of tokens in the cache, of all sequences; None for a model without a cache.
    """
    weights = WEIGHTS_AND_REST * parameters * itemsize
    if tokens is None:
        return weights
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return weights + 2 * config.num_hidden_layers * heads * head * itemsize * tokens


def accelerate_bytes(module: nn.Module) -> float:
    """Return the bytes that accelerate estimates.

    Args:
        module: A module in float32, on any device, with or without data.
    """
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(module)
    return WEIGHTS_AND_REST * float(total)


def tracked_bytes(module: nn.Module, given: Callable[[], Mapping[str, Any]]) -> int:
    """Return the peak that torch's MemTracker reports for a call on fake tensors.

    Args:
        module: A module on the meta device. It is modified.
        given: Function that returns the arguments. It is called under torch's fake mode.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        module.requires_grad_(True).to_empty(device="cpu")  # MemTracker rejects parameters without gradients.
        if hasattr(module, "tie_weights"):
            module.tie_weights()
        kwargs = given()
        tracker = MemTracker()
        tracker.track_external(module, *(v for v in kwargs.values() if isinstance(v, torch.Tensor)))
        with tracker:
            module(**kwargs)
        found = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return int(found["Total"])


def peer_rows(name: str, case: Case | None = None) -> Iterator[dict[str, Any]]:
    """Yield the measured bytes, the estimates, and the time of each estimate, for each size of a model.

    Args:
        name: Name of the model.
        case: The model. Default: `CASES[name]`.
    """
    import fakexport as fe
    from fakexport.models.sources import Workload, resolve
    from fakexport.planning.memory import ProgramSizes, SizeRequest, liveness, sizes_at
    from tests.measured_memory import measured_peak
    from tests.round_trip.reference import real_model

    case = case or CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_text(json.dumps(case.config))
        first, *_ = case.sizes

        def source(batch: int, context: int | None) -> Any:
            return resolve(f"hf:{path}", workload=Workload(case.workload, batch, context or 16))

        def read() -> Any:
            program = fe.export(source(*first), target="cpu", dtype=torch.float32, dynamic_shapes="auto")
            return program, liveness(program), ProgramSizes(program)

        (program, found, sizes), read_s = _timed(read)
        module = real_model(source(*first), "float32").eval()
        bound = fe.bind(program, dict(module.state_dict()), check_finite=False).module()
        held = _weight_bytes(module)
        for batch, context in case.sizes:
            own = source(batch, context)
            given = _given(own, module)
            inputs = sum(v.nbytes for v in given.values() if isinstance(v, torch.Tensor))
            has_cache = case.workload == "prefill"
            evaluate = functools.partial(_evaluated, found, sizes, SizeRequest(batch, context), sizes_at)
            tokens = batch * (context or 0) if has_cache else None
            estimates = {
                "plan": evaluate,
                "plan --eager": functools.partial(_eager, own),
                "MemTracker": functools.partial(_tracked, own),
                "accelerate": functools.partial(_accelerate, own),
                "formula": functools.partial(_formula, own, module, tokens),
            }
            timed = {one: _timed(functools.partial(_answer, ask)) for one, ask in estimates.items()}
            seconds = {one: round(own_s, 3) for one, (_, own_s) in timed.items()}
            seconds["plan"], read_s = seconds["plan"] + round(read_s, 3), 0.0  # One export for all sizes.
            runs = {
                "module()": held + inputs + measured_peak(functools.partial(bound, **given)),
                "eager": held + inputs + measured_peak(functools.partial(module, **given)),
            }
            yield {
                "model": name, "sizes": {"batch": batch, "context": context}, "measured": runs,
                "predicted": {one: value for one, (value, _) in timed.items() if value is not None},
                "seconds": seconds,
            }  # fmt: skip


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    value = run()
    return value, time.perf_counter() - start


def _weight_bytes(module: nn.Module) -> int:
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*module.parameters(), *module.buffers())
    }
    return sum(storages.values())


def _given(source: Any, module: nn.Module) -> dict[str, Any]:
    """Return the arguments of a padded batch, because transformers drops a mask of ones."""
    inputs = source.example_inputs(module, "cpu", None)
    given = dict(inputs.kwargs)
    if isinstance(mask := given.get("attention_mask"), torch.Tensor):
        given["attention_mask"] = mask.clone()
        given["attention_mask"][:, :3] = 0
    return given


def _made(source: Any) -> tuple[nn.Module, dict[str, Any]]:
    module = source.factory().eval()
    return module, _given(source, module)


def _evaluated(found: Any, sizes: Any, request: Any, sizes_at: Callable[..., Any]) -> int:
    return int(sizes_at(found, sizes.chosen(request).values).peak("cpu").bytes)


def _eager(source: Any) -> int:
    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import build
    from fakexport.planning.memory import eager_liveness, sizes_at

    def made() -> Any:
        module, kwargs = _made(source)
        return module, (), kwargs

    with emulate("cpu"):
        built = build(made, dtype=torch.float32)
        return sizes_at(eager_liveness(built, (), built.kwargs), {}).peak("cpu").bytes


def _answer(ask: Callable[[], float]) -> int | None:
    """Return an estimate in bytes, or None if it fails. A failure counts as a missing estimate."""
    try:
        return int(ask())
    except Exception as error:
        print(f"{ask}: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _meta(source: Any) -> nn.Module:
    with torch.device("meta"):
        module: nn.Module = source.factory().eval()
    return module


def _tracked(source: Any) -> int:
    module = _meta(source)
    return tracked_bytes(module, lambda: _given(source, module))


def _accelerate(source: Any) -> float:
    return accelerate_bytes(_meta(source))


def _formula(source: Any, module: nn.Module, tokens: int | None) -> float:
    return formula_bytes(module.config, sum(p.numel() for p in module.parameters()), 4, tokens)


def peers_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of the errors and times of each estimate."""
    lines = [
        "| estimate | answers | median error | 95th percentile | worst | over 1 % low | first | further |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in ESTIMATES:
        errors = [_error(row, one) for row in rows if one in row["predicted"]]
        if not errors:
            continue
        ordered = sorted(map(abs, errors))
        worst = max(errors, key=abs)
        low = sum(error < -0.01 for error in errors) / len(errors)
        late = ordered[int(0.95 * (len(ordered) - 1))]
        figures = (
            f"{len(errors)} of {len(rows)}", f"{statistics.median(ordered):.1%}", f"{late:.1%}",
            f"{worst:+.1%}", f"{low:.0%}", *_seconds(rows, one),
        )  # fmt: skip
        lines.append(f"| {one} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def _error(row: Mapping[str, Any], estimate: str) -> float:
    measured = row["measured"]["module()" if estimate == "plan" else "eager"]
    return float(row["predicted"][estimate] / measured - 1)


def _seconds(rows: Sequence[Mapping[str, Any]], estimate: str) -> tuple[str, str]:
    """Return the median time of an estimate for a model's first size, and for its further sizes."""
    first: dict[str, float] = {}
    later = []
    for row in rows:
        if row["model"] in first:
            later.append(row["seconds"][estimate])
        else:
            first[row["model"]] = row["seconds"][estimate]
    shown = (statistics.median(first.values()), statistics.median(later or [0.0]))
    return f"{shown[0]:.2f} s", f"{shown[1]:.2f} s"
