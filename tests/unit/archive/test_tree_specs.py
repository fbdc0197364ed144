"""The text of an archive for structures of inputs and outputs: that of torch, without its functions."""

from __future__ import annotations

import json
from collections import OrderedDict

import pytest
from torch.utils import _pytree

from fakexport.archive.codec.signature import tree_spec_from_text, tree_spec_to_text

VALUES = (
    None,
    (),
    (1, [2, []], {"a": 3, 1: (4,)}),
    OrderedDict(b=1, a={"ä": [2]}),
)


@pytest.mark.parametrize("value", VALUES)
def test_a_structure_is_written_and_read_as_torch_does(value, monkeypatch):
    spec = _pytree.tree_structure(value)
    expected = _pytree.treespec_dumps(spec)
    monkeypatch.setattr(json, "dumps", lambda *args, **options: "of a model")

    written = tree_spec_to_text(spec)

    assert written == expected
    assert tree_spec_from_text(written) == spec
