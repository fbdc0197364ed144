"""`from_pretrained` in a factory: what transformers gives for real on the CPU is the oracle."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.integrations import accelerate as accelerate_integration

import fakexport as fe
from fakexport.emulation.fake import build
from fakexport.emulation.history import constant_value
from tests.unit.models.sources.tiny_configs import TEXT


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models: tied in bfloat16 and sharded, in float32, as a pickle."""
    root = tmp_path_factory.mktemp("pretrained")
    tied = transformers.LlamaConfig(**TEXT, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(tied).to(torch.bfloat16)
    model.save_pretrained(root / "tied")
    model.save_pretrained(root / "sharded", max_shard_size="10KB")
    assert len(list((root / "sharded").glob("*.safetensors"))) > 1
    single = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))
    single.save_pretrained(root / "single")
    single.config.save_pretrained(root / "pickle")
    torch.save(single.state_dict(), root / "pickle" / "pytorch_model.bin")
    return root


@pytest.fixture(params=[False, True], ids=["alone", "accelerate"])
def has_accelerate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Without accelerate, as transformers tells, and with it if it is installed."""
    if not request.param:
        monkeypatch.setattr(accelerate_integration, "is_accelerate_available", lambda: False)
    elif not accelerate_integration.is_accelerate_available():
        pytest.skip("needs accelerate")
    return bool(request.param)


CASES = {
    "tied": lambda root: AutoModelForCausalLM.from_pretrained(root / "tied"),
    "sharded": lambda root: AutoModelForCausalLM.from_pretrained(root / "sharded"),
    "dtype": lambda root: AutoModelForCausalLM.from_pretrained(root / "single", dtype=torch.bfloat16),
    "torch_dtype": lambda root: AutoModelForCausalLM.from_pretrained(root / "tied", torch_dtype="float32"),
    "auto": lambda root: AutoModelForCausalLM.from_pretrained(root / "sharded", dtype="auto"),
    "no head": lambda root: AutoModel.from_pretrained(root / "tied"),
    "new head": lambda root: AutoModelForSequenceClassification.from_pretrained(root / "single"),
    "pickle": lambda root: AutoModelForCausalLM.from_pretrained(root / "pickle"),
    "to": lambda root: AutoModel.from_pretrained(root / "tied").to(torch.float16).train().eval(),
}


def facts(module: Any) -> Any:
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    first = {id(tensor): name for name, tensor in reversed(tensors)}
    return (
        type(module),
        module.training,
        module.config.to_dict(),
        {name: (t.shape, t.dtype, t.stride(), t.requires_grad, first[id(t)]) for name, t in tensors},
    )


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_that_of_the_real_call(folders, has_accelerate, case):
    real = CASES[case](folders)

    with fe.emulate("H100"):
        module = build(lambda: CASES[case](folders)).module

    assert facts(module) == facts(real)
    tensors = [*module.parameters(), *module.buffers()]
    assert all(fe.is_fake(tensor) for tensor in tensors)
    assert {tensor.device.type for tensor in tensors} == {"cuda"}
    for name, buffer in real.named_buffers():
        assert torch.equal(constant_value(module.get_buffer(name)).cpu(), buffer), name


@pytest.mark.parametrize("device_map", ["auto", "cuda", {"": 0}])
def test_a_device_map_with_one_device_is_that_device(folders, has_accelerate, device_map):
    with fe.emulate("H100"):
        module = build(lambda: AutoModel.from_pretrained(folders / "single", device_map=device_map)).module

    assert {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())} == {"cuda:0"}


def test_several_devices_need_accelerate(folders, monkeypatch):
    monkeypatch.setattr(accelerate_integration, "is_accelerate_available", lambda: False)

    with (
        fe.emulate("2xH100"),
        pytest.raises(ValueError, match=r": pip install accelerate$"),
    ):
        build(lambda: AutoModel.from_pretrained(folders / "single", device_map="auto"))


def test_offloaded_weights_are_an_error_and_not_a_program(folders):
    pytest.importorskip("accelerate")
    places = {"embed_tokens": 0, "layers": 0, "norm": "cpu", "rotary_emb": "cpu"}

    with (
        fe.emulate("H100"),
        pytest.raises(ValueError, match="in each call, which an exported program cannot do"),
    ):
        build(lambda: AutoModel.from_pretrained(folders / "single", device_map=places))


@pytest.mark.parametrize("method", ["fp8", "mxfp4", "unheard-of"])
def test_a_quantized_checkpoint_is_never_built_unquantized(folders, tmp_path, method):
    for file in (folders / "single").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method}
    (tmp_path / "config.json").write_text(json.dumps(config))

    # Without accelerate, transformers says itself that it does not load these two.
    is_refused_before = method != "unheard-of" and importlib.util.find_spec("accelerate") is None
    says = (
        "requires? [Aa]ccelerate" if is_refused_before else rf"^the checkpoint is quantized \({method}\), but"
    )
    with pytest.raises(ImportError if is_refused_before else ValueError, match=says):
        build(lambda: AutoModelForCausalLM.from_pretrained(tmp_path))


@pytest.mark.slow
def test_a_factory_with_a_cache_exports_as_torch_exports_the_real_model(folders):
    """The cache of a model is registered for its type, in `check`, in `export` and for a live module."""
    ids = torch.zeros(2, 8, dtype=torch.long)
    real = AutoModelForCausalLM.from_pretrained(folders / "single")
    assert real.config.use_cache

    report = fe.check(lambda: (AutoModelForCausalLM.from_pretrained(folders / "single"), (ids,)))
    exported = fe.export(real, (ids,))

    assert report.is_clean, report.diagnostics
    stock = [str(node.target) for node in torch.export.export(real, (ids,)).graph.nodes]
    for program in (report.verdicts[0].program, exported):
        assert [str(node.target) for node in program.graph.nodes] == stock
        assert len(program.graph_signature.user_outputs) == 1 + 2 * TEXT["num_hidden_layers"]


def test_a_factory_may_give_a_cache(folders):
    """A decode step: one token, and what is known of seven before it. Such a program cannot be saved."""

    def factory():
        model = AutoModelForCausalLM.from_pretrained(folders / "single")
        cache = transformers.DynamicCache(config=model.config)
        for layer in range(TEXT["num_hidden_layers"]):
            cache.update(*torch.zeros(2, 2, 2, 7, 8).unbind(), layer)
        return model, (), {"input_ids": torch.ones(2, 1, dtype=torch.long), "past_key_values": cache}

    report = fe.check(factory, target=["cpu", "H100"])

    assert [each.code for each in report.diagnostics] == ["FE406"]
    outputs = report.verdicts[1].summary.outputs
    assert [value.shape for value in outputs[1:]] == [("2", "2", "8", "8")] * 4


@pytest.mark.slow
def test_a_factory_may_import_transformers_itself(folders, tmp_path):
    """Afterwards everything is transformers' own again, also in what was imported meanwhile."""
    code = f"""
import fakexport as fe, safetensors, sys
def factory():
    from transformers import AutoModel
    return AutoModel.from_pretrained({str(folders / "tied")!r})
with fe.emulate("H100"):
    module = fe.build(factory).module
assert {{str(p.device) for p in module.parameters()}} == {{"cuda:0"}}
from transformers import modeling_utils
assert modeling_utils.safe_open is safetensors.safe_open
assert modeling_utils.check_and_set_device_map.__module__ == "transformers.integrations.accelerate"
assert not any("fakexport" in type(finder).__module__ for finder in sys.meta_path)
assert factory().dtype.is_floating_point and not fe.is_fake(factory().embed_tokens.weight)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
