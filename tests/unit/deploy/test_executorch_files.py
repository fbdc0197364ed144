"""Damaged and foreign .pte files: one line, and nothing of them reaches native code."""

from __future__ import annotations

import io
import re

import pytest
import torch
from torch import nn

from fakexport.deploy import DeployError

pytest.importorskip("executorch")

from fakexport.deploy.executorch import compile_executorch, open_executorch
from fakexport.deploy.executorch.description import write_checked


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return torch.export.export(nn.Linear(4, 2), (torch.zeros(3, 4),))


@pytest.fixture(scope="module")
def content(program, tmp_path_factory):
    return compile_executorch(program, tmp_path_factory.mktemp("pte") / "model.pte").path.read_bytes()


def refusal(content, folder):
    path = folder / "model.pte"
    path.write_bytes(content)
    with pytest.raises(DeployError) as caught:
        open_executorch(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_a_cut_longer_or_changed_file_is_refused(content, tmp_path):
    assert "is damaged" in refusal(content + b"\0", tmp_path)
    for length in range(0, len(content), 97):
        assert refusal(content[:length], tmp_path)
    for place in range(8, len(content), 53):
        changed = bytearray(content)
        changed[place] ^= 0x55
        assert refusal(bytes(changed), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            b'"arguments": [{"input": "input"}]',
            b'"arguments": [{"input": "other"}]',
            "arguments[0].input: 'other'",
        ),
        (b'"arguments": [{"input": "input"}]', b'"arguments": [{"value_": 123456}]', "'value_' is unknown"),
        (b'"backend": "portable"', b'"backend": "harmless"', "'harmless' is not a valid backend"),
    ],
)
def test_a_forged_description_is_refused(old, new, reason, content, tmp_path):
    """With a right checksum."""
    assert len(old) == len(new)
    assert old in content
    plain = re.sub(rb'(?<="sha256": ")[0-9a-f]{64}', b"0" * 64, content).replace(old, new)
    file = io.BytesIO()
    write_checked(file, plain)

    assert reason in refusal(file.getvalue(), tmp_path)


@pytest.mark.parametrize("foreign", [b"", b"PK\3\4", b"garbage" * 100])
def test_what_is_no_pte_file_is_named(foreign, tmp_path):
    assert "is not an ExecuTorch program" in refusal(foreign, tmp_path)


@pytest.mark.slow
def test_a_file_that_executorch_wrote_alone_is_named(program, tmp_path):
    from executorch.exir import to_edge_transform_and_lower

    foreign = to_edge_transform_and_lower(program).to_executorch().buffer

    assert "was not written by `fakexport compile`" in refusal(foreign, tmp_path)
