"""A config with `quant_method: fbgemm_fp8` becomes the model that transformers loads on a GPU with fp8."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.export import ExportedProgram
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import fbgemm_fp8
from transformers.quantizers.quantizer_fbgemm_fp8 import FbgemmFp8HfQuantizer

import fakexport as fe
from fakexport._torch.kernels.fbgemm_products import is_fbgemm_installed, register_fbgemm_products
from fakexport.deploy.opening import open_artifact
from fakexport.models.sources import resolve
from tests.subclasses import calls
from tests.without_transformers import PROMPTS, logits_without_transformers

pytest.importorskip("accelerate")  # transformers loads no fp8 model without it
if is_fbgemm_installed():
    pytest.skip("FBGEMM's own operators have no kernels for a CPU", allow_module_level=True)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {
    **LLAMA,
    "model_type": "llama4_text",
    "architectures": ["Llama4ForCausalLM"],
    "num_local_experts": 2,
    "intermediate_size_mlp": 96,
    "head_dim": 16,
    "num_experts_per_tok": 1,
    "attn_temperature_tuning": False,
}
LEFT = ["lm_head", *(f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down"))]
IDS = torch.arange(24).reshape(2, 12) % 64
CALLED = {"fbgemm.quantize_fp8_per_row.default", "fbgemm.f8f8bf16_rowwise.default"}


def spec_of(path: Path, config: dict[str, Any] = LLAMA, **settings: Any) -> str:
    own = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1.0, "modules_to_not_convert": LEFT}
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": {**own, **settings}}))
    return f"hf:{path}"


def checkpoint(path: Path) -> Path:
    """Write a checkpoint like Meta's: of the unquantized model, with rows of some matrices in fp8."""
    generator = torch.Generator().manual_seed(0)
    config = AutoConfig.from_pretrained(path)
    settings = config.quantization_config
    del config.quantization_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    packed = {name for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    packed -= set(settings["modules_to_not_convert"])
    entries: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        drawn = torch.randn(tensor.shape, generator=generator) / 6
        entries[name] = drawn.bfloat16()
        if name.removesuffix(".weight") in packed:
            scale = drawn.abs().amax(dim=1, keepdim=True) / 448
            entries |= {name: (drawn / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}
    save_file(entries, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fbgemm")
    spec_of(path)
    return checkpoint(path)


@pytest.fixture(scope="module")
def program(folder: Path) -> ExportedProgram:
    program = fe.export(f"hf:{folder}", target="H100", dynamic_shapes="auto")
    fe.save(program, folder / "program.pt2")
    return program


@pytest.fixture(scope="module")
def real(folder: Path) -> Any:
    """The model that transformers loads from the checkpoint, where its environment is not asked."""
    register_fbgemm_products()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FbgemmFp8HfQuantizer, "validate_environment", lambda *args, **kwargs: None)
        patch.setattr(fbgemm_fp8, "get_quantize_fp8_per_row", lambda: torch.ops.fbgemm.quantize_fp8_per_row)
        model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(found[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    model.config.use_cache = False
    return model


@pytest.mark.slow
def test_it_computes_what_transformers_computes(program: ExportedProgram, real: Any, folder: Path) -> None:
    on_a_cpu = fe.retarget(fe.load(folder / "program.pt2"), {"cuda:0": "cpu"})
    bounds = {float(value) for name, value in on_a_cpu.constants.items() if name.endswith("input_scale_ub")}
    bound = fe.bind(on_a_cpu, folder / "model.safetensors").module()

    assert bounds == {1.0}  # that of the config, which cuts activations off
    for shape in ((2, 12), (3, 7), (1, 1), (1, 40)):
        ids = torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = real(input_ids=ids).logits
        found = bound(input_ids=ids, attention_mask=torch.ones_like(ids))["logits"]

        assert torch.equal(found, expected), shape


def test_the_nodes_are_those_of_stock_export(real: Any, folder: Path) -> None:
    inputs = resolve(f"hf:{folder}").example_inputs(real, "cpu", None)
    stock = torch.export.export(real, (), dict(inputs.kwargs), strict=False)

    program = fe.retarget(fe.export(f"hf:{folder}", target="H100"), {"cuda:0": "cpu"})

    assert calls(program) == calls(stock)
    assert set(fe.summary(program).operators) >= CALLED


def test_names_dtypes_and_bytes_are_those_of_the_checkpoint(
    program: ExportedProgram, real: Any, folder: Path
) -> None:
    report = fe.check(f"hf:{folder}", target="H100")

    assert report.is_clean, report.diagnostics
    summary = report.verdicts[0].summary
    assert summary is not None
    stored = load_file(folder / "model.safetensors")
    assert {n: (t.dtype, t.shape) for n, t in program.state_dict.items()} == {
        n: (t.dtype, t.shape) for n, t in stored.items()
    }
    assert summary.parameters.bytes_per_device == {"cuda:0": sum(t.nbytes for t in stored.values())}
    packed = {name for name, tensor in stored.items() if tensor.dtype is torch.float8_e4m3fn}
    assert len(packed) == summary.operators["fbgemm.f8f8bf16_rowwise.default"] == 2 * 7 - 3
    assert fe.verify_weights(program, folder / "model.safetensors").is_bindable


@pytest.mark.slow
def test_experts_are_packed_as_transformers_packs_them(tmp_path: Path) -> None:
    report = fe.check(spec_of(tmp_path, EXPERTS, modules_to_not_convert=["lm_head", "router"]), target="H100")

    (verdict,) = report.verdicts
    assert verdict.program is not None, report
    state = verdict.program.state_dict
    shapes = {n: (t.dtype, tuple(t.shape)) for n, t in state.items() if n.startswith("model.layers.1.feed")}
    assert shapes["model.layers.1.feed_forward.experts.gate_up_proj"] == (torch.float8_e4m3fn, (2, 64, 192))
    assert shapes["model.layers.1.feed_forward.experts.gate_up_proj_scale"] == (torch.float32, (2, 1, 192))
    assert shapes["model.layers.1.feed_forward.experts.down_proj_scale"] == (torch.float32, (2, 64, 1))


@pytest.mark.slow
def test_aotinductor_gets_operators_that_it_has(real: Any, folder: Path, tmp_path: Path) -> None:
    program = fe.export(f"hf:{folder}", kwargs={"input_ids": IDS}, target="H100")
    path = tmp_path / "model.pt2"
    with torch.no_grad():
        expected = real(input_ids=IDS).logits

    fe.compile(fe.retarget(program, {"cuda:0": "cpu"}), path, folder, to="aoti")
    found = open_artifact(path, "aoti", trust=True)({"input_ids": IDS})["logits"]

    # Inductor keeps bfloat16 in float32 between operators, and activations are rounded to 4 bits after it.
    assert (found - expected).norm() < 0.03 * expected.norm()


_NOT_IMPORTED = """
import sys
sys.path.insert(0, sys.argv[2])
import fakexport as fe
fe.load(sys.argv[1] + "/program.pt2")
"""


@pytest.mark.slow
def test_an_archive_runs_without_transformers(
    program: ExportedProgram, real: Any, folder: Path, tmp_path: Path
) -> None:
    with torch.no_grad():
        expected = real(PROMPTS).logits
    assert torch.equal(logits_without_transformers(folder, tmp_path / "out.pt"), expected)


@pytest.mark.slow
def test_where_fbgemm_is_installed_its_operators_are_asked_for(
    program: ExportedProgram, folder: Path, tmp_path: Path
) -> None:
    """It refuses to be imported once others have registered its operators."""
    package = tmp_path / "fbgemm_gpu" / "experimental" / "gen_ai"
    package.mkdir(parents=True)
    for path in (package, package.parent, package.parent.parent):
        (path / "__init__.py").touch()

    done = subprocess.run(
        [sys.executable, "-c", _NOT_IMPORTED, str(folder), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "import `fbgemm_gpu.experimental.gen_ai` first, or pass it with --library" in done.stderr
