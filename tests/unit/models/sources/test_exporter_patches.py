"""`exporter_patches`: what `apply_patches` replaces, without the files of other models."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from fakexport.models.sources.transformers.exporter_patches import exporter_patches

_VISION = "transformers.models.qwen2_vl.modeling_qwen2_vl"


@pytest.mark.slow
def test_no_file_of_another_model_is_imported(tmp_path):
    code = (
        "import sys, fakexport as fe\n"
        "from transformers import GPT2Config\n"
        "GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=8).save_pretrained(sys.argv[1])\n"
        "assert fe.check('hf:' + sys.argv[1], target='H100').is_clean\n"
        "files = [name.split('.') for name in sys.modules if '.modeling_' in name]\n"
        "print(*(name[2] for name in files if len(name) == 4))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"auto", "clip", "gpt2"}


def test_the_same_is_replaced_as_by_transformers_itself():
    from transformers.exporters.exporter_dynamo import apply_patches

    attention = importlib.import_module(_VISION).VisionAttention
    stock = attention.forward

    with apply_patches("dynamo"):
        theirs = attention.forward
    with exporter_patches():
        ours = attention.forward

    assert attention.forward is stock
    assert stock is not theirs
    assert ours.__code__ is theirs.__code__
    assert [cell.cell_contents for cell in ours.__closure__] == [
        cell.cell_contents for cell in theirs.__closure__
    ]


def test_the_originals_are_back_after_an_error():
    attention = importlib.import_module(_VISION).VisionAttention
    stock = attention.forward

    with pytest.raises(KeyError), exporter_patches():
        raise KeyError

    assert attention.forward is stock
