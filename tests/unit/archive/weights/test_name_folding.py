"""Folded names stand for exactly the names that they fold."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakexport.archive.weights.weights_report import fold_names


def unfolded(line):
    """All names that a line stands for."""
    parts = [numbers(part) if part.startswith("{") else [part] for part in line.split(".#.")[0].split("/")]
    return {".".join(chosen) for chosen in itertools.product(*parts)}


def numbers(text):
    found = []
    for item in text.strip("{}").split(","):
        first, _, last = item.partition("..")
        found += [str(n) for n in range(int(first), int(last or first) + 1)]
    return found


def expand(line):
    slashed = re.sub(r"\.(?![^{]*\})", "/", line)
    return unfolded(slashed)


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        ([], []),
        (["weight"], ["weight"]),
        ([f"layers.{i}.w" for i in range(126)], ["layers.{0..125}.w"]),
        (["h.0.w", "h.1.w", "h.5.w", "h.7.w", "h.8.w", "h.9.w"], ["h.{0,1,5,7..9}.w"]),
        ([f"l.{i}.e.{j}.w" for i in range(3) for j in range(4)], ["l.{0..2}.e.{0..3}.w"]),
        (["l.0.e.0", "l.0.e.1", "l.1.e.0", "l.1.e.1", "l.2.e.0"], ["l.{0,1}.e.{0,1}", "l.2.e.0"]),
        (["a.3.w", "b", "a.4.w"], ["a.{3,4}.w", "b"]),
        (["a.007.w", "a.8.w"], ["a.007.w", "a.8.w"]),
        (["conv1.weight", "conv2.weight"], ["conv1.weight", "conv2.weight"]),
    ],
)
def test_names_are_folded(names, lines):
    assert fold_names(names) == lines


PART = st.one_of(st.integers(0, 6).map(str), st.sampled_from(["h", "w", "mlp"]))
NAMES = st.lists(st.lists(PART, min_size=1, max_size=4).map(".".join), max_size=30)


@given(NAMES)
def test_no_name_is_lost_and_none_is_added(names):
    covered = [name for line in fold_names(names) for name in expand(line)]

    assert sorted(covered) == sorted(set(names))


def test_a_name_that_is_the_template_of_others_stays_a_name():
    assert fold_names(["0", "#", "1", "2"]) == ["{0..2}", "#"]


@given(st.lists(st.text(max_size=8), max_size=10))
def test_any_text_is_a_name(names):
    assert len(fold_names(names)) <= len(set(names))
