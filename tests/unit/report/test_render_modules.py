"""The tree of modules as text."""

from __future__ import annotations

from dataclasses import replace

from fakexport.exporting.program import ModuleSummary
from fakexport.report import render_modules

LAYER = ModuleSummary(
    name="0-125",
    path="model.layers.0",
    class_name="Layer",
    count=126,
    own_parameters=3_200_000_000,
    total_parameters=3_200_000_000,
    own_buffers=0,
    total_buffers=0,
    own_bytes=6_400_000_000,
    total_bytes=6_400_000_000,
    dtypes=("bfloat16",),
    bytes_per_device={"cuda:0": 403_200_000_000, "cuda:1": 403_200_000_000},
    tied_to=(),
    children=(),
)
ACTIVATION = replace(
    LAYER,
    name="act",
    class_name="SiLU",
    count=1,
    total_parameters=0,
    total_bytes=0,
    dtypes=(),
    bytes_per_device={},
)
HEAD = replace(
    ACTIVATION,
    name="lm_head",
    class_name="Linear",
    bytes_per_device={"cuda:1": 0},
    tied_to=("model.embed.weight",),
)
ROOT = replace(
    LAYER,
    name="",
    class_name="Llama",
    count=1,
    total_parameters=403_200_000_000,
    total_bytes=806_400_000_000,
    children=(replace(LAYER, children=(ACTIVATION,)), HEAD),
)


def test_dtypes_that_differ_are_a_column():
    text = render_modules(replace(ROOT, dtypes=("bfloat16", "float32")))

    assert [line.split()[-2] for line in text.splitlines()[1:3]] == ["mixed", "bfloat16"]
    assert "403.2B parameters, bfloat16, float32, 751.0 GiB" in text


def test_a_model_without_tensors():
    empty = replace(ACTIVATION, name="", class_name="ReLU")

    assert render_modules(empty).endswith("(root)  ReLU        0    0 B\n\n0 parameters, 0 B\n")


def test_a_wide_tree_is_cut_into_tables_that_repeat_the_module():
    text = render_modules(ROOT, width=50)

    assert text.count("(root)") == 2
    assert max(map(len, text.splitlines())) <= 50


def test_names_cannot_steer_the_terminal():
    text = render_modules(replace(ROOT, class_name="a\x1b[2J\n"))

    assert "a\\x1b[2J\\n" in text
