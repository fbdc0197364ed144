"""What a failing check of a model of transformers prints leads to its export when it is followed."""

from __future__ import annotations

import pytest

from tools.followed_fixes import followed

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.zoo,
    *map(pytest.mark.filterwarnings, ("ignore::UserWarning", "ignore::FutureWarning")),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize(
    ("source", "code", "kind"),
    [
        ("hf:xlnet", "FE202", "dtype"),
        ("hf:clvp_encoder", "FE209", "dtype"),
        ("hf:lfm2_moe", "FE102", "config"),
        ("hf:deepseek_v2", "FE202", "config"),
        ("hf:openai_privacy_filter", "FE301", "setting"),
        ("hf:tvp", "FE202", "inputs"),
        ("hf:switch_transformers", "FE208", "code"),
        ("hf:blt_patcher", "FE201", "code"),
        ("hf:longformer", "FE201", "assume"),
        ("hf:superglue", "FE301", "assume"),
        ("hf:step3p5", "FE202", "config"),
        ("hf:udop", "FE203", "code"),
    ],
)
def test_a_fix_of_each_kind_works(source, code, kind):
    found = followed(source)

    assert (found["code"], found["kind"], found["outcome"]) == (code, kind, "exports")
    assert found.get("values", "equal") == "equal"


def test_a_fix_that_is_not_known_is_not_followed():
    found = followed("hf:vilt")

    assert (found["kind"], found["outcome"]) == ("none known", "not followed")
