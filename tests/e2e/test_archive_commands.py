"""export, bind and run on the command line, as a user strings them together."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402  (comes with transformers)

from tests.command_line import fakexport_here  # noqa: E402

CONFIG = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint, inputs, and what eager gives for them."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).eval()
    model.save_pretrained(folder / "checkpoint")
    ids = torch.randint(0, 64, (3, 7))
    save_file({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, folder / "in.safetensors")
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    save_file({"logits": logits}, folder / "eager.safetensors")
    return folder


@pytest.mark.parametrize("target", [pytest.param("cpu", marks=pytest.mark.slow), "H100"])
def test_a_model_goes_from_its_config_to_its_output(target, folder):
    source = f"hf:{folder}/checkpoint/config.json"
    archive, bound = f"{folder}/{target}.pt2", f"{folder}/{target}-bound.pt2"
    to_cpu = [] if target == "cpu" else ["--devices", "cuda:0=cpu"]
    inputs = f"{folder}/in.safetensors"

    exported = fakexport_here("export", source, "--target", target, "--dynamic", "auto", "-o", archive)
    assert "bytes, without weights" in exported.stderr
    refused = fakexport_here("run", archive, "--inputs", inputs, code=2)
    assert "this program has no weights" in refused.stderr
    assert refused.stderr.count("\n") == 1
    fakexport_here("bind", archive, f"{folder}/checkpoint", *to_cpu, "-o", bound)
    fakexport_here("run", bound, "--inputs", inputs, "-o", f"{folder}/out.safetensors")
    at_once = fakexport_here("run", archive, f"{folder}/checkpoint", *to_cpu, "--inputs", inputs)

    assert at_once.stdout == "logits  float32[3, 7, 64]\n"
    out, eager = (load_file(f"{folder}/{name}.safetensors")["logits"] for name in ("out", "eager"))
    assert torch.equal(out, eager)
