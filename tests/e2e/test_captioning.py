"""The captioning toy of the fourth seed: a ViT encoder and a GPT-2 decoder, with dynamic batch and length."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fakexport as fe
from fakexport.exporting.program import devices

pytestmark = pytest.mark.slow

TARGETS = ["cpu", "H100"]
EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"layers": 2, "width": 48, "heads": 4}


# A small one of the same shape, and that of the seed.
of_both_sizes = pytest.mark.parametrize(
    "sizes",
    [SMALL, pytest.param({}, marks=pytest.mark.exhaustive)],
    ids=["small", "base"],
    scope="module",
)


@pytest.fixture(scope="module")
def encoder(sizes):
    return checked("encoder", sizes, ["pixel_values.0=2..64"])


@pytest.fixture(scope="module")
def decoder(sizes):
    dims = ["input_ids.0=2..64", "encoder_hidden_states.0=2..64", "input_ids.1=2..256"]
    return checked("decoder", sizes, dims)


def checked(half, sizes, dims):
    source = EXAMPLES / "captioning.py"
    if not sizes:
        return fe.check(f"{source}:{half}", target=TARGETS, dynamic_shapes=dims)
    factory = runpy.run_path(str(source))[half]
    return fe.check(lambda: factory(**sizes), target=TARGETS, dynamic_shapes=dims)


@of_both_sizes
def test_both_halves_export_for_both_targets(encoder, decoder):
    for report in (encoder, decoder):
        assert report.is_clean
        assert [verdict.summary.devices for verdict in report.verdicts] == [("cpu",), ("cuda:0",)]


@of_both_sizes
def test_the_decoders_batch_and_length_vary(decoder, sizes):
    for verdict in decoder.verdicts:
        ids, states = verdict.summary.inputs
        batch, length = ids.shape
        bounds = verdict.summary.range_constraints
        assert (bounds[batch].lower, bounds[batch].upper) == (2, 64)
        assert (bounds[length].lower, bounds[length].upper) == (2, 256)
        assert states.shape == (batch, "197", str(sizes.get("width", 768)))
        assert verdict.summary.outputs[0].shape == (batch, length, "1024")


@of_both_sizes
def test_no_position_is_baked_in_on_the_cpu(decoder):
    """The seed's program, exported on the CPU, died on the GPU with `index is on cpu`."""
    on_gpu = decoder.verdicts[1]

    literals = {literal.device for literal in devices(on_gpu.program)}
    assert literals == {"cuda:0"}
    assert on_gpu.transfers == ()


@of_both_sizes
def test_the_bundle_writes_what_transformers_writes_where_it_is_not(sizes, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import captioning_export
    from captioning import captioner

    torch.manual_seed(0)
    model = captioner(**sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # An untrained model repeats one token, and then a wrong state would not show.
    captioning_export.export(tmp_path, **sizes)
    captioning_export.write_weights(tmp_path, model)
    captioning_export.write_eager(tmp_path, model, torch.randn(3, 3, 224, 224))

    assert fe.verify_weights(
        tmp_path / "captioner.pt2", load_file(tmp_path / "checkpoint" / "model.safetensors")
    ).is_bindable  # By the recipes in the bundle: tensors by name have no config.json beside them.

    program = (
        "import runpy, sys; from tests.round_trip.clean_process import hide_packages; hide_packages();"
        "sys.argv = ['', sys.argv[1]];"
        f"runpy.run_path({str(EXAMPLES / 'captioning_generate.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    first, *captions = done.stdout.splitlines()
    assert first == "the same as transformers"
    assert len(captions) == 3
    assert all(len(set(caption.split())) > 5 for caption in captions)
