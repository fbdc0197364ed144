"""Names of the hub on the command line."""

import json
import os
import subprocess
import sys

import pytest

from tests.command_line import fakexport_here
from tests.hub_layouts import config_of, entries_of
from tests.hub_server import COMMIT, Hub, Weights, local_hub, serving, sharded

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = config_of("LlamaForCausalLM", "llama", vocab_size=32, **SMALL)
FP8 = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with local_hub(tmp_path_factory.mktemp("cache")) as served:
        served.add("org/llama", LLAMA, files=sharded(entries_of(LLAMA), 2))
        served.add("org/fp8", FP8, files={"model.safetensors": Weights.of(entries_of(LLAMA))})
        served.add("org/pickled", LLAMA, files={"pytorch_model.bin": b"PK"})
        served.add("org/gated", LLAMA, is_gated=True)
        yield served


@pytest.fixture(scope="module")
def archive(hub, tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "llama.pt2"
    fakexport_here("export", "hf:org/llama", "--no-progress", "-o", path)
    return path


def test_a_repository_is_checked_at_its_commit_and_says_what_it_transferred(hub):
    done = fakexport_here("check", "hf:org/llama", "--no-progress", "--format", "json")

    report = json.loads(done.stdout)
    assert f"hf:org/llama is at commit {COMMIT} on the hub" in str(report)
    assert done.stderr.startswith(f"hf:org/llama@{COMMIT}: ")
    assert done.stderr.endswith(" downloaded (configuration and headers, no weights)\n")


def test_a_quantized_repository_is_not_reported_as_clean(hub):
    done = fakexport_here("check", "hf:org/fp8", "--no-progress", code=1)

    assert "FE105" in done.stdout
    assert "the published weights are quantized (fp8)" in done.stdout


def test_the_weights_of_a_repository_are_compared_with_an_archive(hub, archive):
    fits = fakexport_here("verify-weights", archive, "hf:org/llama")
    pinned = fakexport_here("verify-weights", archive, f"hf:org/llama@{COMMIT}", "--format", "json")

    assert f"checkpoint  hf:org/llama@{COMMIT}: 12 entries" in fits.stdout
    assert "all 12 weights fit" in fits.stdout
    assert json.loads(pinned.stdout)["checkpoint"] == f"hf:org/llama@{COMMIT}"


def test_an_archive_says_which_commit_it_is_of(hub, archive):
    assert COMMIT in fakexport_here("inspect", archive, "--format", "json").stdout


def test_weights_on_the_hub_are_not_bound(hub, archive, tmp_path):
    done = fakexport_here("bind", archive, "hf:org/llama", "-o", tmp_path / "bound.pt2", code=2)

    error = done.stderr.splitlines()[-1]
    assert "fakexport never downloads weights: run `hf download org/llama --local-dir FOLDER`" in error
    assert not (tmp_path / "bound.pt2").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("check", "hf:org/gated"), "the repository is gated"),
        (("inspect", "hf:org/gone"), "no folder and no repository on "),
        (("plan", "hf:org/llama@nope"), "the repository has no revision 'nope'"),
        (("verify-weights", "hf:org/llama", "hf:org/pickled"), "pytorch_model.bin "),
    ],
)
def test_what_is_wrong_with_a_repository_is_one_line_and_exit_code_2(hub, arguments, reason):
    done = fakexport_here(*arguments, code=2)

    *_, error = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert reason in error
    assert "FE001" not in done.stderr


@pytest.mark.slow
def test_a_process_of_its_own_reads_the_settings_of_huggingface_hub(tmp_path):
    with serving(Hub()) as hub:
        hub.add("org/llama", LLAMA, files=sharded(entries_of(LLAMA), 2))
        settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-m", "fakexport", "verify-weights", "hf:org/llama", "hf:org/llama"],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert "all 12 weights fit; 0 errors, 0 warnings" in done.stdout
