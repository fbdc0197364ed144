"""What a program computes and reads: as torch's counter has it, and never more than any kernel needs."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import fakexport as fe
from fakexport._torch.kernels.fbgemm_products import register_fbgemm_products
from fakexport._torch.kernels.fp8_products import matmul, register_fp8_products
from fakexport._torch.kernels.mxfp4_products import grouped_matmul, register_mxfp4_product
from fakexport.emulation.devices import Topology, profile_named
from fakexport.planning.costs import CostsAt, program_costs
from fakexport.planning.costs.costs_at import bounds, fastest_rate
from fakexport.planning.memory import ProgramSizes, SizeRequest, liveness, sizes_at

B, S = 3, 7


def costs_at(program, **request) -> CostsAt:
    live = liveness(program)
    chosen = ProgramSizes(program, needed=live.symbols).chosen(SizeRequest(**request))
    return CostsAt(program_costs(program, live), sizes_at(live, chosen.values), chosen.values)


def exported(model, *args, target="cpu", **options):
    return fe.export(model, args, target=target, **options)


def cost_of(model, *args, device="cpu", **options):
    return costs_at(exported(model, *args, **options)).devices()[device]


def counted(model, *args) -> int:
    """Return what torch's counter finds in a real run, with attention on the CPU as products."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*args)
    return counter.get_total_flops()


class Layers(nn.Module):
    """Products that the program has as operators for which torch's counter has no formula."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 16)
        self.linear = nn.Linear(16, 32)
        self.mixed = nn.Parameter(torch.randn(4, 32, 16))
        self.conv = nn.Conv2d(4, 6, 3, padding=1, groups=2)
        self.back = nn.ConvTranspose2d(6, 5, 3, stride=2)

    def forward(self, input_ids):
        hidden = self.linear(self.embed(input_ids))
        heads = torch.einsum("bsh,nhd->bnsd", hidden, self.mixed)
        shared = functional.scaled_dot_product_attention(heads, heads[:, :2], heads[:, :2], enable_gqa=True)
        causal = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        scores = shared @ causal.transpose(-1, -2)
        return self.back(self.conv(scores))


@pytest.fixture(scope="module")
def layers():
    torch.manual_seed(0)
    model = Layers()
    return model, exported(model, torch.zeros(2, 10, dtype=torch.long), dynamic_shapes="auto")


@pytest.mark.parametrize(("batch", "context"), [(2, 10), (B, S), (8, 33)])
def test_flops_equal_torchs_counter_at_sizes_that_were_not_traced(layers, batch, context):
    model, program = layers

    found = costs_at(program, batch=batch, context=context).devices()["cpu"]

    assert found.flops == counted(model, torch.zeros(batch, context, dtype=torch.long))


def test_symbolic_costs_equal_those_of_a_fresh_capture(layers):
    model, program = layers
    fresh = exported(model, torch.zeros(B, S, dtype=torch.long))

    assert costs_at(program, batch=B, context=S).devices() == costs_at(fresh).devices()


def test_the_modules_add_up(layers):
    _, program = layers
    found = costs_at(program, batch=B, context=S)

    modules = list(found.modules())

    (whole,) = found.devices().values()
    assert sum(flops for _, _, flops, _ in modules) == whole.flops
    assert sum(read_bytes for *_, read_bytes in modules) == whole.read_bytes
    assert {path for path, *_ in modules} == {"", "linear", "conv", "back"}


def test_causal_attention_needs_half_at_least():
    class Attention(nn.Module):
        def forward(self, query):
            return functional.scaled_dot_product_attention(query, query, query, is_causal=True)

    found = cost_of(Attention(), torch.zeros(2, 4, S, 8))

    assert found.flops == 2 * 2 * 4 * S * S * (8 + 8)
    assert found.least_flops["float32"] == 2 * 2 * 4 * (S * (S + 1) // 2) * (8 + 8)


def test_a_mask_may_hide_all_but_the_keys_of_one_query():
    class Attention(nn.Module):
        def forward(self, query, mask):
            return functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    found = cost_of(Attention(), torch.zeros(2, 4, S, 8), torch.zeros(S, S))

    assert found.flops == S * found.least_flops["float32"] == 2 * 2 * 4 * S * S * (8 + 8)


def test_a_convolution_needs_one_multiplication_per_output_and_channel():
    found = cost_of(nn.Conv2d(4, 6, 3, bias=False), torch.zeros(1, 4, 10, 10))

    assert found.flops == 9 * found.least_flops["float32"]
    assert found.least_flops["float32"] == 2 * 4 * 6 * 8 * 8


def test_an_embedding_table_is_not_read():
    found = cost_of(nn.Embedding(1000, 16), torch.zeros(2, 5, dtype=torch.long))

    assert found.read_bytes == 0


def test_a_weight_that_is_used_twice_is_read_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 16, bias=False)
            self.second = nn.Linear(16, 16, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.first(self.second(self.first(torch.nn.functional.one_hot(x, 16).float())))

    found = cost_of(Twice(), torch.zeros(2, dtype=torch.long))

    assert found.read_bytes == 16 * 16 * 4


def test_a_weight_that_no_operator_uses_is_not_read():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(8, 8, bias=False), nn.Linear(64, 64)

        def forward(self, x):
            return self.used(x)

    assert cost_of(Unused(), torch.zeros(2, 8)).read_bytes == 8 * 8 * 4 + 2 * 8 * 4


def test_of_a_weight_that_is_cut_its_parts_are_read():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(100, 8))

        def forward(self, x):
            return x.sin().sin() @ self.weight[90:].t()

    found = cost_of(Cut(), torch.zeros(4, 8))

    assert found.read_bytes == 10 * 8 * 4 + 4 * 8 * 4


def test_a_window_of_a_cache_and_new_values_may_hold_none_of_the_cache():
    class Window(nn.Module):
        def forward(self, cache, new):
            keys = torch.cat([cache, new], 1)[:, -6:]
            return keys @ keys.transpose(1, 2)

    found = cost_of(Window(), torch.zeros(2, 10, 4), torch.zeros(2, 6, 4))

    # 16 rows of which 6 are left: of the new ones all, of the cache none, and no size says which.
    assert found.read_bytes == 0


def test_what_the_program_wrote_over_is_not_read():
    class Static(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(1, 32, 8))

        def forward(self, x, position):
            self.keys.index_copy_(1, position, x)
            return x @ self.keys.transpose(1, 2)

    found = cost_of(Static(), torch.zeros(1, 2, 8), torch.zeros(2, dtype=torch.long))

    assert found.read_bytes == (32 - 2) * 8 * 4 + 2 * 8 * 4


def test_a_mask_by_position_may_hide_keys():
    class Attention(nn.Module):
        def forward(self, query, key):
            return functional.scaled_dot_product_attention(query, key, key, is_causal=True)

    found = cost_of(Attention(), torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 100, 8))

    assert found.read_bytes == 2 * 8 * 4
    assert found.least_flops["float32"] == 2 * (1 + 2) * (8 + 8)


class Experts(nn.Module):
    """Chooses 2 of 8 experts per token, whose weights are picked by index."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 8, bias=False)
        self.weight = nn.Parameter(torch.zeros(8, 16, 32))

    def forward(self, x):
        chosen = self.router(x).topk(2, dim=-1).indices
        return (x[:, None, None] @ self.weight[chosen]).sum(1)


def test_of_experts_those_that_are_chosen_are_read():
    found = cost_of(Experts(), torch.zeros(1, 16))

    assert found.read_bytes == 16 * 4 + 8 * 16 * 4 + 2 * 16 * 32 * 4


def test_many_tokens_may_choose_the_same_experts():
    found = cost_of(Experts(), torch.zeros(64, 16))

    assert found.read_bytes == 64 * 16 * 4 + 8 * 16 * 4 + 2 * 16 * 32 * 4


def test_experts_in_groups_compute_each_row_once_and_read_those_chosen():
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(16, 8, bias=False, dtype=torch.bfloat16)
            self.weight = nn.Parameter(torch.zeros(8, 16, 32, dtype=torch.bfloat16))

        def forward(self, x):
            chosen = self.router(x).topk(2, dim=-1).indices.flatten()
            order = chosen.argsort()
            counts = torch.zeros(8, dtype=torch.int32, device=x.device).scatter_add_(
                0, chosen, torch.ones_like(chosen, dtype=torch.int32)
            )
            rows = x.repeat_interleave(2, 0)[order]
            return torch._grouped_mm(rows, self.weight, offs=counts.cumsum(0).to(torch.int32))

    found = cost_of(Grouped(), torch.zeros(4, 16, dtype=torch.bfloat16), target="H100", device="cuda:0")

    assert found.flops == 2 * 4 * 16 * 8 + 2 * (4 * 2) * 16 * 32
    assert found.read_bytes == 4 * 16 * 2 + 8 * 16 * 2 + 2 * 16 * 32 * 2


def test_experts_in_mxfp4_are_read_in_the_bytes_that_they_have():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            register_mxfp4_product()
            self.router = nn.Linear(64, 8, bias=False, dtype=torch.bfloat16)
            self.register_buffer("blocks", torch.zeros(8, 48, 2, 16, dtype=torch.uint8))
            self.register_buffer("scales", torch.zeros(8, 48, 2, dtype=torch.uint8))

        def forward(self, x):
            chosen = self.router(x).topk(2, dim=-1).indices.flatten()
            experts, order = chosen.sort()
            ends = (experts <= torch.arange(8, device=x.device)[:, None]).sum(1)
            return grouped_matmul(x.repeat_interleave(2, 0)[order], self.blocks, self.scales, ends)

    found = cost_of(Packed(), torch.zeros(1, 64, dtype=torch.bfloat16), target="H100", device="cuda:0")

    assert found.flops == 2 * 64 * 8 + 2 * 2 * 64 * 48
    assert found.read_bytes == 64 * 2 + 8 * 64 * 2 + 2 * 48 * (64 // 2 + 64 // 32)


def test_weights_in_fp8_are_multiplied_and_read_in_the_bytes_that_they_have():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            register_fbgemm_products()
            register_fp8_products()
            self.register_buffer("rowwise", torch.zeros(48, 64, dtype=torch.float8_e4m3fn))
            self.register_buffer("of_rows", torch.zeros(48, 1))
            self.register_buffer("blockwise", torch.zeros(32, 48, dtype=torch.float8_e4m3fn))
            self.register_buffer("of_blocks", torch.zeros(2, 3))

        def forward(self, x):
            quantized, scales = torch.ops.fbgemm.quantize_fp8_per_row(x)
            x = torch.ops.fbgemm.f8f8bf16_rowwise(quantized, self.rowwise, scales, self.of_rows)
            return matmul(x, self.blockwise, self.of_blocks, [16, 16])

    found = cost_of(Packed(), torch.zeros(2, 64, dtype=torch.bfloat16), target="H100", device="cuda:0")

    assert found.least_flops["float8_e4m3fn"] == 2 * 2 * 64 * 48 + 2 * 2 * 48 * 32
    assert found.read_bytes == 48 * (64 + 4) + 32 * 48 + 2 * 3 * 4


def test_experts_that_get_tokens_by_data_may_get_none():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(16, 32))

        def forward(self, x, mask):
            return x[mask.nonzero().squeeze(1)] @ self.weight

    program = exported(Loop(), torch.zeros(4, 16), torch.ones(4, dtype=torch.long))
    found = costs_at(program, bounds={"u0": 4}).devices()["cpu"]

    assert found.flops == 2 * 4 * 16 * 32
    assert found.least_flops.total() == 0
    assert found.read_bytes == 0


def test_of_two_branches_neither_is_sure():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

        def forward(self, x, flag):
            return torch.cond(flag, lambda x: self.large(self.large(x)), lambda x: self.small(x), (x,))

    found = cost_of(Branch(), torch.zeros(2, 8), torch.tensor(True))

    assert found.flops == 2 * 2 * 2 * 8 * 8
    assert found.least_flops.total() == found.read_bytes == 0


def test_operators_in_an_autocast_region_compute_in_its_dtype():
    class Region(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8, bias=False)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.linear(x)

    found = cost_of(Region(), torch.zeros(2, 8))

    assert dict(found.least_flops) == {"bfloat16": 2 * 2 * 8 * 8}
    assert found.read_bytes == 8 * 8 * 4 + 2 * 8 * 4


def test_weights_that_are_converted_are_read_as_they_are_stored():
    class Converted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.zeros(16, 16, dtype=torch.int8))
            self.register_buffer("scale", torch.zeros(16))

        def forward(self, x):
            return functional.linear(torch.sin(x), self.weight.to(x.dtype) * self.scale)

    found = cost_of(Converted(), torch.zeros(2, 16))

    assert found.read_bytes == 16 * 16 + 16 * 4 + 2 * 16 * 4


def test_what_moves_is_counted_per_link():
    model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 4))

    program = exported(model, torch.zeros(2, 8), target="2xH100", device_map={"0": "cuda:0", "1": "cuda:1"})

    assert costs_at(program).devices()["cuda:0"].sent_bytes == {"cuda:1": 2 * 32 * 4}


def test_outputs_are_written_and_views_of_inputs_are_not():
    class Returns(nn.Module):
        def forward(self, x):
            return x.sin(), x.view(-1)

    assert cost_of(Returns(), torch.zeros(4, 8)).written_bytes == 4 * 8 * 4


def test_an_operator_without_a_formula_is_named():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs()

    found = costs_at(exported(Spectrum(), torch.zeros(2, 64)))

    assert found.devices()["cpu"].flops == 0
    assert any("fft" in line and "counts as 0 FLOP" in line for line in found.uncounted())


H100 = profile_named("H100")


def test_a_bound_is_operations_over_the_peak_and_bytes_over_the_bandwidth():
    def model():
        return nn.Linear(16384, 16384, bias=False, dtype=torch.bfloat16)

    cost = cost_of(model, torch.zeros(4096, 16384, dtype=torch.bfloat16), target="H100", device="cuda:0")

    compute, memory = bounds(cost, H100, received_bytes=0)

    assert compute.seconds == pytest.approx(2 * 4096 * 16384**2 / 989.4e12)
    read, written = (16384 + 4096) * 16384 * 2, 4096 * 16384 * 2
    assert memory.amount == read + written - 2 * H100.l2_cache_bytes
    assert memory.seconds == pytest.approx(memory.amount / 3.35e12)


def test_what_fits_into_the_cache_takes_no_time():
    cost = cost_of(nn.Linear(64, 64), torch.zeros(2, 64), target="H100", device="cuda:0")

    _, memory = bounds(cost, H100, received_bytes=0)

    assert memory.seconds == 0


def test_the_host_has_no_rates_and_no_bounds():
    cost = cost_of(nn.Linear(64, 64), torch.zeros(2, 64))

    assert not list(bounds(cost, Topology.parse("cpu").device("cpu").profile, received_bytes=0))


@pytest.mark.parametrize(
    ("device", "dtype", "rate"),
    [
        ("H100", "bfloat16", 989.4e12),
        ("H100", "float32", 494.7e12),
        ("V100", "float32", 15.7e12),
        ("T4", "bfloat16", 130e12),
        ("RTX-4090", "float16", 330.3e12),
        ("RTX-4090", "bfloat16", 165.2e12),
        ("H100", "float8_e4m3fn", 1978.9e12),
        ("A100-80GB", "float8_e4m3fn", 624e12),
        ("H100", "int8", 1978.9e12),
        ("H100", "float64", 66.9e12),
        ("B200", "float4_e2m1fn_x2", 9000e12),
    ],
)
def test_the_rate_is_the_fastest_that_a_run_may_use(device, dtype, rate):
    assert fastest_rate(dtype, profile_named(device).peak_flops) == pytest.approx(rate, rel=0.01)


def test_without_rates_there_is_none():
    assert fastest_rate("bfloat16", {}) is None
