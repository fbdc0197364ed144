"""The tree of modules as text."""

from __future__ import annotations

from dataclasses import replace

from fakexport.program import ModuleSummary
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


def test_runs_ties_and_totals():
    text = render_modules(ROOT)

    assert text == (
        """\
module     class        params      bytes  device     tied to
(root)     Llama        403.2B  751.0 GiB  cuda:0..1
  0-125    126 x Layer    3.2B    6.0 GiB  cuda:0..1
    act    SiLU              0        0 B
  lm_head  Linear            0        0 B  cuda:1     model.embed.weight

403.2B parameters, bfloat16, 751.0 GiB: cuda:0..1 375.5 GiB
"""
    )


def test_a_dtype_or_device_that_all_modules_share_is_in_the_last_line():
    small = replace(
        ROOT,
        children=(replace(ACTIVATION, dtypes=("int8",)),),
        dtypes=("int8",),
        bytes_per_device={"cpu": 4},
        total_parameters=1,
        total_bytes=4,
    )

    text = render_modules(small)

    assert text == (
        """\
module  class  params  bytes
(root)  Llama       1    4 B
  act   SiLU        0    0 B

1 parameter, int8, 4 B on cpu
"""
    )


def test_dtypes_that_differ_are_a_column():
    text = render_modules(replace(ROOT, dtypes=("bfloat16", "float32")))

    assert [line.split()[-2] for line in text.splitlines()[1:3]] == ["mixed", "bfloat16"]
    assert "403.2B parameters, bfloat16, float32, 751.0 GiB" in text


def test_buffers_are_counted_in_the_totals():
    with_buffers = replace(ROOT, total_buffers=20)

    assert "403.2B parameters, 20 buffer elements, bfloat16, 751.0 GiB" in render_modules(with_buffers)


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
