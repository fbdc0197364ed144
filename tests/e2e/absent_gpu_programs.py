"""Programs that are compiled for a GPU that this machine lacks: small modules, and architectures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import fakexport as fe
from fakexport.deploy.aoti.stand_ins import held_tensors
from tests.round_trip.reference import write_case

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A program for the GPU, real weights, and calls with what eager mode returns, in order."""

    program: ExportedProgram
    weights: dict[str, Tensor]
    calls: list[tuple[list[Tensor], list[Tensor]]]


Make = Callable[[Path], Case]
PROGRAMS: dict[str, Make] = {}
_BATCH, _LENGTH = Dim("batch", min=2, max=64), Dim("length", min=2, max=512)


def register(
    name: str, kind: Callable[[], nn.Module], *calls: Inputs, dynamic: Sequence[dict[int, Any]] | None = None
) -> None:
    """Register a module. It is exported with the first inputs and called with all, one after the other."""

    def make(folder: Path) -> Case:
        torch.manual_seed(0)
        model = kind().eval()
        zeros = tuple(torch.zeros_like(each) for each in calls[0])
        shapes = None if dynamic is None else tuple(dynamic)
        program = fe.export(
            lambda: kind().eval(), zeros, target="H100", device_map="cuda:0", dynamic_shapes=shapes
        )
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        found = []
        with torch.no_grad():
            for inputs in calls:
                outputs = model(*(each.clone() for each in inputs))
                leaves = torch.utils._pytree.tree_leaves(outputs)
                found.append((list(inputs), [leaf.clone() for leaf in leaves]))
        return Case(program, weights, found)

    PROGRAMS[name] = make


def register_architecture(name: str, *, is_dynamic: bool = True, settings: Any = None) -> None:
    """Register an architecture of the round trip in small, or with these settings; at sizes of its own."""

    def make(folder: Path) -> Case:
        from tests.round_trip.__main__ import spec_of

        spec = spec_of(name.split()[0], folder)
        if settings is not None:
            path, kind = spec.removeprefix("hf:").rsplit(":", 1)
            config = {"model_type": name.split()[0], **settings}
            Path(path).write_text(json.dumps(config))
            spec = f"hf:{path}:{kind}"
        write_case(spec, folder, targets=("H100", "cpu"), dynamic_shapes="auto" if is_dynamic else None)
        return _read_case(folder)

    PROGRAMS[name] = make


def _read_case(folder: Path) -> Case:
    from safetensors.torch import load_file

    case = json.loads((folder / "case.json").read_text())
    assert not case["failures"], case["failures"]
    program = fe.load(folder / "H100.pt2")
    # Not every program of the GPU can move to the CPU, which has no int32 histc for Mixtral's experts.
    bound = fe.bind(fe.load(folder / "cpu.pt2"), folder / "checkpoint")
    names = list(case["dynamic"]["H100"])
    calls = []
    for number in range(1, len(case["padded"]) + 1):
        inputs = load_file(folder / f"inputs-{number}.safetensors")
        outputs = load_file(folder / f"outputs-{number}.safetensors")
        calls.append(([inputs[name] for name in names], [outputs[name] for name in sorted(outputs)]))
    return Case(program, held_tensors(bound), calls)


def _drawn(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=generator).to(dtype)
    return torch.randint(0, 50, sizes, generator=generator, dtype=dtype)


class Function(nn.Module):
    """A module whose `forward` is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).softmax(-1)


class Attention(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 64), persistent=False)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm(x)).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return F.silu(x + self.out(found.transpose(1, 2).reshape(batch, length, width))) * self.scale


class Counter(nn.Module):
    """Writes into a buffer in place, has a tied weight and another of its shape, reduces two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(6, 5))
        self.tied = self.weight
        self.register_buffer("seen", torch.arange(6.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.add_(x.sum((0, 2)))
        product = x @ self.weight.T - 2 * x @ self.other.T + torch.tanh(x @ self.tied.T)
        return product.amax((0, 1)), self.seen * 2


class Cache(nn.Module):
    """Writes rows of a cache at a position that it counts, and reads all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, 16, 8))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        at = self.position + torch.arange(4, device=x.device)
        self.rows.index_copy_(1, at, x * self.scale)
        self.position.add_(4)
        scores = torch.einsum("bld,bmd->blm", x, self.rows)
        mask = torch.arange(16, device=x.device) < self.position
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ self.rows, self.position * 1


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm, self.groups = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        x = self.groups(F.hardswish(self.second(x))) + x
        large = F.interpolate(self.up(x), scale_factor=2.0, mode="bilinear", align_corners=False)
        return F.adaptive_avg_pool2d(x, 1).flatten(1), F.avg_pool2d(large, 2)


class Reuse(nn.Module):
    """Many values of the same size, in several dtypes: their buffers are reused."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.small = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = x.half()
        for layer in self.layers:
            x = layer(x).roll(1, 0) + x.cumsum(-1) * 0.1
            kept = torch.where(x.argmax(-1, keepdim=True) > 8, x.half(), kept.flip(-1))
        return (self.small(x[:, ::2]) + kept).half(), kept.sum(-1)  # Inductor skips the rounding between.


def _reductions(x: Tensor) -> tuple[Tensor, ...]:
    flat = x.flatten()
    of_rows = (x.sum(-1), x.var(-1), x.logsumexp(-1), x.argmax(-1), x.amin(-1), x.norm(dim=-1))
    of_columns = (x.mean(0), x.std(0), (x > 0).any(0), (x > -9).all(0), x.prod(0), x.argmin(0))
    return (*of_rows, *of_columns, flat.sum(), flat.max(), flat.argmax(), x.softmax(0), (x > 1).sum())


def _scans(x: Tensor) -> tuple[Tensor, ...]:
    values, places = x.sort(dim=-1, descending=True, stable=True)
    edges = torch.linspace(-2, 2, 7, device=x.device)
    best = x.topk(3, -1)
    scanned = (
        x.cumsum(-1),
        x.cumsum(0),
        (x * 0.1).exp().cumprod(-1),
        x.cummax(-1).values,
        x.logcumsumexp(-1),
    )
    return (values, places, *best, *scanned, torch.bucketize(x, edges), torch.searchsorted(edges, x))


def _scattered(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    sums = torch.zeros_like(x).scatter_add(0, index % x.shape[0], x)
    placed = x.clone()
    placed.index_put_((index[:, 0] % x.shape[0],), x, accumulate=True)
    least = torch.full_like(x, 9).scatter_reduce(1, index % x.shape[1], x, "amin")
    return sums, placed, least, x.gather(1, index % x.shape[1]), x.index_select(1, index[:, 0] % x.shape[1])


def _integers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    signed = x - 25
    divided = (signed // (y + 1), signed % (y + 1), torch.div(signed, y + 1, rounding_mode="trunc"))
    bits = (x & y, x | 3, x ^ y, ~x, x << 2, signed >> 1)
    mixed = (signed / 7, (x.float() * 0.5).long(), signed.clamp(-5, 5).to(torch.int8), signed.sign())
    masks = (x > y, torch.isin(x, y[0]), (x == y).logical_xor(x > 10), F.one_hot(x % 5, 5).sum(1))
    return (*divided, *bits, *mixed, *masks, torch.triu(x), x.sum(), x.cumsum(1), x.max(-1).indices)


def _pieces(x: Tensor) -> dict[str, Any]:
    left, right = x[:, ::2], x[:, 1::2]
    joined = torch.cat([right, left * 2, x.flip(0)], 1)
    padded = F.pad(x, (2, 1, 1, 0), value=3.0)
    wrapped = F.pad(x[None], (2, 2), mode="circular")
    return {"same": x, "turned": x.T, "all": [joined, padded, wrapped], "stacked": torch.stack([x, -x], 1)}


def _numbers(x: Tensor) -> tuple[Tensor, ...]:
    small = x.half()
    rounded = (x.round(decimals=1), x.floor(), x.ceil(), x.trunc(), x.frac(), x.sign(), torch.fmod(x, 0.7))
    smooth = (x.erf(), x.sigmoid(), x.tanh(), x.atan(), x.abs().sqrt(), x.abs().log1p(), x.expm1(), x.sin())
    powers = (x.abs() ** 0.3, x**3, torch.pow(2.0, x), torch.hypot(x, x + 1), torch.atan2(x, x + 2))
    special = (F.softplus(x), F.gelu(x, approximate="tanh"), F.mish(x), x.nan_to_num(), (x / 0).isinf())
    halves = (small * 3, small.exp(), (small + x).bfloat16(), small.softmax(-1), small.rsqrt())
    return (*rounded, *smooth, *powers, *special, *halves)


def _branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.softmax(-1) * 2, lambda y: y.cumsum(-1) - 1, (x,))


def _selected(x: Tensor) -> tuple[Tensor, ...]:
    chosen = x[x > 0]
    return chosen * 2, x.nonzero(), chosen.sum()


def _norms(x: Tensor) -> tuple[Tensor, ...]:
    width = (x.shape[-1],)
    return F.rms_norm(x, width), F.layer_norm(x, width), F.instance_norm(x), F.normalize(x, dim=1)


_X = (_drawn(4, 24), _drawn(61, 24))
register("perceptron static", Perceptron, (_drawn(7, 24),))
register("perceptron dynamic", Perceptron, *((each,) for each in _X), dynamic=({0: _BATCH},))
register("attention", Attention, (_drawn(2, 16, 64),), (_drawn(5, 16, 64),), dynamic=({0: _BATCH},))
register(
    "attention bfloat16",
    lambda: Attention(torch.bfloat16),
    (_drawn(2, 16, 64, dtype=torch.bfloat16),),
    (_drawn(3, 37, 64, dtype=torch.bfloat16),),
    dynamic=({0: _BATCH, 1: _LENGTH},),
)
_MASK = torch.rand(3, 1, 37, 37, generator=torch.Generator().manual_seed(0)) > 0.5
register(
    "masked attention bfloat16",
    lambda: Function(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask)),
    (*(_drawn(3, 4, 37, 16, dtype=torch.bfloat16) + at for at in range(3)), _MASK),
)
register("written buffer", Counter, *[(_drawn(3, 6, 5),)] * 2)
register("cache", Cache, *((_drawn(3, 4, 8) + at,) for at in range(3)))
register("images", Images, (_drawn(2, 3, 32, 32),), (_drawn(5, 3, 32, 32),), dynamic=({0: _BATCH},))
register("reused buffers", Reuse, (_drawn(6, 32),), (_drawn(33, 32),), dynamic=({0: _BATCH},))
_PLANE = ({0: _BATCH, 1: _LENGTH},)
_SIZES = ((_drawn(4, 24),), (_drawn(19, 130),), (_drawn(2, 2),))
register("reductions", lambda: Function(_reductions), *_SIZES, dynamic=_PLANE)
register("pieces", lambda: Function(_pieces), *((each,) for each in _X), dynamic=({0: _BATCH},))
register("large reductions", lambda: Function(_reductions), (_drawn(7, 9001),))
_WIDE_PLANE = ({0: _BATCH, 1: Dim("width", min=8, max=512)},)
register("scans", lambda: Function(_scans), *_SIZES[:2], dynamic=_WIDE_PLANE)
register(
    "norms",
    lambda: Function(_norms),
    (_drawn(2, 4, 24),),
    (_drawn(5, 4, 133),),
    dynamic=({0: _BATCH, 2: _LENGTH},),
)
_INDEX = (_drawn(4, 24, dtype=torch.int64), _drawn(37, 24, dtype=torch.int64))
register(
    "scattered",
    lambda: Function(_scattered),
    (_drawn(4, 24), _INDEX[0]),
    (_drawn(37, 24), _INDEX[1]),
    dynamic=({0: _BATCH}, {0: _BATCH}),
)
register("integers", lambda: Function(_integers), (_INDEX[1], _INDEX[1].flip(0)))
register("numbers", lambda: Function(_numbers), (_drawn(5, 24),))
register(
    "branches", lambda: Function(_branches), (_drawn(5, 24),), (-_drawn(5, 24).abs(),), (_drawn(5, 24).abs(),)
)
register("selected", lambda: Function(_selected), (_drawn(5, 24),), (_drawn(5, 24) - 1,))

for architecture in (
    *("llama", "gpt2", "bert", "t5", "vit", "resnet", "convnext", "mamba"),
    *("gemma2", "swin", "clip", "whisper", "albert"),
):
    register_architecture(architecture)
for architecture in ("opt", "mobilenet_v2", "qwen3", "distilbert"):
    register_architecture(f"{architecture} static", is_dynamic=False)
_SIZED: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 2, "vocab_size": 512,
    },
    "gpt2": {"n_layer": 2, "vocab_size": 512},
    "bert": {"num_hidden_layers": 2, "vocab_size": 512},
    "vit": {"num_hidden_layers": 2},
    # Each token goes to every expert: rounding in bfloat16 would change which ones are selected.
    "mixtral": {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "vocab_size": 99, "num_local_experts": 4, "num_experts_per_tok": 4,
    },
}  # fmt: skip
for architecture, sizes in _SIZED.items():
    register_architecture(f"{architecture} sized", settings=sizes)
