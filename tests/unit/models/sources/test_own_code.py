"""`--trust-remote-code`: the model is code of the repository, to which `auto_map` in its config refers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import fakexport as fe
from fakexport.deploy.comparison import compare_source
from fakexport.models.sources import SourceError, resolve
from tests.hub_server import COMMIT, Hub, local_hub
from tests.subclasses import calls

CONFIG = {
    "model_type": "own_lm",
    "architectures": ["OwnForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModel": "modeling_own.OwnModel",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    },
    "width": 8,
    "vocab_size": 32,
    "torch_dtype": "bfloat16",
}
FILES = {
    "configuration_own.py": """
from transformers import PretrainedConfig

class OwnConfig(PretrainedConfig):
    model_type = "own_lm"

    def __init__(self, width=4, vocab_size=16, **kwargs):
        self.width, self.vocab_size = width, vocab_size
        super().__init__(**kwargs)
""",
    "layers.py": """
from torch import nn

class Gate(nn.Linear):
    def forward(self, x):
        return x * super().forward(x).sigmoid()
""",
    "modeling_own.py": """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_own import OwnConfig
from .layers import Gate

HAS_GPU = torch.cuda.is_available()

class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.gate = Gate(config.width, config.width)
        self.post_init()

    def forward(self, input_ids):
        x = self.gate(self.embed(input_ids))
        return x.relu() if HAS_GPU else x.tanh()

class OwnForCausalLM(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = OwnModel(config)
        self.head = nn.Linear(config.width, config.vocab_size)
        self.post_init()

    def forward(self, input_ids):
        return CausalLMOutput(logits=self.head(self.model(input_ids)))
""",
}
IDS = torch.arange(10).reshape(2, 5)


def folder(path: Path, files: dict[str, str] = FILES, **changed: Any) -> str:
    (path / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    for name, text in files.items():
        (path / name).write_text(text)
    return f"hf:{path}"


def trusted(spec: str) -> Any:
    source = resolve(spec, trust_remote_code=True)
    source.prepare()
    return source


def test_the_program_is_that_of_the_model_that_transformers_builds(tmp_path: Path) -> None:
    spec = folder(tmp_path)
    real = trusted(spec).factory().to(torch.bfloat16)
    save_file(real.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})

    program = fe.export(spec, trust_remote_code=True)
    bound = fe.bind(program, tmp_path / "model.safetensors")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)

    assert calls(program) == calls(torch.export.export(loaded, (), {"input_ids": IDS}, strict=False))
    assert {tensor.dtype for tensor in program.state_dict.values()} == {torch.bfloat16}
    ids = torch.arange(32).reshape(2, 16)
    assert torch.equal(bound.module()(input_ids=ids)["logits"], loaded(ids).logits)
    assert compare_source(spec, bound, trust_remote_code=True).is_equal
    report = fe.verify_weights(spec, tmp_path / "model.safetensors", trust_remote_code=True)
    assert (report.weights, report.findings) == (len(real.state_dict()), ())


def test_each_target_imports_the_code_itself(tmp_path: Path) -> None:
    report = fe.check(folder(tmp_path), target=["cpu", "H100", "cpu"], trust_remote_code=True)

    assert report.is_clean
    first, second = report.differences
    assert {"aten.relu.default", "aten.tanh.default"} <= {
        each.operator for each in first.difference.operators
    }
    assert not second.difference.operators
    assert (
        "the repository's own code was run: configuration_own.OwnConfig and modeling_own.OwnForCausalLM"
        in report.verdicts[0].target.assumptions
    )


def test_a_problem_is_reported_at_the_line_of_the_code(tmp_path: Path) -> None:
    branch = FILES["layers.py"] + "\n    def extra_repr(self):\n        return ''\n"
    branch = branch.replace("return x *", "x = x + 1 if x.sum() > 0 else x\n        return x *")

    report = fe.check(folder(tmp_path, {**FILES, "layers.py": branch}), trust_remote_code=True)

    (found,) = report.diagnostics
    assert found.code == "FE201"
    assert (found.labels[0].span.path, found.labels[0].span.line) == (str(tmp_path / "layers.py"), 6)


def test_without_the_option_nothing_is_imported(tmp_path: Path) -> None:
    spec = folder(tmp_path, {**FILES, "modeling_own.py": "raise SystemExit(3)"})

    with pytest.raises(SourceError, match="read that code, then run it with --trust-remote-code"):
        resolve(spec)
    assert resolve(spec, trust_remote_code=True).dtype == torch.bfloat16  # Only `prepare` imports it.


def test_code_for_a_known_type_runs_only_on_request(tmp_path: Path) -> None:
    model = FILES["modeling_own.py"].replace("from .configuration_own import OwnConfig", _LLAMA)
    named = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    spec = folder(tmp_path, {**FILES, "modeling_own.py": model}, model_type="llama", auto_map=named, **_SMALL)

    assert type(trusted(spec).factory()).__name__ == "OwnForCausalLM"
    assert type(resolve(spec).factory()).__module__ == "transformers.models.llama.modeling_llama"
    assert type(trusted(f"{spec}:LlamaModel").factory()).__name__ == "LlamaModel"


def test_a_config_without_a_class_is_that_of_the_model(tmp_path: Path) -> None:
    spec = folder(tmp_path, auto_map={"AutoModel": "modeling_own.OwnModel"}, architectures=None)

    module = trusted(spec).factory()

    assert type(module).__name__ == "OwnModel"
    assert (type(module.config).__name__, module.config.width) == ("OwnConfig", 8)


_LLAMA = "from transformers import LlamaConfig as OwnConfig\nOwnConfig.width = 8"
_SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("changed", "files", "message"),
    [
        (
            {},
            {"modeling_own.py": "import absent_package"},
            "modeling_own.py cannot be imported: .*absent_package",
        ),
        ({}, {"layers.py": "1 / 0"}, r"division by zero at line 1 of layers\.py: 1 / 0"),
        (
            {},
            {"modeling_own.py": "class OwnForCausal: pass"},
            "has no OwnForCausalLM: did you mean OwnForCausal",
        ),
        ({"auto_map": {"AutoModelForCausalLM": "absent.Own"}}, {}, "has no file for absent.Own"),
        ({"auto_map": {"AutoModelForCausalLM": "../modeling.Own"}}, {}, "which is not a class"),
        ({"auto_map": {"AutoModelForCausalLM": "no repository--modeling.Own"}}, {}, "which is not a class"),
    ],
)
def test_what_is_wrong_with_the_code_is_one_line(
    changed: dict[str, Any], files: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        trusted(folder(tmp_path, {**FILES, **files}, **changed))

    assert "\n" not in str(caught.value)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with local_hub(tmp_path / "cache") as served:
        yield served


def test_only_the_files_that_the_model_needs_are_downloaded(hub: Hub) -> None:
    named = {**CONFIG["auto_map"], "AutoConfig": "org/other--configuration_own.OwnConfig"}
    files = {name: text.encode() for name, text in {**FILES, "unused.py": "1 / 0"}.items()}
    hub.add("org/own", {**CONFIG, "auto_map": named}, files=files)
    hub.add("org/other", files={"configuration_own.py": FILES["configuration_own.py"].encode()})

    source = trusted("hf:org/own")
    asked = list(hub.requests)
    source.prepare()

    assert type(source.factory()).__name__ == "OwnForCausalLM"
    assert source.assumptions[0] == f"hf:org/own is at commit {COMMIT} on the hub"
    assert hub.requests == asked  # Each target imports the files that were read at first.
    assert not any("unused" in request for request in asked)
